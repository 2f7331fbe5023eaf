"""What one task's environment or conversation does to the others: nothing."""

from __future__ import annotations

import itertools

import pytest

from evolution.rollout.episodes import run_episodes
from tests.kit.evolution.frail import BAD, TASKS, Engine, Frail

OTHERS = [task.task_id for task in TASKS if task.task_id != BAD]


def played(engine, *, batch_size=4, make=None):
    found = run_episodes(
        engine,
        TASKS,
        temperature=0.0,
        seed=0,
        batch_size=batch_size,
        make_environment=make or (lambda _: Frail()),
    )
    return [trajectory.task.task_id for trajectory in found.trajectories], found.dropped


@pytest.mark.parametrize("place", ["reset", "step", "success", "reset close"])
@pytest.mark.parametrize("batch_size", [1, 4, 12])
def test_an_environment_that_fails_costs_its_own_task_alone(monkeypatch, place, batch_size):
    monkeypatch.setattr(Frail, "fails_in", place)
    assert played(Engine(), batch_size=batch_size) == (OTHERS, 1)


def test_an_environment_that_cannot_be_closed_costs_nothing(monkeypatch):
    monkeypatch.setattr(Frail, "fails_in", "close")
    assert played(Engine(), batch_size=12) == ([task.task_id for task in TASKS], 0)


def test_an_environment_that_cannot_be_made_costs_one_episode():
    made = itertools.count()

    def make(_):
        if next(made) == BAD:
            raise OSError("no more processes")
        return Frail()

    assert played(Engine(), batch_size=12, make=make) == (OTHERS, 1)


@pytest.mark.parametrize(
    ("fails", "expected"),
    [
        ("parse", (OTHERS, 1)),
        ("alone", (OTHERS, 1)),
        # It answers alone what it cannot answer in a batch.
        ("together", ([task.task_id for task in TASKS], 0)),
    ],
)
def test_a_conversation_that_fails_costs_its_own_task_alone(fails, expected):
    assert played(Engine(fails)) == expected
