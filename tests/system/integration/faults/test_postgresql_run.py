"""A coordinator on PostgreSQL, with real daemons: killed in mid-round, cut off from its database.

No failure: a pause. A failure: a sum that is not exact, a second attempt where the first could go
on, a password in a log.
"""

import time

import numpy as np
import pytest

from tests.kit.processes import constant_federation as cf
from tests.kit.processes.deaths_run import run_through_deaths
from tests.kit.waiting import until

pytestmark = pytest.mark.long

DEATHS = ("1:share_keys:3", "2:fold:2", "3:consistency_check:2", "4:aggregate:0")


def require_exact(loopback, last, rounds):
    total = sum(cf.fixed_point(cf.VALUES[silo_id]) for silo_id in cf.SILOS)
    mean = total.astype(np.float64) / ((cf.GRID / cf.CLIP) * len(cf.SILOS))
    expected = cf.flat(cf.initial_tensors())
    for _ in rounds:
        expected = (expected.astype(np.float64) + mean).astype(np.float32)
    result = cf.flat(cf.published(loopback, last["run"]["adapter_sha256"]))
    np.testing.assert_array_equal(result, expected)


def on_postgresql(tmp_path, server):
    """The password comes in the environment alone."""
    url = server.url(server.database())
    return cf.federation(tmp_path, environment={"CHORALE_COORDINATOR_DATABASE_URL": url})


def require_no_password(loopback, server):
    for path in (*loopback.directory.joinpath("logs").iterdir(), *loopback.data_dir.rglob("*")):
        if path.is_file():
            assert server.password.encode() not in path.read_bytes(), path
    assert not (loopback.data_dir / "coordinator.db").exists()


def test_a_round_survives_the_death_of_its_coordinator(tmp_path, postgresql):
    with on_postgresql(tmp_path, postgresql) as loopback:
        url = loopback.environment["CHORALE_COORDINATOR_DATABASE_URL"]
        plan, adapter = cf.write_run(
            loopback, cf.plan_toml(rounds=len(DEATHS), phase_deadline_s=20)
        )
        environment = {"CHORALE_COORDINATOR_DATABASE_URL": url}
        last, rounds = run_through_deaths(loopback, DEATHS, plan, adapter, environment)
        for figures in rounds:
            assert (figures["outcome"], int(figures["attempt"])) == ("aggregated", 1), figures
            assert tuple(figures["survivors"]) == cf.SILOS
        assert loopback.log("coordinator").count("attempt_resumed") == len(DEATHS)
        require_exact(loopback, last, rounds)
        require_no_password(loopback, postgresql)


def test_a_run_outlasts_a_restart_of_its_database(tmp_path, postgresql):
    with on_postgresql(tmp_path, postgresql) as loopback:
        for silo_id in cf.SILOS:
            loopback.start_silo(silo_id)
        cf.await_heard(loopback)
        plan, adapter = cf.write_run(
            loopback, cf.plan_toml(rounds=4, phase_deadline_s=30, ready_after_s=3)
        )
        run_id = loopback.start_run(plan, adapter, token="outage")
        statuses = loopback.watch(run_id)
        assert next(statuses)["run"]["run_id"] == run_id
        assert any(status["run"]["round"] >= 1 for status in statuses)
        postgresql.stop()
        until(
            lambda: "the database failed" in loopback.log("coordinator"),
            "the coordinator says that the database failed",
            told=lambda: loopback.log("coordinator"),
        )
        # Silos and the watcher are turned away meanwhile, and come again.
        time.sleep(2)
        postgresql.start()
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        assert [figures["outcome"] for figures in rounds] == ["aggregated"] * 4
        for figures in rounds:
            assert tuple(figures["survivors"]) == cf.SILOS
        require_exact(loopback, last, rounds)
        for silo_id in cf.SILOS:
            assert loopback.alive(silo_id)
        require_no_password(loopback, postgresql)
