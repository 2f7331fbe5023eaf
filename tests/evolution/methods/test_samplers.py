"""Samplers in the driver: a plan's options reach them, and a draw follows the rounds before.

The agent is a script that sees the door of its task and how far it got; nothing is trained.
"""

from __future__ import annotations

import re
from contextlib import ExitStack

import pytest

from evolution.envs import catalogue
from evolution.envs.environment import ScriptedEnvironment
from evolution.methods.evolver import Assignment, EvolverSetup, EvolveSettings, Work
from evolution.methods.machines import Machines
from evolution.methods.recipe import RecipeEvolver
from evolution.train.trainer import SftReport
from federation.plan.read import read_plan
from tests.kit.evolution.policy_engine import PolicyEngine
from tests.kit.paths import ROOT

PLAN = (ROOT / "deploy" / "examples" / "plan-silo-dp.toml").read_text()
SEEN = re.compile(r"door (\d+) step (\d)")


class Doors(ScriptedEnvironment):
    """Two doors to open, one after the other; there is time for one mistake."""

    name = family = "doors"
    max_steps = 3
    labels = ("even", "odd")

    @property
    def instruction(self):
        return "open"

    def reset(self, task_id):
        self.door, self.opened, self.step_count = task_id % 1000, 0, 0
        return self.seen(), {}

    def step(self, action):
        self.step_count += 1
        self.opened += action == "open"
        solved = self.opened == 2
        return self.seen(), 0.0, solved, self.step_count == 3 and not solved, {"solved": solved}

    def seen(self):
        return f"door {self.door} step {self.opened}"

    def success(self, info):
        return info["solved"]

    def expert_action(self, rng):
        return "open"

    def random_action(self, rng):
        return "wait"


class Idle:
    """Learns nothing."""

    def reset(self, adapter):
        self.kept = dict(adapter)

    def adapter(self):
        return self.kept

    def train(self, rows, objective, settings, **rest):
        return SftReport(optimiser_steps=0, agent_tokens=0, first_loss=0.0, last_loss=0.0)


@pytest.fixture(autouse=True)
def environments(monkeypatch):
    known = {**catalogue.ENVIRONMENTS, "doors": f"{__name__}:Doors"}
    monkeypatch.setattr(catalogue, "ENVIRONMENTS", known)


@pytest.fixture
def silo(tmp_path):
    """Makes what plays rounds of a plan with a sampler, by a script; each returns its groups."""
    with ExitStack() as closing:

        def make(sampler, script, *, name="silo", tasks=8):
            text = PLAN.replace('["craft"]', '["doors"]').replace(
                "episodes_per_round = 128", f"episodes_per_round = {4 * tasks}\nwindow = 0"
            )
            plan = read_plan(f"{text}\n[evolve.parts]\nsampler = {sampler}\n".encode())
            engine = PolicyEngine(**{str(number): script for number in range(9)})
            evolver = RecipeEvolver(
                EvolverSetup(
                    assignments=(Assignment(environment="doors"),),
                    base_dir=tmp_path,
                    state_dir=tmp_path / name,
                    machines=Machines(engine=engine, trainer=Idle()),
                    recipe=plan.recipe,
                )
            )
            closing.callback(evolver.close)
            settings = EvolveSettings(
                episodes=plan.evolve.episodes_per_round,
                tries_per_task=plan.evolve.tries_per_task,
                window=plan.evolve.window,
            )

            def play(number):
                evolver.evolve(
                    Work(
                        round=number,
                        adapter={},
                        adapter_sha256=str(number),
                        trainable=frozenset(),
                        settings=settings,
                        seed=0,
                    )
                )
                return evolver._memory.groups(round_index=number, window=1)

            return play

        yield make


def by_door(chance_of):
    """A script that opens with a chance that door and step decide."""

    def script(text, chance):
        door, step = map(int, SEEN.findall(text)[-1])
        return "open" if chance < chance_of(door, step) else "wait"

    return script


def doors(groups):
    return [group.task.task_id % 1000 for group in groups]


def solved(group):
    return sum(one.success for one in group.trajectories)


def test_bandit_goes_where_tries_disagree(silo):
    script = by_door(lambda door, _: 0.7 if door % 2 else 1.0)
    play = silo('{ name = "bandit", alpha = 1.0, tau = 0.01 }', script)
    first = play(1)
    assert {door % 2 for door in doors(first)} == {0, 1}
    assert {solved(group) for group in first if group.task.task_id % 2 == 0} == {4}
    assert {door % 2 for door in doors(play(2))} == {1}
    # The plan's τ: at 100 labels are as likely, whatever they are worth.
    warm = silo('{ name = "bandit", alpha = 1.0, tau = 100.0 }', script, name="warm")
    assert doors(warm(1)) == doors(first)
    assert {door % 2 for door in doors(warm(2))} == {0, 1}


def test_regret_tries_again_what_was_solved_and_not_always(silo):
    script = by_door(lambda door, _: (0.0, 0.5, 1.0, 0.5)[door % 4])
    play = silo('{ name = "regret", fresh = 0.0 }', script)
    first = play(1)
    open_ended = {group.task for group in first if 0 < solved(group) < 4}
    assert 0 < len(open_ended) < 7
    assert {solved(group) for group in first} >= {0, 4}
    second = {group.task for group in play(2)}
    assert open_ended <= second
    assert not second & ({group.task for group in first} - open_ended)
    fresh = silo('{ name = "regret", fresh = 1.0 }', script, name="fresh")
    assert not {group.task for group in fresh(1)} & {group.task for group in fresh(2)}


def test_failures_draws_variants_of_what_was_never_solved_until_they_are_mastered(silo):
    # Even doors never open at first, and always once they are half open.
    script = by_door(lambda door, step: float(door % 2 or step == 1))
    play = silo('{ name = "failures", fresh = 0.0 }', script)
    first = play(1)
    never = {group.task.task_id for group in first if solved(group) == 0}
    assert 0 < len(never) < 8
    second = play(2)
    begun = {group.task.task_id: group for group in second if group.task.variant}
    assert begun.keys() == never
    for group in begun.values():
        assert group.task.variant == "after 1"
        assert solved(group) == 4
        assert {len(one.steps) for one in group.trajectories} == {1}
        assert "step 1" in group.trajectories[0].steps[0].observation
    third = play(3)
    assert not never & {group.task.task_id for group in third if group.task.variant}
    # What all tries solve is 5/6: within the bounds if the plan says so.
    wide = silo('{ name = "failures", fresh = 0.0, high = 0.9 }', script, name="wide")
    wide(1)
    again = {group.task.task_id for group in wide(2) if not group.task.variant}
    assert again == {group.task.task_id for group in first} - never


def test_prefixes_begins_episodes_in_the_middle(silo):
    script = by_door(lambda door, _: 0.6)
    play = silo('{ name = "prefixes", fresh = 0.0 }', script)
    first = play(1)
    assert {group.task.prefix for group in first} == {()}
    second = play(2)
    seen = {group.task.task_id for group in first}
    played = {
        (group.task.task_id, (*group.task.prefix, *(s.action for s in one.steps))[:length])
        for group in first
        for one in group.trajectories
        for length in (1, 2)
    }
    assert len(second) == 8
    for group in second:
        assert (group.task.task_id, group.task.prefix) in played
        opened = group.task.prefix.count("open")
        assert all(one.task == group.task for one in group.trajectories)
        assert f"step {opened}" in group.trajectories[0].steps[0].observation
    # Two beginnings of one task are two groups, with all their tries.
    assert len({group.task.task_id for group in second}) < 8
    assert all(len(group.trajectories) + group.dropped == 4 for group in second)
    assert seen >= {group.task.task_id for group in second}
    fresh = silo('{ name = "prefixes", fresh = 1.0 }', script, name="fresh")
    fresh(1)
    assert {group.task.prefix for group in fresh(2)} == {()}


def test_rerun_tries_lucky_wins_again_until_they_had_their_chances(silo):
    script = by_door(lambda door, _: 0.35)
    play = silo('{ name = "rerun" }', script, tasks=12)
    first = play(1)
    lucky = {group.task for group in first if solved(group) == 1}
    assert 0 < len(lucky) < 12
    second = {group.task: solved(group) for group in play(2)}
    assert second.keys() >= lucky
    assert not second.keys() & ({group.task for group in first} - lucky)
    still = {task for task in lucky if second[task] < 3}
    third = {group.task: solved(group) for group in play(3)}
    assert third.keys() & lucky == still
    # After twelve tries none of them is drawn again.
    assert not {group.task for group in play(4)} & lucky
    none = silo('{ name = "rerun", most_tries = 3 }', script, name="none", tasks=12)
    assert {group.task for group in none(1)} == {group.task for group in first}
    assert not {group.task for group in none(2)} & lucky
