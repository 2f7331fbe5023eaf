"""What a try's steps came to: rewards, unread actions, limits, and where a try begins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from structlog.testing import capture_logs

from evolution.envs.environment import Environment
from evolution.envs.outcome import MAX_REWARD
from evolution.errors import TaskIdError
from evolution.rollout.engine import Generation
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Group, Task
from tests.kit.evolution.frail import Engine

ODD = 3
"""The task that each test's environment treats in its own way."""
TASKS = [Task(environment="told", task_id=index) for index in (1, ODD, 2)]


class Told(Environment):
    """Three turns; the last of them solves the task."""

    name = family = "told"
    max_steps = 5
    labels = ("only",)
    odd: object = None
    """What the odd task's second step returns."""

    @property
    def instruction(self):
        return "go"

    def reset(self, task_id):
        self.task_id, self.actions, self.variant = task_id, [], ""
        return "0", {}

    def step(self, action):
        self.actions.append(action)
        turn = len(self.actions)
        if self.task_id == ODD and turn == 2 and self.odd is not None:
            return self.odd
        ended = turn == 3
        info = {"solved": ended, "valid": action != "?"}
        return str(turn), 0.5 if ended else -0.1, ended, False, info

    def success(self, info):
        return bool(info["solved"])


class Endless(Told):
    """Never ends by itself, and does not keep its own bound."""

    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, False, info


class Written(Told):
    """Takes the variants that it offers."""

    def variants(self, task_id):
        return ["shorter"]

    def reset_variant(self, task_id, variant):
        if variant not in self.variants(task_id):
            raise TaskIdError("no such variant")
        self.reset(task_id)
        self.actions = ["before"]
        return "7", {}


def played(tasks=TASKS, make=Told, engine=None, **options):
    return run_episodes(
        engine or Engine(),
        tasks,
        temperature=0.0,
        seed=0,
        make_environment=lambda _: make(),
        **options,
    )


class Shown(Told):
    """Its examples suit the episode that has begun."""

    @property
    def examples(self):
        return (("7", "a"), ("8", "b")) if self.task_id == ODD else ()


def test_examples_are_context_of_the_first_turn_alone():
    contexts = [[step.context_ids for step in one.steps] for one in played(make=Shown).trajectories]
    # The engine's chat writes an example as its length.
    assert contexts == [[(0,), (1,), (2,)], [(0, 2, 2), (1,), (2,)], [(0,), (1,), (2,)]]


@pytest.fixture
def odd(monkeypatch):
    return lambda value: monkeypatch.setattr(Told, "odd", value)


def test_rewards_are_kept_step_by_step(odd):
    odd(("2", np.float32(0.25), np.bool_(1), False, {"solved": False}))
    first, second, third = played().trajectories
    assert [step.reward for step in first.steps] == [-0.1, -0.1, 0.5]
    assert first.reward == third.reward == pytest.approx(0.3)
    assert [step.reward for step in second.steps] == [-0.1, 0.25]
    assert all(type(step.reward) is float for step in second.steps)
    assert (first.success, second.success, second.truncated) == (True, False, False)


@pytest.mark.parametrize(
    "reward",
    [float("nan"), float("inf"), -float("inf"), 2 * MAX_REWARD, -2 * MAX_REWARD, 10**400,
     "1", None, [1.0], 1 + 0j],
)  # fmt: skip
def test_a_reward_that_is_no_finite_number_costs_its_own_try_alone(odd, reward):
    odd(("2", reward, False, False, {}))
    with capture_logs() as logs:
        batch = played()
    assert [t.task.task_id for t in batch.trajectories] == [1, 2]
    assert batch.dropped == 1
    assert [line["error"] for line in logs] == ["OutcomeError"]


@pytest.mark.parametrize(
    "returned",
    [
        ("2", 0.0, False, False),
        ["2", 0.0, False, False, {}],
        "abcde",
        (7, 0.0, True, False, {}),
        ("2", 0.0, False, False, {"valid": "yes"}),
        ("2", 0.0, False, False, {"valid": None}),
    ],
)
def test_a_step_that_returns_something_else_costs_its_own_try_alone(odd, returned):
    odd(returned)
    assert (len(played().trajectories), played().dropped) == (2, 1)


@pytest.mark.parametrize(
    ("info", "invalid"),
    [({"valid": False}, True), ({"valid": np.bool_(0)}, True), ({}, False), (None, False)],
)
def test_the_environment_says_whether_it_could_read_an_action(odd, info, invalid):
    odd(("2", 0.0, False, False, info))
    batch = played()
    _, second, _ = batch.trajectories
    assert [step.invalid for step in second.steps] == [False, invalid, False]
    assert batch.figures["invalid_actions"] == float(invalid)


@pytest.mark.parametrize(
    ("flags", "solved", "truncated"),
    [
        ((False, True), False, True),
        ((False, True), True, True),
        ((True, True), False, False),
        ((True, False), True, False),
    ],
)
def test_a_limit_of_the_environments_own_is_told_from_its_verdict(odd, flags, solved, truncated):
    odd(("2", 0.0, *flags, {"solved": solved}))
    batch = played()
    _, second, _ = batch.trajectories
    assert (second.truncated, second.success) == (truncated, solved)
    assert batch.figures["truncated"] == float(truncated)


def test_a_try_that_a_limit_of_ours_ends_is_a_failure_that_stays():
    batch = played(make=Endless)
    assert [len(t.steps) for t in batch.trajectories] == [5, 5, 5]
    assert all(t.truncated and not t.success for t in batch.trajectories)
    assert (batch.dropped, batch.figures["truncated"]) == (0, 3.0)
    narrow = Engine()
    # Room for the opening, an answer and a turn, and no more.
    narrow.context_limit = 16 + 4
    batch = played(engine=narrow, make=Endless)
    assert [len(t.steps) for t in batch.trajectories] == [2, 2, 2]
    assert all(t.truncated and not t.success for t in batch.trajectories)


def test_an_episode_that_ended_by_itself_is_not_called_truncated_while_others_go_on(odd):
    """The last turn of a solved episode may fill the context while its batch plays on."""
    odd(("2", 0.0, True, False, {"solved": True}))
    narrow = Engine()
    narrow.context_limit = 16 + 3
    first, second, _ = played(engine=narrow).trajectories
    assert (first.truncated, len(first.steps)) == (True, 2)
    assert (second.truncated, second.success) == (False, True)


def test_an_answer_that_was_cut_off_is_marked():
    class Cut(Engine):
        def generate(self, prompts, sampling):
            answers = super().generate(prompts, sampling)
            return [
                Generation(token_ids=a.token_ids, logprobs=a.logprobs, ended=i > 0)
                for i, a in enumerate(answers)
            ]

    batch = played(engine=Cut())
    assert [[s.cut_off for s in t.steps] for t in batch.trajectories] == [
        [True] * 3, [False] * 3, [False] * 3,
    ]  # fmt: skip
    assert batch.figures["cut_off"] == 3.0


def test_a_prefix_is_replayed_before_the_agent_sees_anything():
    prefix = ("left", "?")
    tasks = [TASKS[0], replace(TASKS[0], prefix=prefix)]
    whole, later = played(tasks).trajectories
    assert [s.observation for s in whole.steps] == ["0", "1", "2"]
    # What was replayed is neither the agent's steps, nor its reward, nor its mistake.
    assert [s.observation for s in later.steps] == ["2"]
    assert (later.reward, later.success) == (0.5, True)
    assert not any(step.invalid for step in later.steps)
    assert later.task == tasks[1]


@pytest.mark.parametrize("length", [3, 4, 5, 9])
@pytest.mark.parametrize("make", [Told, Endless])
def test_a_prefix_that_leaves_nothing_to_play_drops_its_try(make, length):
    task = replace(TASKS[0], prefix=("go",) * length)
    with capture_logs() as logs:
        batch = played([TASKS[0], task, TASKS[2]], make=make)
    fits = make is Endless and length < 5
    assert batch.dropped == (not fits)
    assert [line["error"] for line in logs] == ([] if fits else ["PrefixError"])
    if fits:
        # The bound of the whole episode, replayed steps included.
        assert len(batch.trajectories[1].steps) == 5 - length
    assert batch.environment_steps == sum(len(t.steps) for t in batch.trajectories)


def test_a_variant_is_played_where_the_environment_takes_it_and_nowhere_else():
    good, bad = (replace(TASKS[0], variant=text) for text in ("shorter", "endless"))
    (one,) = played([good], make=Written).trajectories
    assert ([s.observation for s in one.steps], one.task) == (["7", "2"], good)
    for task, make, error in ((bad, Written, "TaskIdError"), (good, Told, "VariantError")):
        with capture_logs() as logs:
            batch = played([task, TASKS[2]], make=make)
        assert (batch.dropped, [t.task for t in batch.trajectories]) == (1, [TASKS[2]])
        assert [line["error"] for line in logs] == [error]


def test_a_batch_gives_its_groups_in_the_order_of_the_tasks(odd):
    odd(("2", float("nan"), False, False, {}))
    tasks = [TASKS[0], TASKS[2], TASKS[1], TASKS[2], TASKS[1], TASKS[0], TASKS[0]]
    batch = played(tasks, round_index=4)
    assert [(g.task, len(g.trajectories), g.dropped, g.round) for g in batch.groups] == [
        (TASKS[0], 3, 0, 4), (TASKS[2], 2, 0, 4), (TASKS[1], 0, 2, 4),
    ]  # fmt: skip
    assert sum(len(g.trajectories) for g in batch.groups) == len(batch.trajectories)
    assert [g.comparable for g in batch.groups] == [True, True, False]
    lone = Group(task=TASKS[0], round=0, trajectories=batch.trajectories[:1], dropped=3)
    assert not lone.comparable


class Ruled(Told):
    """States one rule, which the odd task's second step breaks; nothing is paid for it."""

    def violates(self, info):
        return self.task_id == ODD and len(self.actions) == 2


def test_a_try_that_broke_a_stated_rule_in_any_step_is_marked():
    tries = played(make=Ruled).trajectories
    assert [one.violated for one in tries] == [False, True, False]
    assert all(one.success for one in tries)
    # An environment that says none has none.
    assert not any(one.violated for one in played().trajectories)


def test_a_rule_that_cannot_be_asked_about_costs_that_try_alone():
    class Broken(Ruled):
        def violates(self, info):
            if super().violates(info):
                raise RuntimeError("the checker")
            return False

    batch = played(make=Broken)
    assert batch.dropped == 1
    assert [one.task.task_id for one in batch.trajectories] == [1, 2]
