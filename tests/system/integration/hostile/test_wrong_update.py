"""A coordinator signs an adapter that does not follow from the sum: the silos stop, and say so."""

import json

import pytest

from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until


def chain_head(loopback, silo_id, run_id):
    state = json.loads((loopback.silo_dir(silo_id) / "state.json").read_text())
    return state["heads"].get(run_id)


def errors(loopback, silo_id):
    return loopback.metrics(silo_id)['chorale_silo_errors_total{kind="UpdateError"}']


def refused_updates(loopback, silo_id):
    """A silo's log lines about updates that it did not believe; each was counted before."""
    written, _newline, _unfinished = loopback.log(silo_id).rpartition("\n")
    lines = [json.loads(line) for line in written.splitlines() if "UpdateError" in line]
    return [line for line in lines if line["event"] == "instruction_failed"]


@pytest.mark.long
def test_a_signed_wrong_update_stops_every_silo_until_the_coordinator_is_honest(tmp_path):
    with cf.federation(tmp_path) as loopback:
        loopback.kill("coordinator")
        loopback.start_coordinator(
            module="tests.system.integration.hostile.wrong_update_coordinator"
        )
        for silo_id in cf.SILOS:
            loopback.start_silo(silo_id)
        plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=3))
        run_id = loopback.start_run(plan, adapter, token="wrong")
        last, _rounds = cf.watch_to_end(loopback, run_id)
        # Nobody trains for round 3 on an adapter that nobody adopted.
        assert last["run"]["state"] == "failed", last
        assert "chain" in last["error"]
        records = loopback.chorale("adapter", "list", run_id, "--data", str(loopback.data_dir))
        good, wrong = (record["adapter_sha256"] for record in records["records"][1:])
        for silo_id in cf.SILOS:
            until(
                lambda silo_id=silo_id: refused_updates(loopback, silo_id), f"{silo_id} refuses it"
            )
            assert errors(loopback, silo_id) > 0
            head = chain_head(loopback, silo_id, run_id)
            assert (head["round"], head["adapter_sha256"]) == (1, good)
            kept = {path.name for path in (loopback.silo_dir(silo_id) / "adapters").iterdir()}
            assert good in kept
            assert wrong not in kept
            assert loopback.alive(silo_id)
            assert "byte for byte" in refused_updates(loopback, silo_id)[0]["detail"]
        # The same silos take part in the next run of an honest coordinator.
        loopback.kill("coordinator")
        since = len(loopback.log("coordinator"))
        loopback.start_coordinator()
        # A silo pauses for long after so many failures.
        cf.await_heard(loopback, since=since)
        plan.write_text(cf.plan_toml(rounds=1).replace('"protocol"', '"again"'))
        again = loopback.start_run(plan, adapter, token="honest")
        last, rounds = cf.watch_to_end(loopback, again)
        assert last["run"]["state"] == "finished", last
        assert tuple(rounds[0]["survivors"]) == cf.SILOS
        for silo_id in cf.SILOS:
            until(
                lambda silo_id=silo_id: chain_head(loopback, silo_id, again) is not None,
                f"{silo_id} has a head",
            )
            until(
                lambda silo_id=silo_id: chain_head(loopback, silo_id, again)["round"] == 1,
                f"{silo_id} is at round 1",
            )
            # A silo may still have been checking the wrong update when its coordinator ended; of
            # the honest run no update is refused.
            refused = refused_updates(loopback, silo_id)
            assert {line["identity"].rpartition("/")[0] for line in refused} == {run_id}
            assert errors(loopback, silo_id) == len(refused)
