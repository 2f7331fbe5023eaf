"""The places of a round: equal parts for each environment, and some of them fresh.

What samplers that read the memory have in common. An environment's part of a round is ``each``
places, as ``uniform`` deals them::

    fresh      Binomial(each, f) of them: every place is fresh with the plan's probability f
    chosen     the others are the sampler's; it may have fewer, and without a memory it has none
    the rest   every task of the silo's part as likely, but for those that were chosen

What may be chosen is decided from tries of earlier rounds. A round that is begun again after a
crash finds its own tries in the memory, and must draw what it drew before.

Covered: any pool; none of its tasks twice, as long as it has others. Not covered: what is chosen,
which is each sampler's own (``bandit``, ``regret``, ``failures``, ``prefixes``, ``rerun``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from evolution.parts.seam import EnvironmentPool, MemoryView, PartWork, TaskPool
from evolution.trajectory import Group, Task

__all__ = ["Choose", "earlier_groups", "evenly", "fill", "likely"]

Choose = Callable[[EnvironmentPool, int], Sequence[Task]]
"""At most so many tasks of an environment's part; none of its places is fresh."""


def fill(
    pool: TaskPool, rng: np.random.Generator, *, count: int, fresh: float, choose: Choose
) -> list[Task]:
    """The tasks of a round, environment after environment; see the module."""
    each = max(1, count // len(pool.environments))
    tasks: list[Task] = []
    for environment in pool.environments:
        places = each - int(rng.binomial(each, fresh))
        # An environment whose tasks are all gone has nothing to choose from either.
        chosen = list(choose(environment, places)) if places and environment.task_ids else []
        besides = {task.task_id for task in chosen}
        tasks += chosen
        tasks += evenly(
            environment, rng, count=each - len(chosen), distinct=pool.distinct, besides=besides
        )
    return tasks


def evenly(
    environment: EnvironmentPool,
    rng: np.random.Generator,
    *,
    count: int,
    distinct: bool,
    besides: Collection[int] = (),
) -> list[Task]:
    """So many tasks of an environment's part, each as likely, without some as long as others are.

    Where the part has fewer than are asked for they repeat, or where none may repeat there are
    fewer of them.
    """
    ids = environment.task_ids
    repeated = count > len(ids) > 0 and not distinct
    drawn = count if repeated else min(count + len(besides), len(ids))
    found = [ids[int(index)] for index in rng.choice(len(ids), size=drawn, replace=repeated)]
    others = [task_id for task_id in found if task_id not in besides]
    again = [] if distinct else [task_id for task_id in found if task_id in besides]
    return [environment.task(task_id) for task_id in (*others, *again)[:count]]


def likely(
    tasks: Sequence[Task], weights: Sequence[float], rng: np.random.Generator, *, places: int
) -> list[Task]:
    """At most so many of the tasks, one after the other, each as likely as its weight says.

    None is drawn twice, and none of weight 0.
    """
    some = [(task, weight) for task, weight in zip(tasks, weights, strict=True) if weight > 0]
    if not some:
        return []
    mass = np.array([weight for _, weight in some])
    size = min(places, len(some))
    drawn = rng.choice(len(some), size=size, replace=False, p=mass / mass.sum())
    return [some[int(index)][0] for index in drawn]


def earlier_groups(
    environment: EnvironmentPool, past: MemoryView, work: PartWork, *, replayed: bool = False
) -> list[Group]:
    """What earlier rounds of the window tried of an environment's part, with at least one try.

    From a task's own beginning alone, or with ``replayed`` from prefixes and of variants too.
    """
    found = [
        group
        for group in past.groups()
        if group.round < work.round
        and group.trajectories
        and group.task.environment == environment.environment
        and (replayed or not (group.task.prefix or group.task.variant))
    ]
    still = {
        task_id
        for task_id in {group.task.task_id for group in found}
        if task_id in environment.task_ids
    }
    return [group for group in found if group.task.task_id in still]
