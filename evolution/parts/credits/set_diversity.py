"""What a try is worth beside the task's other tries, less where all successes are of one kind.

With R_j as in ``group_relative.py``, and the signature of a try its actions (``distinct.py``) ::

    d   = signatures among the group's successes / its successes;  0 where nothing succeeded
    A_j = d · (R_j − mean R)

so of two tasks that are solved as often, the one that is solved in one way alone is learned from
less, and what is left of the step goes to those that are solved in several ways.

The form with one set a group of the polychromic objective (arXiv 2509.25424), which credits a set
of tries with its mean reward times how different they are. The paper draws many sets out of more
tries, compares them with each other, and can so prefer different successes where every try
succeeds; here such a group has no contrast, and so no rows.

Covered: tries of the round itself. Not covered: several sets of a group, starts in the middle of a
try (the paper's vines), ways that mean the same in other words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from evolution.part import BasePart
from evolution.parts.credits.distinct import signature
from evolution.parts.credits.group_relative import advantages, reinforced, worth
from evolution.parts.seam import MemoryView, PartWork
from evolution.train.rows import Row
from evolution.trajectory import Group
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import GroupRelativeOptions, RewardOptions

__all__ = ["SetDiversity"]

_PLAIN: Final = GroupRelativeOptions()


class SetDiversity(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TASK
    reads: ClassVar = Reads.UNIT
    options: RewardOptions

    def credit(self, groups: Sequence[Group], past: MemoryView, work: PartWork) -> list[Row]:  # noqa: ARG002  # the seam
        """One row for each try of a group in which tries differ and one succeeded."""
        rows = []
        for group in groups:
            ways = [signature(one) for one in group.trajectories if one.success]
            share = len(set(ways)) / len(ways) if ways else 0.0
            worths = [worth(one, self.options) for one in group.trajectories]
            for one, advantage in zip(group.trajectories, advantages(worths, _PLAIN), strict=True):
                rows += reinforced(one, share * advantage)
        return rows
