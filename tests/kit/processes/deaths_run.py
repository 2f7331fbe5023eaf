"""A run whose coordinator is killed at chosen instants."""

from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

MODULE = "tests.kit.processes.dying_coordinator"


def run_through_deaths(loopback, deaths, plan, adapter, environment=None, *, silos=cf.SILOS):
    """Start a run under a coordinator that dies as told, start it again each time, to the end."""
    done = loopback.directory / "deaths"
    loopback.kill("coordinator")
    loopback.environment = {
        **(environment or {}),
        "CHORALE_TEST_DEATHS": ",".join(deaths),
        "CHORALE_TEST_DEATHS_DONE": str(done),
    }
    loopback.start_coordinator(module=MODULE)
    for silo_id in silos:
        loopback.start_silo(silo_id)
    cf.await_heard(loopback, silos)
    run_id = loopback.start_run(plan, adapter, token="restart")
    for _ in deaths:
        until(
            lambda: not loopback.alive("coordinator"),
            "the coordinator dies",
            told=lambda: loopback.log("coordinator"),
        )
        loopback.start_coordinator(module=MODULE)
    assert sorted(done.read_text().split()) == sorted(deaths)
    last, rounds = cf.watch_to_end(loopback, run_id)
    assert last["run"]["state"] == "finished", last
    return last, rounds
