"""Group-relative credit over the standard deviation of the whole round.

A_j = (R_j − mean of its group) / (std of all R_j − mean over the round + 1e-6): REINFORCE++ with a
group baseline (arXiv 2501.03262). What one task's tries are worth then depends on every other
task's, so it couples all and is refused where units are protected.

Covered: modes ``none`` and ``silo``. Not covered: record modes, by design.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import ClassVar, Final

from evolution.part import BasePart
from evolution.parts.credits.group_relative import advantages, reinforced, worth
from evolution.parts.seam import MemoryView, PartWork
from evolution.train.rows import Row
from evolution.trajectory import Group
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import GroupRelativeOptions, RewardOptions

__all__ = ["BatchScaled"]

_PLAIN: Final = GroupRelativeOptions()
_STD_FLOOR: Final = 1e-6


class BatchScaled(BasePart):
    """See the module."""

    couples: ClassVar = Couples.ALL
    reads: ClassVar = Reads.UNIT
    options: RewardOptions

    def credit(self, groups: Sequence[Group], past: MemoryView, work: PartWork) -> list[Row]:  # noqa: ARG002  # the seam
        """One row for each try that is not worth what the others at its task are."""
        tries = [one for group in groups for one in group.trajectories]
        found = [
            advantage
            for group in groups
            for advantage in advantages(
                [worth(one, self.options) for one in group.trajectories], _PLAIN
            )
        ]
        if len(found) < 2:
            return []
        scale = statistics.stdev(found) + _STD_FLOOR
        return [
            row
            for one, advantage in zip(tries, found, strict=True)
            for row in reinforced(one, advantage / scale)
        ]
