"""Which adapter a silo should use: the global one, its personal one, or another it has.

The candidates play the same *validation* tasks: the last tasks of the silo's own part of the
training split that were never explored and have no demonstration. They are disjoint from what was
learned from, and, being of another split, from the held-out tasks that are reported. A candidate
replaces the global adapter only where it solved more of them, so a silo that follows the choice is
no worse off than with the global adapter alone, up to the error of that many tasks.

Invariants: the choice looks at validation tasks alone; a tie goes to the candidate named first, and
the global adapter is named first; nothing about it leaves the silo.

Covered: any number of candidates. Not covered: a bound on the error of the choice; its counts are
given, and whoever reads them computes the interval. Where every task of the silo was explored there
is nothing to choose by, and the global adapter stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from evolution.envs.environment import Environment
from evolution.envs.tasks import Split
from evolution.methods.evolver import Assignment, Evaluation
from evolution.methods.personal.personal import identity_of
from evolution.rollout.engine import RolloutEngine
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task

__all__ = ["Choice", "choose", "validation_tasks"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which candidate did best."""

    best: str
    """Its name."""
    successes: dict[str, int]
    """Validation tasks solved, by candidate."""
    episodes: dict[str, int]
    """Validation tasks finished, by candidate."""


def validation_tasks(
    assignments: Sequence[Assignment],
    environments: Mapping[str, Environment],
    *,
    known: Collection[tuple[str, int]],
    count: int,
) -> list[Task]:
    """The tasks that candidates are compared on: at most ``count`` per environment.

    Environment after environment, from the end of each split, without those that are ``known``:
    environment and id of every task that was explored or demonstrated.
    """
    tasks: list[Task] = []
    for assignment in assignments:
        name = assignment.environment
        environment = environments[name]
        ids = environment.task_ids(Split.TRAIN, shard=assignment.shard)
        unseen = (i for i in reversed(ids) if (name, i) not in known)
        tasks += [
            Task(environment=name, task_id=i, subject=environment.task_subject(i))
            for i in islice(unseen, count)
        ]
    return tasks


def choose(
    engine: RolloutEngine,
    candidates: Mapping[str, Mapping[str, np.ndarray]],
    tasks: Sequence[Task],
    work: Evaluation,
    *,
    make_environment: Callable[[str], Environment],
) -> Choice:
    """Let candidates play every task once, and say which one did best.

    The first candidate wins ties, and the engine holds the last one afterwards. They play at the
    first of the work's temperatures.
    """
    successes: dict[str, int] = {}
    episodes: dict[str, int] = {}
    for name, tensors in candidates.items():
        engine.load_adapter(identity_of(tensors), tensors)
        played = run_episodes(
            engine,
            tasks,
            temperature=work.temperatures[0],
            seed=work.seed,
            max_new_tokens=work.max_new_tokens,
            make_environment=make_environment,
        )
        successes[name] = sum(t.success for t in played.trajectories)
        episodes[name] = len(played.trajectories)
    # The first of the best, in the candidates' order.
    return Choice(
        best=max(successes, key=lambda name: successes[name]),
        successes=successes,
        episodes=episodes,
    )
