"""Which tasks a silo explores in a round, and the random streams of a round.

Tasks are drawn uniformly from the silo's own part of the training split: nothing about earlier
results changes what is drawn, so the choice of tasks says nothing about the data.

Covered: equal parts per environment. Not covered: curricula, which draw by what was learned.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import numpy as np

from silo_agent.envs.environment import Environment
from silo_agent.envs.tasks import Split
from silo_agent.evolve.evolver import Assignment, Work
from silo_agent.trajectory import Task

__all__ = ["Stream", "draw_tasks", "round_seed"]


class Stream(enum.IntEnum):
    """What a random stream of a round is for."""

    EXPLORE = 1
    DRAW = 2
    TRAIN = 3


def round_seed(work: Work, stream: Stream) -> int:
    """The seed of one stream of one silo's round.

    Args:
        work: The round.
        stream: What it is for.

    Returns:
        A 64-bit seed.
    """
    parts = [work.settings.seed, work.seed, work.round, int(stream)]
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])


def draw_tasks(
    work: Work, assignments: Sequence[Assignment], environments: Mapping[str, Environment]
) -> list[Task]:
    """Draw a round's tasks.

    Args:
        work: The round.
        assignments: What the silo explores.
        environments: By name.

    Returns:
        Tasks, each as often in a row as it is tried.
    """
    rng = np.random.default_rng(round_seed(work, Stream.DRAW))
    tries = work.settings.tries_per_task
    count = max(1, work.settings.episodes // len(assignments) // tries)
    tasks: list[Task] = []
    for assignment in assignments:
        ids = environments[assignment.environment].task_ids(Split.TRAIN, shard=assignment.shard)
        for index in rng.choice(len(ids), size=count, replace=count > len(ids)):
            tasks += [Task(environment=assignment.environment, task_id=ids[int(index)])] * tries
    return tasks
