"""Every task of the silo's own part is as likely; environments get equal parts.

Nothing about earlier results changes what is drawn, so the choice of tasks says nothing about the
data. How many tasks a silo has is data: where it has fewer than are asked for they repeat, or where
none may repeat there are fewer of them; the round goes on and nobody is told.
"""

from __future__ import annotations

from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.samplers.places import evenly
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
        return [
            task
            for environment in pool.environments
            for task in evenly(environment, work.rng, count=each, distinct=pool.distinct)
        ]
