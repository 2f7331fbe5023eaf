"""A try whose environment sleeps ends alone; the others do not even see it."""

import threading
import time

import pytest

from evolution.rollout.episodes import run_episodes
from evolution.rollout.own_time import OwnTime
from tests.kit.evolution.frail import BAD, TASKS, Engine, Frail

LIMIT_S = 0.5
OTHERS = [task.task_id for task in TASKS if task.task_id != BAD]


class Sleeper(Frail):
    """Its bad task does not come back until the test lets it."""

    wake = threading.Event()
    sleeps_in = ""

    def meet(self, place):
        if self.task_id == BAD and place in self.sleeps_in:
            assert self.wake.wait(60)
            self.sleeps_in = ""


@pytest.fixture(autouse=True)
def wake(monkeypatch):
    event = threading.Event()
    monkeypatch.setattr(Sleeper, "wake", event)
    yield event
    event.set()


def played(**options):
    found = run_episodes(
        Engine(),
        TASKS,
        temperature=0.0,
        seed=0,
        batch_size=4,
        make_environment=lambda _: Sleeper(),
        **options,
    )
    return found.trajectories, found.dropped


@pytest.mark.parametrize("place", ["reset", "step", "success"])
def test_a_try_that_sleeps_is_dropped_and_every_other_one_is_the_same(monkeypatch, place, wake):
    honest, _ = played()
    monkeypatch.setattr(Sleeper, "sleeps_in", place)
    began = time.monotonic()
    found, dropped = played(try_s=LIMIT_S)
    assert time.monotonic() - began < 30
    assert dropped == 1
    assert found == tuple(one for one in honest if one.task.task_id != BAD)
    # What comes back later is heard by nobody.
    wake.set()
    assert [one.task.task_id for one in found] == OTHERS


def test_a_sleep_in_closing_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(Sleeper, "sleeps_in", "step close")
    found, dropped = played(try_s=LIMIT_S)
    assert ([one.task.task_id for one in found], dropped) == (OTHERS, 1)


def test_an_environment_that_forgets_its_own_end_is_ended_unsolved(monkeypatch):
    def endless(self, action):
        self.turns += 1
        return str(self.task_id), 0.0, False, False, {}

    monkeypatch.setattr(Frail, "step", endless)
    found, dropped = played()
    assert dropped == 0
    assert {(len(one.steps), one.success) for one in found} == {(Frail.max_steps, False)}


def test_the_calls_of_a_try_share_its_time_and_nobody_elses(wake):
    clock = OwnTime(LIMIT_S)
    assert clock.call(1, lambda: "early") == "early"
    with pytest.raises(ValueError, match="its own"):
        clock.call(1, int, "its own")
    with pytest.raises(Exception, match="did not come back"):
        clock.call(1, wake.wait, 60)
    with pytest.raises(Exception, match="used its time up"):
        clock.call(1, lambda: "too late")
    assert clock.call(2, lambda: "another") == "another"
    clock.close()
    assert OwnTime(None).call(1, threading.get_ident) == threading.get_ident()
