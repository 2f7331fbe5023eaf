"""Environments that wait for somebody else: stepped together, each on its own clock."""

from __future__ import annotations

import threading
import time

import pytest

from evolution.envs.catalogue import ENVIRONMENTS, make
from evolution.envs.foreign.agentgym import AgentGymEnvironment
from evolution.envs.foreign.foreign import Breaker
from evolution.envs.foreign.gym import GymEnvironment
from evolution.envs.foreign.openenv import OpenEnvEnvironment
from evolution.errors import TryTimeError
from evolution.rollout.episodes import run_episodes
from evolution.rollout.own_time import AT_ONCE, OwnTime
from evolution.trajectory import Task
from tests.kit.evolution.frail import BAD, Engine, Frail

COUNT = 16
TASKS = [Task(environment="frail", task_id=index) for index in range(COUNT)]
STEP_S = 0.1


def played(make_one, tasks=TASKS, **options):
    return run_episodes(
        Engine(),
        tasks,
        temperature=0.0,
        seed=0,
        batch_size=64,
        make_environment=lambda _: make_one(),
        **options,
    )


class Remote(Frail):
    """Its server takes its time."""

    waits = True

    def step(self, action):
        time.sleep(STEP_S)
        return super().step(action)


def test_so_many_steps_take_about_as_long_as_one():
    began = time.monotonic()
    batch = played(Remote)
    took_s = time.monotonic() - began
    assert len(batch.trajectories) == COUNT
    # Two turns; one after the other they would take 32 times as long as a step.
    assert took_s < COUNT * STEP_S
    quick = played(Frail)
    assert batch.trajectories == quick.trajectories


def test_all_of_them_are_under_way_at_once():
    """Nobody comes back before everybody is there."""
    for limit in (None, 30.0):
        barrier = threading.Barrier(COUNT)

        class Meeting(Frail):
            waits = True

            def meet(self, place, barrier=barrier):
                if place in {"reset", "step"}:
                    barrier.wait(20)
                super().meet(place)

        assert played(Meeting, try_s=limit).dropped == 0


def test_quick_environments_are_called_one_after_the_other_right_here():
    seen = set()

    class Here(Frail):
        def meet(self, place):
            seen.add((place, threading.get_ident()))

    played(Here)
    assert seen == {
        (place, threading.get_ident()) for place in ("reset", "step", "success", "close")
    }
    assert not any(make(name).waits for name in ENVIRONMENTS if name != "babyai")
    assert AgentGymEnvironment.waits
    assert OpenEnvEnvironment.waits
    # It runs here, and was written for one thread.
    assert not GymEnvironment.waits


@pytest.mark.parametrize("place", ["reset", "step", "success"])
def test_one_that_fails_costs_its_own_episode_alone(monkeypatch, place):
    monkeypatch.setattr(Remote, "fails_in", place)
    batch = played(Remote)
    assert batch.dropped == 1
    assert [t.task.task_id for t in batch.trajectories] == [i for i in range(COUNT) if i != BAD]


def test_one_that_hangs_uses_its_own_time_alone(monkeypatch):
    release = threading.Event()

    class Hanging(Remote):
        def step(self, action):
            if self.task_id == BAD:
                release.wait(60)
            return super().step(action)

    try:
        batch = played(Hanging, try_s=20 * STEP_S)
    finally:
        release.set()
    assert batch.dropped == 1
    assert [t.task.task_id for t in batch.trajectories] == [i for i in range(COUNT) if i != BAD]


def test_waiting_for_a_thread_uses_no_time_and_threads_are_bounded():
    clock, lock = OwnTime(5 * STEP_S), threading.Lock()
    under_way, most = [0], [0]

    def act():
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        time.sleep(STEP_S)
        with lock:
            under_way[0] -= 1
        return threading.get_ident()

    # Seven shifts of STEP_S each are more than any try may take.
    found = clock.call_together([(key, act) for key in range(7 * AT_ONCE)])
    clock.close()
    threads = {future.result() for future in found}
    assert len(threads) == most[0] == AT_ONCE


def test_what_is_asked_after_the_end_of_its_time_is_not_called():
    clock = OwnTime(STEP_S)
    release = threading.Event()
    (late,) = clock.call_together([(1, lambda: release.wait(60))])
    called = []
    again, other = clock.call_together([(1, lambda: called.append(1)), (2, lambda: "other")])
    release.set()
    clock.close()
    for future, match in ((late, "did not come back"), (again, "used its time up")):
        with pytest.raises(TryTimeError, match=match):
            future.result()
    assert (called, other.result()) == ([], "other")


def test_a_breaker_counts_every_failure_of_many_threads():
    breaker = Breaker(failures=8_001, clock=lambda: 0.0)
    threads = [
        threading.Thread(target=lambda: [breaker.note(answered=False) for _ in range(1_000)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    breaker.require_closed()
    breaker.note(answered=False)
    with pytest.raises(Exception, match="left alone"):
        breaker.require_closed()
