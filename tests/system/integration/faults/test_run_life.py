"""Real processes: a training is charged once over a restart, and not at all for a run that is over.

One federation. In its first run a silo is interrupted when its training is done and three others
are not all there yet; in its second the admin aborts the run while that silo still explores.

Not failures: a silo that is not in an attempt because it was just started. Failures: a second
charge, a second training, a charge for a run that is over, work that goes on for it.
"""

import os
import signal
from functools import partial

import pytest

from silo_agent.books.budget import read_budget
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

pytestmark = [pytest.mark.xdist_group("run_life"), pytest.mark.long]

ONE, LAST = cf.SILOS[0], cf.SILOS[3]
PLAN = cf.plan_toml(
    mode="record_local",
    noise=2.0,
    extra=f"""
[privacy.record]
sampling_rate = 0.5
expected_units = 8
steps_per_round = 4
delta_clip_l2 = {cf.CLIP}
""",
).replace("quorum = 3", "quorum = 4")
WAITS_LONG = PLAN.replace("ready_deadline_s = 60", "ready_deadline_s = 600")


def charged(loopback, silo, run_id):
    """What a silo's ledger was charged for a run; None if it was not."""
    found = read_budget(loopback.silo_dir(silo), delta=1e-5, caps={})
    return next((run for run in found.runs if run.run == run_id), None)


def await_line(loopback, name, *words, since=0):
    until(
        lambda: any(
            all(w in line for w in words) for line in loopback.log(name)[since:].splitlines()
        ),
        f"{name} says {words}",
        told=partial(loopback.log, name),
    )


def results(loopback, silo):
    return sorted((loopback.silo_dir(silo) / "results").glob("*"))


def test_an_interrupt_is_not_charged_twice_and_the_end_of_a_run_not_at_all(tmp_path):
    with cf.federation(tmp_path) as loopback:
        for silo in cf.SILOS[:3]:
            loopback.start_silo(silo)
        plan, adapter = cf.write_run(loopback, WAITS_LONG)
        run_id = loopback.start_run(plan, adapter, token="interrupted")
        for status in loopback.watch(run_id):
            if [silo["silo_id"] for silo in status["current"]["waiting_for"]] == [LAST]:
                break
        (kept,) = results(loopback, ONE)
        trained = kept.read_bytes()
        assert charged(loopback, ONE, run_id).trainings == 1

        os.kill(loopback.pid(ONE), signal.SIGINT)
        until(lambda: not loopback.alive(ONE), "the silo ends")
        assert results(loopback, ONE) == [kept]
        before = len(loopback.log(ONE))
        loopback.start_silo(ONE)
        await_line(loopback, ONE, "result_found", run_id, since=before)
        assert kept.read_bytes() == trained
        loopback.start_silo(LAST)
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        assert rounds[0]["survivors"] == list(cf.SILOS)
        cf.await_adopted(loopback, last["run"]["adapter_sha256"])
        for silo in cf.SILOS:
            cost = charged(loopback, silo, run_id)
            assert (cost.trainings, cost.trainings_beyond, cost.attempts) == (1, 0, 1)
            until(lambda silo=silo: not results(loopback, silo), f"{silo} keeps nothing")

        # The second run: one silo explores, and its charge is still to come.
        os.kill(loopback.pid(ONE), signal.SIGINT)
        until(lambda: not loopback.alive(ONE), "the silo ends")
        hold, before = tmp_path / "hold", len(loopback.log(ONE))
        hold.touch()
        loopback.environment = {"CHORALE_TEST_HOLD": str(hold)}
        loopback.start_silo(ONE, module="tests.kit.processes.faulty_silo")
        loopback.environment = {}
        run_id = loopback.start_run(plan, adapter, token="aborted")
        for status in loopback.watch(run_id):
            if [silo["silo_id"] for silo in status["current"]["waiting_for"]] == [ONE]:
                break
        loopback.chorale("run", "abort", run_id, "--data", str(loopback.data_dir))
        await_line(loopback, ONE, "work_called_off", run_id, since=before)
        hold.unlink()
        assert charged(loopback, ONE, run_id) is None
        # Those who had trained stay charged, and say so; nothing of it is kept.
        others = charged(loopback, LAST, run_id)
        assert (others.trainings, others.trainings_beyond) == (1, 1)
        until(lambda: not results(loopback, LAST), "what was ready goes")
        assert results(loopback, ONE) == []

        # And it works for the next run as if nothing had been.
        run_id = loopback.start_run(plan, adapter, token="next")
        last, _ = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        assert charged(loopback, ONE, run_id).trainings == 1
