"""Bad input over real processes: a typed error, a counter, and both daemons alive afterwards."""

import os
import signal

import grpc
import numpy as np
import pytest

from chorale.v1 import admin_pb2
from lab.loopback import LoopbackError
from server.cli.client import connect, start_parts
from tests.kit.processes import constant_federation as cf


def start_all(loopback, faulty=None, environment=None):
    for silo_id in cf.SILOS[:3]:
        loopback.start_silo(silo_id)
    loopback.environment = environment or {}
    loopback.start_silo(cf.SILOS[3], module=faulty or "silo_agent.cli.main")


def run(loopback, plan, token="bad"):
    plan_file, adapter = cf.write_run(loopback, plan)
    cf.await_heard(loopback)
    return cf.watch_to_end(loopback, loopback.start_run(plan_file, adapter, token=token))


def assert_all_alive(loopback):
    for name in ("coordinator", *cf.SILOS):
        assert loopback.alive(name), loopback.log(name)[-2000:]


def total(samples, prefix):
    return sum(value for name, value in samples.items() if name.startswith(prefix))


def test_nan_delta_goes_up_as_zeros(tmp_path):
    with cf.federation(tmp_path) as loopback:
        cf.configure(loopback, cf.SILOS[3], value="nan")
        start_all(loopback)
        last, rounds = run(loopback, cf.plan_toml())
        assert tuple(rounds[0]["survivors"]) == cf.SILOS
        summed = sum(cf.fixed_point(cf.VALUES[silo_id]) for silo_id in cf.SILOS[:3])
        mean = summed.astype(np.float64) / ((cf.GRID / cf.CLIP) * len(cf.SILOS))
        expected = (cf.flat(cf.initial_tensors()).astype(np.float64) + mean).astype(np.float32)
        result = cf.flat(cf.published(loopback, last["run"]["adapter_sha256"]))
        np.testing.assert_array_equal(result, expected)
        assert total(loopback.metrics(cf.SILOS[3]), "chorale_silo_nonfinite_deltas_total") == 1
        assert "nan" not in loopback.log("coordinator").lower()
        assert_all_alive(loopback)


@pytest.mark.parametrize(
    ("switch", "reason"),
    [
        pytest.param("CHORALE_TEST_TRUNCATE", "upload", marks=pytest.mark.long),
        ("CHORALE_TEST_WRONG_ROUND", "round"),
    ],
)
def test_a_bad_upload_costs_only_its_sender_and_only_once(tmp_path, switch, reason):
    with cf.federation(tmp_path) as loopback:
        cf.let_cohorts_vary(loopback)
        start_all(loopback, "tests.kit.processes.faulty_silo", {switch: "1"})
        last, rounds = run(loopback, cf.plan_toml(rounds=2))
        assert last["run"]["state"] == "finished"
        assert tuple(rounds[0]["survivors"]) == cf.SILOS[:3]
        assert tuple(rounds[1]["survivors"]) == cf.SILOS
        refused = {
            name: value
            for name, value in loopback.metrics("coordinator").items()
            if name.startswith("chorale_rejected_messages_total") and value > 0
        }
        assert any(reason in name for name in refused), refused
        assert total(loopback.metrics(cf.SILOS[3]), "chorale_silo_errors_total") >= 1
        assert_all_alive(loopback)


@pytest.mark.long
def test_wrong_base_model_is_accepted_by_no_silo_and_stops_the_run(tmp_path):
    with cf.federation(tmp_path) as loopback:
        start_all(loopback)
        plan = cf.plan_toml().replace(cf.NO_MODEL, "ab" * 32)
        last, rounds = run(loopback, plan)
        assert last["run"]["state"] == "failed"
        assert rounds == []
        assert "quorum" in last["error"]
        counter = "chorale_silo_policy_decisions_total{decision="
        samples = [loopback.metrics(silo_id) for silo_id in cf.SILOS]
        # Two refusals put the quorum out of reach; the others may not have been asked any more.
        assert sum(total(of_silo, f'{counter}"refuse"') >= 1 for of_silo in samples) >= 2
        assert not any(total(of_silo, f'{counter}"accept"') for of_silo in samples)
        assert_all_alive(loopback)


def test_unknown_key_in_a_plan_is_refused_with_its_name(tmp_path):
    with cf.federation(tmp_path) as loopback:
        start_all(loopback)
        plan_file, adapter = cf.write_run(loopback, cf.plan_toml(extra="every_round = 2"))
        with pytest.raises(LoopbackError, match="every_rounds"):
            loopback.start_run(plan_file, adapter, token="unknown")
        # The command looks before it sends; a caller that does not meets the same refusal.
        parts = start_parts(
            plan=plan_file.read_bytes(), adapter=adapter.read_bytes(), submit_token="unknown"
        )
        with connect(loopback.data_dir) as stub, pytest.raises(grpc.RpcError) as caught:
            stub.StartRun(parts, timeout=30)
        assert dict(caught.value.trailing_metadata())["chorale-reason"] == "plan_refused"
        counter = 'chorale_rejected_messages_total{reason="plan_refused"}'
        assert loopback.metrics("coordinator")[counter] == 1
        assert_all_alive(loopback)


def records_of(loopback, run_id):
    listed = loopback.chorale("adapter", "list", run_id, "--data", str(loopback.data_dir))
    return [record["adapter_sha256"] for record in listed["records"]]


def signal_silos(loopback, number):
    for silo_id in cf.SILOS:
        os.kill(loopback.pid(silo_id), number)


@pytest.mark.long
def test_coordinator_killed_between_rounds_goes_on_from_the_same_adapter(tmp_path):
    with cf.federation(tmp_path) as loopback:
        plan_file, adapter = cf.write_run(loopback, cf.plan_toml(rounds=6, ready_after_s=1))
        run_id = loopback.start_run(plan_file, adapter, token="crash")
        # Only now, so that no round is over before it is watched.
        start_all(loopback)
        stopped = False
        with connect(loopback.data_dir) as calls:
            for status in calls.WatchRun(admin_pb2.WatchRunRequest(run_id=run_id)):
                if not stopped and status.run.round >= 2:
                    # Held still, so that the coordinator waits at the beginning of a round.
                    signal_silos(loopback, signal.SIGSTOP)
                    stopped = True
                elif stopped and status.current.phase == "training":
                    break
        before = records_of(loopback, run_id)
        assert before[-1] == status.run.adapter_sha256.hex()
        assert 3 <= len(before) < 7
        loopback.kill("coordinator")
        loopback.start_coordinator()
        # Nothing was lost, before anything new can be added: the silos are still held.
        assert records_of(loopback, run_id) == before
        signal_silos(loopback, signal.SIGCONT)
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        after = records_of(loopback, run_id)
        assert after[: len(before)] == before
        assert len(after) == 7
        cf.await_adopted(loopback, after[-1])
        assert len({r["round"] for r in rounds}) == len(rounds) == 6
        assert_all_alive(loopback)


@pytest.mark.long
def test_coordinator_killed_while_silos_work_goes_on_too(tmp_path):
    with cf.federation(tmp_path) as loopback:
        start_all(loopback)
        plan_file, adapter = cf.write_run(loopback, cf.plan_toml(rounds=6))
        run_id = loopback.start_run(plan_file, adapter, token="crash")
        for status in loopback.watch(run_id):
            if status["run"]["round"] >= 2:
                break
        loopback.kill("coordinator")
        seen, adapter_sha256 = status["run"]["round"], status["run"]["adapter_sha256"]
        loopback.start_coordinator()
        assert records_of(loopback, run_id)[seen] == adapter_sha256
        last, _ = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        after = records_of(loopback, run_id)
        assert after[seen] == adapter_sha256
        assert len(after) == 7
        assert_all_alive(loopback)
