"""What one task's environment or conversation does to the others: nothing."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from evolution.envs.environment import Environment
from evolution.rollout.engine import Generation
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task

BAD = 5
TASKS = [Task(environment="frail", task_id=index) for index in range(12)]
OTHERS = [task.task_id for task in TASKS if task.task_id != BAD]


class Frail(Environment):
    """Its process dies with the bad task, and stays dead."""

    name = family = "frail"
    max_steps = 2
    labels = ("only",)
    fails_in = ""

    def __init__(self):
        self.task_id, self.dead, self.turns = -1, False, 0

    def meet(self, place):
        self.dead = self.dead or (self.task_id == BAD and place in self.fails_in)
        if self.dead:
            raise RuntimeError("no process")

    @property
    def instruction(self):
        return "go"

    def reset(self, task_id):
        self.task_id, self.turns = task_id, 0
        self.meet("reset")
        return str(task_id), {}

    def step(self, action):
        self.meet("step")
        self.turns += 1
        return str(self.task_id), 0.0, self.turns == 2, False, {}

    def success(self, info):
        self.meet("success")
        return True

    def close(self):
        self.meet("close")


class Engine:
    """Answers every prompt with its conversation's task, and keeps count."""

    context_limit = 1000
    adapter_version = "v"

    def __init__(self, fails=""):
        self.fails = fails
        self.chat = SimpleNamespace(
            opening=lambda _, observation: [int(observation)],
            next_turn=lambda observation: [int(observation)],
            parse_action=self.parse,
            turn_end_id=0,
        )

    def parse(self, token_ids):
        if self.fails == "parse" and BAD in token_ids:
            raise ValueError("an answer that is no text")
        return "act"

    def generate(self, prompts, sampling):
        bad = [prompt for prompt in prompts if prompt.token_ids[0] == BAD]
        if bad and (self.fails == "alone" or (self.fails == "together" and len(prompts) > 1)):
            raise MemoryError("out of memory")
        return [
            Generation(token_ids=(prompt.token_ids[0],), logprobs=(0.0,), ended=True)
            for prompt in prompts
        ]


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
