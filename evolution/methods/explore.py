"""Which tasks a silo explores in a round, and the random streams of a round.

Tasks are drawn uniformly from the silo's own part of the training split: nothing about earlier
results changes what is drawn, so the choice of tasks says nothing about the data. Under
record-level privacy every drawn task is a unit, so a round's tasks are distinct and no more than
the plan says: one more would be a unit that was not accounted for.

How many tasks a silo has is data. Where it has fewer than the plan asks for, they repeat, or where
they are units there are fewer of them; the round goes on and nobody is told.

Covered: equal parts per environment. Not covered: curricula, which draw by what was learned; every
``task_sampling`` other than ``uniform`` is refused.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import numpy as np

from dp.config import RECORD_MODES
from evolution.envs.environment import Environment
from evolution.envs.tasks import Split
from evolution.errors import EvolverSetupError
from evolution.methods.evolver import Assignment, Work
from evolution.trajectory import Task

__all__ = ["Stream", "draw_tasks", "round_seed"]


class Stream(enum.IntEnum):
    """What a random stream of a round is for."""

    EXPLORE = 1
    DRAW = 2
    TRAIN = 3
    PERSONAL = 4


def round_seed(work: Work, stream: Stream) -> int:
    """The 64-bit seed of one stream of one silo's round."""
    parts = [work.settings.seed, work.seed, work.round, int(stream)]
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])


def draw_tasks(
    work: Work, assignments: Sequence[Assignment], environments: Mapping[str, Environment]
) -> list[Task]:
    """Draw a round's tasks, each as often in a row as it is tried.

    Raises:
        EvolverSetupError: The tasks would be drawn by what was learned, or there are more
            environments than the plan has tasks.
    """
    if work.settings.task_sampling != "uniform":
        raise EvolverSetupError(
            f"task_sampling {work.settings.task_sampling!r} draws tasks by earlier results, and "
            "the choice would tell them: only 'uniform' runs"
        )
    rng = np.random.default_rng(round_seed(work, Stream.DRAW))
    tries = work.settings.tries_per_task
    planned = work.settings.episodes // len(assignments) // tries
    distinct = work.privacy is not None and work.privacy.spec.mode in RECORD_MODES
    if distinct and planned < 1:
        raise EvolverSetupError(
            f"{work.settings.episodes} episodes give {len(assignments)} environments no task each: "
            "one task more than planned would be one unit more than was accounted for"
        )
    count = max(1, planned)
    tasks: list[Task] = []
    for assignment in assignments:
        environment = environments[assignment.environment]
        ids = environment.task_ids(Split.TRAIN, shard=assignment.shard)
        repeated = count > len(ids) > 0 and not distinct
        drawn = count if repeated else min(count, len(ids))
        for index in rng.choice(len(ids), size=drawn, replace=repeated):
            task_id = ids[int(index)]
            task = Task(
                environment=assignment.environment,
                task_id=task_id,
                subject=environment.task_subject(task_id),
            )
            tasks += [task] * tries
    return tasks
