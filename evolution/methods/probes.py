"""What a gate may judge by: tasks of the silo's own part that nobody learned from.

Only a gate whose card says that it reads the silo gets any.

The tasks are the last of the silo's own part of the training split that were never explored and
have no demonstration: they are disjoint from what was learned from, and, being of another split,
from the held-out tasks.

Covered: which tasks, the plan's temperature, a stream of the round's own. Not covered: a silo that
explored all of its tasks, which has none left.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Final

from evolution.envs.catalogue import Catalogue
from evolution.envs.environment import Environment
from evolution.envs.tasks import Split
from evolution.errors import PartError
from evolution.methods.evolver import Assignment, Work
from evolution.methods.personal.personal import identity_of
from evolution.methods.streams import Stream, round_seed
from evolution.parts.seam import Adapter
from evolution.rollout.engine import RolloutEngine
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task

__all__ = ["MOST_PROBES", "NO_PROBES", "SiloProbes", "validation_tasks"]

MOST_PROBES: Final = 32
"""Of one environment."""


class SiloProbes:
    """Tasks that nobody learned from, played at the plan's temperature."""

    def __init__(
        self, engine: RolloutEngine, tasks: Sequence[Task], work: Work, catalogue: Catalogue
    ) -> None:
        self._engine = engine
        self._tasks = tasks
        self._work = work
        self._catalogue = catalogue

    def success(self, adapter: Adapter) -> float:
        """See ``Probes``."""
        if not self._tasks:
            return math.nan
        self._engine.load_adapter(identity_of(adapter), adapter)
        played = run_episodes(
            self._engine,
            self._tasks,
            temperature=self._work.settings.temperature,
            seed=round_seed(self._work, Stream.GATE),
            max_new_tokens=self._work.settings.max_new_tokens,
            batch_size=self._work.settings.rollout_batch,
            round_index=self._work.round,
            max_tokens=self._work.settings.max_sequence_tokens,
            make_environment=self._catalogue.make,
        )
        return sum(one.success for one in played.trajectories) / len(self._tasks)


class NoProbes:
    """What a gate gets that reads what is public."""

    def success(self, adapter: Adapter) -> float:
        """Refuse.

        Raises:
            PartError: Always.
        """
        raise PartError(f"the gate's card does not say that it reads the silo ({len(adapter)})")


NO_PROBES: Final = NoProbes()


def validation_tasks(
    assignments: Sequence[Assignment],
    environments: Mapping[str, Environment],
    *,
    known: Collection[tuple[str, int]],
    count: int,
) -> list[Task]:
    """At most ``count`` tasks per environment that nobody learned from.

    Environment after environment, from the end of each training split, without those that are
    ``known``: environment and id of every task that was explored or demonstrated.
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
