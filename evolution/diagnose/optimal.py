"""T2: the same actions are best everywhere (condition C2), values may differ.

At states that worlds share, each candidate action is tried in each world and played on by that
world's own improved policy, several times with the same streams::

    Q̂_i(h, a) = mean over continuations of the rewards from a on

The best set of a world has every action whose Q̂ is not below the largest by more than two standard
errors of the two. A state tells something where some world prefers some action to another; there
the worlds agree if their best sets have an action in common. Equal sets are counted as well.

A state is shared by worlds where the same actions at the same task were answered alike up to it:
where two worlds have parted, their states are no longer the same ones.

Candidates are the actions that the environment calls admissible, if it does, and those that the
worlds' policies take there.

Covered: any environment that can be replayed. Not covered: actions nobody thought of; the best
continuation, for π̂_i's is the one at hand.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, takewhile
from statistics import mean, variance
from typing import Final

from evolution.diagnose.kernels import LIMITS, Limits
from evolution.diagnose.policies import Held, History, Policies, histories
from evolution.diagnose.rates import Rate
from evolution.diagnose.worlds import World, replay
from evolution.envs.environment import SaysAdmissible
from evolution.trajectory import Task, Trajectory

__all__ = ["T2", "actions_coincide", "best_set"]

_ERRORS: Final = 2.0
_EXACT: Final = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class T2:
    """The test."""

    passed: bool | None
    """None where too few states tell anything."""
    why: str
    agree: Rate
    """Of the telling states, and of pairs of worlds: those with a best action in common."""
    equal: Rate
    """Of the same: those with equal best sets."""
    shared: int
    """States that all worlds of at least one pair share."""
    apart: tuple[str, ...]
    """A few cases without a common best action, in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _State:
    task_id: int
    prefix: tuple[str, ...]
    candidates: tuple[str, ...]


def best_set(values: Mapping[str, Sequence[float]]) -> frozenset[str]:
    """The actions that are not clearly worse than the best, from their tries."""
    means = {action: mean(tries) for action, tries in values.items()}
    errors = {
        action: variance(tries) / len(tries) if len(tries) > 1 else 0.0
        for action, tries in values.items()
    }
    top = max(means, key=lambda action: means[action])
    return frozenset(
        action
        for action in means
        if means[top] - means[action] <= _ERRORS * math.sqrt(errors[top] + errors[action]) + _EXACT
    )


def actions_coincide(
    worlds: Sequence[World],
    policies: Policies,
    *,
    start: Held,
    improved: Mapping[str, Held],
    states: int,
    actions: int,
    rolls: int,
    limits: Limits = LIMITS,
) -> T2:
    """Run T2 on so many states, with at most so many candidates and continuations each."""
    found = _states(worlds, policies, start, improved, states=states, actions=actions)
    best = {
        world.name: [
            _best(world, policies, improved[world.name], state, rolls=rolls) for state in found
        ]
        for world in worlds
    }
    answers = {
        world.name: [replay(world, state.task_id, state.prefix) for state in found]
        for world in worlds
    }
    agree = equal = telling = 0
    shared, apart = set[int](), []
    for one, other in combinations(worlds, 2):
        for place, state in enumerate(found):
            here, there = answers[one.name][place], answers[other.name][place]
            mine, theirs = best[one.name][place], best[other.name][place]
            if here is None or here != there or mine is None or theirs is None:
                continue
            shared.add(place)
            if len(mine) == len(theirs) == len(state.candidates):
                continue
            telling += 1
            agree += bool(mine & theirs)
            equal += mine == theirs
            if not mine & theirs:
                apart.append(_words(one, other, state, mine, theirs))
    rate = Rate(count=agree, total=telling)
    passed, why = _verdict(rate, len(shared), limits)
    return T2(
        passed=passed,
        why=why,
        agree=rate,
        equal=Rate(count=equal, total=telling),
        shared=len(shared),
        apart=tuple(apart[:3]),
    )


def _verdict(agree: Rate, shared: int, limits: Limits) -> tuple[bool | None, str]:
    if agree.total < limits.least_states:
        return None, (
            f"of {shared} shared states {agree.total} prefer any action, and "
            f"{limits.least_states} are needed to tell"
        )
    if agree.value >= limits.coincide:
        return True, f"a best action in common at {agree} of the states that prefer any"
    return False, f"a best action in common at only {agree} of the states that prefer any"


def _states(
    worlds: Sequence[World],
    policies: Policies,
    start: Held,
    improved: Mapping[str, Held],
    *,
    states: int,
    actions: int,
) -> list[_State]:
    """States that θ_0 visits in the first world and others share, with what may be done there."""
    first = worlds[0]
    tasks = [Task(environment=first.environment, task_id=t) for t in first.tasks[:states]]
    played = policies.play(start, first, tasks).trajectories
    turns = [_shared_turns(worlds, trajectory) for trajectory in played]
    visited = histories(played, states, turns=turns)
    taken = [
        policies.act(policy, visited, temperature=temperature, stream=stream)
        for policy in (start, *improved.values())
        for temperature, stream in ((0.0, 0), (1.0, 1))
    ]
    found = []
    for place, history in enumerate(visited):
        candidates = dict.fromkeys(
            (
                *_admissible(first, history),
                history.trajectory.steps[history.turn].action,
                *(one[place] for one in taken),
            )
        )
        chosen = tuple(candidates)[:actions]
        if len(chosen) > 1:
            found.append(
                _State(
                    task_id=history.trajectory.task.task_id,
                    prefix=history.actions,
                    candidates=chosen,
                )
            )
    return found


def _shared_turns(worlds: Sequence[World], trajectory: Trajectory) -> int:
    """How many of an episode's states some two worlds share."""
    actions = [step.action for step in trajectory.steps]
    answers = [replay(world, trajectory.task.task_id, actions) for world in worlds]
    return max(
        (
            sum(
                1 for _ in takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False))
            )
            for one, other in combinations(answers, 2)
            if one is not None and other is not None
        ),
        default=0,
    )


def _admissible(world: World, history: History) -> Sequence[str]:
    """What the environment says may be done at a history, if it says it."""
    environment = world.make()
    try:
        if not isinstance(environment, SaysAdmissible):
            return ()
        environment.reset(history.trajectory.task.task_id)
        for action in history.actions:
            environment.step(action)
        return tuple(environment.admissible())
    except Exception:  # noqa: BLE001  # foreign code: what it does not say is not tried
        return ()
    finally:
        with contextlib.suppress(Exception):
            environment.close()


def _best(
    world: World, policies: Policies, policy: Held, state: _State, *, rolls: int
) -> frozenset[str] | None:
    """The best set of one world at one state; None where an action could not be played."""
    values: dict[str, list[float]] = {}
    going_on: list[Task] = []
    for action in state.candidates:
        actions = (*state.prefix, action)
        answers = replay(world, state.task_id, actions)
        if answers is None or len(answers) != len(actions) + 1:
            return None
        values[action] = [answers[-1].reward]
        if not answers[-1].over:
            task = Task(environment=world.environment, task_id=state.task_id, prefix=actions)
            going_on += [task] * rolls
    batch = policies.play(policy, world, going_on) if going_on else None
    for group in batch.groups if batch is not None else ():
        if not group.trajectories:
            return None
        action = group.task.prefix[-1]
        (now,) = values[action]
        values[action] = [now + trajectory.reward for trajectory in group.trajectories]
    return best_set(values)


def _words(
    one: World, other: World, state: _State, mine: frozenset[str], theirs: frozenset[str]
) -> str:
    after = f"after {' / '.join(state.prefix)}" if state.prefix else "at the start"
    return (
        f"task {state.task_id} {after}: best {sorted(mine)} in {one.name}, "
        f"{sorted(theirs)} in {other.name}"
    )
