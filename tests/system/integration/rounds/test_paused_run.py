"""A run that is paused while another one goes on: the silos still have the work they did for it."""

import pytest

from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

pytestmark = [pytest.mark.xdist_group("paused_run"), pytest.mark.long]


def test_what_silos_had_ready_for_a_paused_run_is_still_ready_after_another_run(tmp_path):
    with cf.federation(tmp_path) as loopback:
        for silo in cf.SILOS[:3]:
            loopback.start_silo(silo)

        def chorale(*arguments):
            return loopback.chorale(*arguments, "--data", str(loopback.data_dir))

        def state(run_id):
            found = chorale("run", "list")["runs"]
            return next(run["state"] for run in found if run["run_id"] == run_id)

        # All four must be ready, and the fourth is not there yet: three have done their work.
        # With noise: the run between has three of them, and without it the fourth would stay out.
        noisy = cf.plan_toml(mode="silo", noise=0.05)
        plan, adapter = cf.write_run(loopback, noisy.replace("quorum = 3", "quorum = 4"))
        paused = loopback.start_run(plan, adapter, token="paused")
        for status in loopback.watch(paused):
            silent = [silo["silo_id"] for silo in status["current"]["waiting_for"]]
            if silent == [cf.SILOS[3]]:
                break
        chorale("run", "pause", paused)
        plan, adapter = cf.write_run(loopback, noisy)
        last, _ = cf.watch_to_end(loopback, loopback.start_run(plan, adapter, token="between"))
        assert last["run"]["state"] == "finished"
        chorale("run", "resume", paused)
        loopback.start_silo(cf.SILOS[3])
        until(lambda: state(paused) == "finished", "the paused run finishes")
        last, rounds = cf.watch_to_end(loopback, paused)
        assert rounds[0]["survivors"] == list(cf.SILOS)
