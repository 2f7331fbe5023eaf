"""An admin takes a run back while real daemons run; one site does not allow it and stays behind."""

import json
from functools import partial

import numpy as np
import pytest

from chorale.v1 import admin_pb2
from federation.adapter.layout import Layout
from lab.loopback import LoopbackError
from server.cli.client import connect
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

pytestmark = [pytest.mark.xdist_group("rollback"), pytest.mark.long]

ROUNDS = 8
CONSENTING, FORBIDDING = cf.SILOS[:3], cf.SILOS[3]


def allowing():
    return cf.policy_toml().replace("[methods]\n", "[methods]\nallow_rollback = true\n")


def after(tensors, survivors):
    """The next adapter, by arithmetic: the plain mean of fixed-point vectors."""
    layout = Layout.from_tensors(cf.initial_tensors())
    total = sum(cf.fixed_point(cf.VALUES[silo]) for silo in survivors)
    mean = np.asarray(total, np.float64) / (cf.GRID / cf.CLIP * len(survivors))
    parts = layout.unflatten(mean)
    return {
        name: (tensors[name].astype(np.float64) + parts[name]).astype(np.float32)
        for name in tensors
    }


def heads(loopback, silo):
    state = json.loads((loopback.silo_dir(silo) / "state.json").read_text())
    return state["heads"]


def await_head(loopback, silo, run_id, adapter_sha256):
    """A silo adopts the last adapter once it hears that the run is over."""
    until(
        lambda: heads(loopback, silo)[run_id]["adapter_sha256"] == adapter_sha256,
        f"{silo} adopts the last adapter",
        told=partial(loopback.log, silo),
    )


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_goes_back_and_on(tmp_path):
    with cf.federation(tmp_path) as loopback:
        for silo in CONSENTING:
            cf.configure(loopback, silo, policy=allowing())

        def chorale(*arguments):
            return loopback.chorale(*arguments, "--data", str(loopback.data_dir))

        plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=ROUNDS, ready_after_s=1))
        run_id = loopback.start_run(plan, adapter, token="run")
        # Only now, so that no round is over before it is watched.
        for silo in cf.SILOS:
            loopback.start_silo(silo)
        # From this process: by the time a command has started, rounds have gone by.
        with connect(loopback.data_dir) as calls:
            for status in calls.WatchRun(admin_pb2.WatchRunRequest(run_id=run_id)):
                if status.run.round >= 3:
                    break
            calls.PauseRun(admin_pb2.PauseRunRequest(run_id=run_id))
        for status in loopback.watch(run_id):
            if status["run"]["state"] == "paused":
                before = status["run"]["round"]
                break
        assert 3 <= before <= ROUNDS - 3
        back = ("adapter", "rollback", run_id, "--to-round", "1", "--submit-token", "t")
        said = chorale(*back)
        assert said == {"run_id": run_id, "to_round": 1, "round": None, "state": "paused"}
        # What was accepted outlives the process, and asking again is not asking twice.
        loopback.kill("coordinator")
        loopback.start_coordinator()
        assert chorale(*back) == said
        with pytest.raises(LoopbackError, match="rollback_refused"):
            chorale("adapter", "rollback", run_id, "--to-round", "2")
        chorale("run", "resume", run_id)
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        assert chorale(*back) == {**said, "round": before + 1, "state": "finished"}
        with pytest.raises(LoopbackError, match="rollback_refused"):
            chorale("adapter", "rollback", run_id, "--to-round", "1")
        assert [done["outcome"] for done in rounds] == [
            "rollback" if done["round"] == before + 1 else "aggregated" for done in rounds
        ]

        # Every adapter is what arithmetic says.
        records = chorale("adapter", "list", run_id)["records"]
        assert len(records) == ROUNDS + 1
        made = [cf.initial_tensors()]
        for record in records[1:]:
            if record["kind"] == "rollback":
                assert (record["round"], record["restored_round"]) == (before + 1, 1)
                assert record["adapter_sha256"] == records[1]["adapter_sha256"]
                made.append(made[1])
            else:
                made.append(after(made[-1], record["survivors"]))
                expected = CONSENTING if record["round"] > before + 1 else cf.SILOS
                assert set(record["survivors"]) <= set(expected)
            found = cf.published(loopback, record["adapter_sha256"])
            for name, tensor in made[-1].items():
                np.testing.assert_array_equal(found[name], tensor)

        # Who allows it holds the newest adapter; who does not holds the one before the rollback.
        for silo in CONSENTING:
            await_head(loopback, silo, run_id, records[-1]["adapter_sha256"])
        stayed = heads(loopback, FORBIDDING)[run_id]
        assert (stayed["round"], stayed["adapter_sha256"]) == (
            before, records[before]["adapter_sha256"],
        )  # fmt: skip

        # Both sides say so.
        data = str(loopback.silo_dir(FORBIDDING))
        listed = loopback.silo("runs", "--data", data)["runs"]
        assert (listed[-1]["state"], listed[-1]["rule"]) == ("refused", "rollback_allowed")
        refused = 'chorale_silo_policy_decisions_total{decision="refuse",rule="rollback_allowed"}'
        assert loopback.metrics(FORBIDDING)[refused] >= 1
        assert "methods.allow_rollback is false" in loopback.log(FORBIDDING)
        coordinator = lines_of(loopback.data_dir / "audit.jsonl")
        reasons = [
            (line["details"]["silo"], line["details"]["reason"])
            for line in coordinator
            if line["event"] == "silo_refused"
        ]
        assert set(reasons) == {(FORBIDDING, "the site's policy does not allow a rollback")}
        asked = [line["details"] for line in coordinator if line["event"] == "rollback_asked"]
        assert [(one["run"], one["to_round"]) for one in asked] == [(run_id, 1)]
        for silo in CONSENTING:
            log = lines_of(loopback.silo_dir(silo) / "audit.jsonl")
            adopted = [one["details"] for one in log if one["event"] == "record_adopted"]
            found = [(d["round"], d["restored_round"]) for d in adopted if d["kind"] == "rollback"]
            assert found == [(before + 1, 1)]
            # Its place may have been charged for before the pause, for an attempt that was given
            # up; the rollback itself charges nothing.
            told = next(k for k, one in enumerate(log) if "restored_round" in one["details"])
            charged = [one["details"] for one in log[told:] if one["event"] == "attempt_charged"]
            assert {one["round"] for one in charged} == set(range(before + 2, ROUNDS + 1))
            assert loopback.silo("audit", "verify", "--data", str(loopback.silo_dir(silo)))
        assert loopback.metrics("coordinator")['chorale_rounds_total{outcome="rollback"}'] == 1

        exported = chorale(
            "adapter", "export", run_id, "--round", str(before + 1), "-o", str(tmp_path / "out")
        )
        assert exported["adapter_sha256"] == records[1]["adapter_sha256"]
        # What a finished run is told to do instead works: its adapter starts another run.
        chorale(
            "run", "start", str(plan), "--adapter",
            str(tmp_path / "out" / "adapter_model.safetensors"), "--submit-token", "again",
        )  # fmt: skip
