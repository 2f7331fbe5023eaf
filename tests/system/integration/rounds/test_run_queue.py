"""Several runs, queued, paused and resumed over a coordinator's death: real processes over mTLS.

The runs make no noise and contribute known patterns, so an adapter tells how many rounds are in it
and of whom.
"""

import json
import subprocess
import sys

import numpy as np
import pytest

from chorale.v1 import admin_pb2
from lab.loopback import LoopbackError
from server.cli.client import connect, plain
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

pytestmark = [pytest.mark.xdist_group("run_queue"), pytest.mark.long]

SILOS = cf.SILOS[:3]


@pytest.fixture(scope="module")
def loopback(tmp_path_factory):
    with cf.federation(tmp_path_factory.mktemp("queue"), silos=SILOS) as made:
        for silo in SILOS:
            made.start_silo(silo)
        yield made


def chorale(loopback, *arguments):
    return loopback.chorale(*map(str, arguments), "--data", str(loopback.data_dir))


def runs(loopback):
    with connect(loopback.data_dir) as stub:
        found = stub.ListRuns(admin_pb2.ListRunsRequest(), timeout=60).runs
    return {run.run_id: plain(run) for run in found}


def first_status(loopback, run_id):
    for status in loopback.watch(run_id):
        return status
    raise AssertionError("no status")


def adopted(loopback, silo, run_id):
    """How many records of a run a silo has taken over."""
    lines = loopback.log(silo).splitlines()
    return sum("adapter_adopted" in line and run_id in line for line in lines)


def require_rounds(loopback, adapter_sha256, rounds):
    """The initial adapter plus so many times the mean of the silos' patterns."""
    grid = cf.GRID / cf.CLIP
    total = sum(cf.fixed_point(cf.VALUES[silo]) for silo in SILOS)
    step = (total / (grid * len(SILOS))).astype(np.float64)
    expected = cf.flat(cf.initial_tensors()).astype(np.float32)
    for _ in range(rounds):
        expected = (expected.astype(np.float64) + step).astype(np.float32)
    np.testing.assert_array_equal(cf.flat(cf.published(loopback, adapter_sha256)), expected)


def test_runs_wait_rest_and_go_on_over_a_coordinators_death(loopback):
    plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=3))
    endless = loopback.directory / "endless.toml"
    endless.write_text(cf.plan_toml(rounds=100, ready_after_s=2))
    holder = loopback.start_run(endless, adapter, token="holder")
    second, third, fourth = [loopback.start_run(plan, adapter, token=t) for t in ("2", "3", "4")]
    # The same request finds the same run; another one under its token is refused.
    assert loopback.start_run(plan, adapter, token="2") == second
    with pytest.raises(LoopbackError, match=f"submit token started run {second}"):
        loopback.start_run(endless, adapter, token="2")
    behind = {run_id: run["behind"] for run_id, run in runs(loopback).items()}
    assert behind == {holder: "", second: holder, third: second, fourth: third}
    status = first_status(loopback, third)
    assert (status["run"]["state"], status["run"]["behind"]) == ("queued", second)
    assert status["run"]["state_since_unix_s"] > 0

    assert chorale(loopback, "run", "pause", third)["state"] == "paused"
    loopback.kill("coordinator")
    loopback.start_coordinator()
    found = runs(loopback)
    states = [found[run_id]["state"] for run_id in (holder, second, third, fourth)]
    assert states == ["running", "queued", "paused", "queued"]
    assert found[fourth]["behind"] == second
    chorale(loopback, "run", "abort", holder)
    last, finished = cf.watch_to_end(loopback, fourth)
    assert last["run"]["state"] == "finished"
    assert len(finished) == 3
    found = runs(loopback)
    states = [found[run_id]["state"] for run_id in (holder, second, third, fourth)]
    assert states == ["aborted", "finished", "paused", "finished"]
    assert first_status(loopback, third)["run"]["state"] == "paused"
    assert chorale(loopback, "run", "resume", third)["behind"] == ""
    last, _ = cf.watch_to_end(loopback, third)
    assert last["run"]["state"] == "finished"
    for run_id in (second, third, fourth):
        require_rounds(loopback, runs(loopback)[run_id]["adapter_sha256"], 3)
        for silo in SILOS:
            # Nobody missed the last adapter of a run because the next one followed at once.
            until(
                lambda silo=silo, run_id=run_id: adopted(loopback, silo, run_id) == 4,
                f"{silo} adopts four",
            )
    events = [json.loads(line)["event"] for line in audit(loopback)]
    counted = {name: events.count(f"run_{name}") for name in ("queued", "resumed", "unpaused")}
    assert counted == {"queued": 3, "resumed": 1, "unpaused": 1}


def audit(loopback):
    return (loopback.data_dir / "audit.jsonl").read_text().splitlines()


def test_a_run_is_paused_in_the_middle_and_loses_nothing(loopback):
    rounds = 6
    plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=rounds, ready_after_s=2))
    run_id = loopback.start_run(plan, adapter, token="middle")
    with connect(loopback.data_dir) as stub:
        state = stub.PauseRun(admin_pb2.PauseRunRequest(run_id=run_id), timeout=60).state
    assert state in {"paused", "pausing"}
    until(lambda: runs(loopback)[run_id]["state"] == "paused", "the run is paused")
    at = runs(loopback)[run_id]["round"]
    assert at < rounds
    loopback.kill("coordinator")
    loopback.start_coordinator()
    assert runs(loopback)[run_id]["state"] == "paused"
    assert runs(loopback)[run_id]["round"] == at
    chorale(loopback, "run", "resume", run_id)
    last, finished = cf.watch_to_end(loopback, run_id)
    assert last["run"]["state"] == "finished"
    assert [done["round"] for done in finished] == list(range(1, rounds + 1))
    assert {done["outcome"] for done in finished} == {"aggregated"}
    require_rounds(loopback, last["run"]["adapter_sha256"], rounds)


def test_aborting_and_watching_from_the_command_line(loopback):
    plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=50, ready_after_s=2))
    first = loopback.start_run(plan, adapter, token="long")
    second = loopback.start_run(plan, adapter, token="never")
    with subprocess.Popen(
        [
            sys.executable, "-m", "server.cli.main", "run", "watch", second,
            "--data", str(loopback.data_dir),
        ],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as watching:  # fmt: skip
        assert watching.stderr.readline() == f"{second} queued behind {first}\n"
        chorale(loopback, "run", "abort", first)
        # Between the two it may be seen waiting for nobody.
        line = watching.stderr.readline()
        if line == f"{second} queued\n":
            line = watching.stderr.readline()
        assert line == f"{second} running\n"
        chorale(loopback, "run", "abort", second)
        assert watching.wait(timeout=120) == 1
        assert f"run {second} ended as aborted" in watching.stderr.read()
        # How it ended is the result, though the command failed.
        assert watching.stdout.read().splitlines()[0].startswith(f"{second}  aborted  ")
    for run_id in (first, second):
        with pytest.raises(LoopbackError, match="is over"):
            chorale(loopback, "run", "resume", run_id)
