"""Every task of the silo's own part is as likely; environments get equal parts.

Nothing about earlier results changes what is drawn, so the choice of tasks says nothing about the
data. How many tasks a silo has is data: where it has fewer than are asked for they repeat, or where
none may repeat there are fewer of them; the round goes on and nobody is told.
"""

from __future__ import annotations

from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.seam import MemoryView, PartWork, TaskPool
from evolution.trajectory import Task
from federation.plan.methods import Couples, Reads

__all__ = ["Uniform"]


class Uniform(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TRY
    reads: ClassVar = Reads.PUBLIC

    def draw(self, pool: TaskPool, past: MemoryView, work: PartWork, *, count: int) -> list[Task]:  # noqa: ARG002  # the seam
        """Draw equal parts, environment after environment."""
        each = max(1, count // len(pool.environments))
        tasks: list[Task] = []
        for environment in pool.environments:
            ids = environment.task_ids
            repeated = each > len(ids) > 0 and not pool.distinct
            drawn = each if repeated else min(each, len(ids))
            chosen = work.rng.choice(len(ids), size=drawn, replace=repeated)
            tasks += [environment.task(ids[int(index)]) for index in chosen]
        return tasks
