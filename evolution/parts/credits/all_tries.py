"""Every try of the window is imitated, solved or not: what Fed-SE's success filter is worth.

The ablation of arXiv 2512.08870, §5.3. The shortest of a task's tries would be a filter of its own,
so all of them are rows; one conversation is one row however often it was had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.seam import MemoryView, PartWork
from evolution.train.rows import Row
from evolution.trajectory import Group, Trajectory
from federation.plan.methods import Couples, Reads

__all__ = ["AllTries"]


class AllTries(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TASK
    reads: ClassVar = Reads.UNIT

    def credit(self, groups: Sequence[Group], past: MemoryView, work: PartWork) -> list[Row]:  # noqa: ARG002  # the seam
        """One row for each, of weight 1, and the demonstrations that count."""
        tries = [one for group in past.groups() for one in group.trajectories if one.steps]
        apart = {_key(one): one for one in (*past.successes(shortest=False), *tries)}
        return [Row.of(apart[key]) for key in sorted(apart)]


def _key(one: Trajectory) -> tuple[str, int, str]:
    return one.task.environment, one.task.task_id, one.conversation_sha256
