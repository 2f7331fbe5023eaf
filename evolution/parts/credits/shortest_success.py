"""What succeeded is imitated, and of a task's tries the shortest (Fed-SE, arXiv 2512.08870).

``select`` of the paper's algorithm 1 with the plan's window; with ``best_per_task = false`` all
successes, which together with a window of 0 is the paper's own setting. The choice looks at one
task at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.seam import MemoryView, PartWork
from evolution.train.rows import Row
from evolution.trajectory import Group
from federation.plan.methods import Couples, Reads

__all__ = ["ShortestSuccess"]


class ShortestSuccess(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TASK
    reads: ClassVar = Reads.UNIT

    def credit(self, groups: Sequence[Group], past: MemoryView, work: PartWork) -> list[Row]:  # noqa: ARG002  # the seam
        """One row for each, of weight 1."""
        return [Row.of(one) for one in past.successes(shortest=work.best_per_task)]
