"""Seats that are taken again as episodes end: who shares a batch with whom, and what comes out."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from evolution.envs.environment import Environment
from evolution.rollout.engine import Prompt, Sampling
from evolution.rollout.episodes import run_episodes
from evolution.rollout.hf import HfEngine
from evolution.trajectory import Task
from tests.kit.evolution.frail import Engine

LENGTHS = [9, 1, 1, 2, 1, 7, 1, 1, 3, 1, 1, 1]
TASKS = [Task(environment="ragged", task_id=index) for index in range(len(LENGTHS))]


class Ragged(Environment):
    """A task of so many turns as its place in the table says; ``fails`` are those that break."""

    name = family = "ragged"
    max_steps = 20
    labels = ("only",)

    def __init__(self, fails=()):
        self.fails, self.seen = fails, []

    @property
    def instruction(self):
        return "go"

    def reset(self, task_id):
        self.task_id, self.turns = task_id, 0
        self.seen.append(task_id)
        return str(task_id), {}

    def step(self, action):
        self.turns += 1
        if self.task_id in self.fails:
            raise RuntimeError("no process")
        return str(self.task_id), 0.0, self.turns == LENGTHS[self.task_id], False, {}

    def success(self, info):
        return True


class Noting(Engine):
    """Notes the keys of every batch."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def generate(self, prompts, sampling):
        self.batches.append([prompt.key for prompt in prompts])
        return super().generate(prompts, sampling)


def played(tasks=TASKS, *, fails=(), **options):
    engine, made = Noting(), []

    def make(_):
        made.append(Ragged(fails))
        return made[-1]

    batch = run_episodes(engine, tasks, temperature=0.0, seed=0, make_environment=make, **options)
    return batch, engine.batches, made


def test_a_batch_stays_full_until_no_task_is_left():
    batch, batches, made = played(batch_size=4)
    assert [len(one.steps) for one in batch.trajectories] == LENGTHS
    assert [one.task for one in batch.trajectories] == TASKS
    # Waves of four would have played 9 + 7 + 3 turns.
    assert len(batches) == 9
    assert [len(keys) for keys in batches[:6]] == [4] * 6
    assert len(made) == 4
    # Whoever stays keeps its seat: an engine need not move what it holds of it.
    for before, after in itertools.pairwise(batches[:6]):
        assert all(after[seat] == key for seat, key in enumerate(before) if key in after)


def test_an_environment_that_failed_is_not_lent_again():
    batch, _, made = played(batch_size=4, fails=(1, 5))
    assert batch.dropped == 2
    assert [t.task.task_id for t in batch.trajectories] == [0, 2, 3, 4, *range(6, 12)]
    assert all(one.seen[-1] in {1, 5} for one in made if {1, 5} & set(one.seen))
    assert Counter(task for one in made for task in one.seen) == Counter(range(12))


def test_tasks_that_are_played_apart_never_share_a_batch():
    tasks = [task for task in TASKS for _ in range(3)]
    batch, batches, _ = played(tasks, batch_size=2, apart=True)
    assert [one.task for one in batch.trajectories] == tasks
    shared = [{key // 3 for key in keys} for keys in batches]
    assert all(len(which) == 1 for which in shared)
    assert max(map(len, batches)) == 2
    _, together, _ = played(tasks, batch_size=2)
    assert any(len({key // 3 for key in keys}) == 2 for keys in together)


class InTwo(Noting):
    """Two lanes; notes what it is asked, and when its answers are waited for."""

    lanes = 2

    def __init__(self):
        super().__init__()
        self.events = []

    def ask(self, prompts, sampling):
        (lane,) = {prompt.key % 2 for prompt in prompts}
        self.events.append(("asked", lane))
        answers = super().ask(prompts, sampling)

        def waited():
            self.events.append(("waited", lane))
            return answers()

        return waited


def test_while_environments_of_one_lane_step_the_other_lane_is_answered():
    engine = InTwo()

    class Steps(Ragged):
        def step(self, action):
            engine.events.append(("stepped", self.task_id % 2))
            return super().step(action)

    batch = run_episodes(
        engine, TASKS, temperature=0.0, seed=0, make_environment=lambda _: Steps(), batch_size=5
    )
    expected, _, _ = played()
    assert batch.trajectories == expected.trajectories
    # No more than five at once in all.
    assert [len(keys) for keys in engine.batches[:2]] == [2, 3]
    out, alone = [0, 0], 0
    for event, lane in engine.events:
        out[lane] += {"asked": 1, "waited": -1}.get(event, 0)
        assert max(out) <= 1
        alone += event == "stepped" and not out[1 - lane]
    # Of 29 steps only those of the longest lane, when the other one has ended.
    assert 0 < alone < 10


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_real_episodes_of_unlike_length_are_those_of_waves(tiny_base, temperature):
    """The cache takes in who joins: refilled, in waves and alone the same tokens come out."""
    tasks = [
        Task(environment=name, task_id=1_008_000 + index)
        for index in range(4)
        for name in ("craft", "wordle", "maze")
    ]
    engine = HfEngine(tiny_base)

    def play(size, tasks=tasks, keys=None):
        return run_episodes(
            engine,
            tasks,
            keys=keys,
            temperature=temperature,
            seed=7,
            max_new_tokens=6,
            batch_size=size,
        ).trajectories

    refilled = play(5)
    assert len({len(one.steps) for one in refilled}) > 1
    waves = [
        one
        for start in range(0, len(tasks), 5)
        for one in play(5, tasks[start : start + 5], list(range(start, len(tasks)))[:5])
    ]
    assert [t.token_ids for t in refilled] == [t.token_ids for t in waves]
    assert [t.token_ids for t in refilled] == [t.token_ids for t in play(1)]


def test_a_conversation_that_joins_costs_the_others_nothing(tiny_base):
    """Of those that go on, only what is new is fed."""
    engine = HfEngine(tiny_base)
    sampling = Sampling(temperature=1.0, max_new_tokens=3, seed=1)
    histories = {key: [6 + key, 7, 8, 9, 10 + key, 11] for key in (1, 2, 3)}

    def answer(*keys):
        prompts = [Prompt(key=key, token_ids=histories[key]) for key in keys]
        return dict(zip(keys, engine.generate(prompts, sampling), strict=True))

    first = answer(1, 2)
    histories[1] = [*histories[1], *first[1].token_ids, 12, 13]
    fed = []
    forward = engine._forward
    engine._forward = lambda chunks: fed.append([len(chunk) for chunk in chunks]) or forward(chunks)
    together = answer(1, 3)
    # The last sampled token of a turn joins the next chunk.
    assert fed[0] == [2 + 1, 6]
    for key in (1, 3):
        (alone,) = HfEngine(tiny_base).generate(
            [Prompt(key=key, token_ids=histories[key])], sampling
        )
        assert together[key].token_ids == alone.token_ids


def test_one_at_a_time_is_one_at_a_time_whatever_the_lanes():
    engine = InTwo()
    run_episodes(
        engine, TASKS, temperature=0.0, seed=0, make_environment=lambda _: Ragged(), batch_size=1
    )
    events = [event for event, _ in engine.events]
    assert events == ["asked", "waited"] * sum(LENGTHS)
