"""How many of the task's other tries a try beats, less a half, on each of its tokens.

With R_j as in ``group_relative.py`` and G tries of a group ::

    P_j = (number of k ≠ j with R_k < R_j  +  ½ · number of k ≠ j with R_k = R_j) / (G − 1)
    A_j = P_j − ½

P̂(y ≻ π) of SPPO (arXiv 2405.00675), which asks a preference model about pairs; here the
environment's own reward decides each pair. Where tries are solved or not, A_j is half of what RLOO
has: its use is in the objective ``sppo``, which says how far log π is to move for it, and with
rewards that are more than solved or not, where it takes ranks for sizes.

Tries that are worth the same have nothing between them: such a group has no rows. Nor has a try
that beats as many as beat it, to which ``sppo`` has no gradient where the round begins.

Covered: tries of the round itself. Not covered: preferences that are no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.credits.group_relative import CONTRAST, reinforced, worth
from evolution.parts.seam import MemoryView, PartWork
from evolution.train.rows import Row
from evolution.trajectory import Group
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import RewardOptions

__all__ = ["WinShare", "win_shares"]


class WinShare(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TASK
    reads: ClassVar = Reads.UNIT
    options: RewardOptions

    def credit(self, groups: Sequence[Group], past: MemoryView, work: PartWork) -> list[Row]:  # noqa: ARG002  # the seam
        """One row for each try that wins or loses more than half of its pairs."""
        return [
            row
            for group in groups
            if group.comparable
            for one, share in zip(
                group.trajectories,
                win_shares([worth(one, self.options) for one in group.trajectories]),
                strict=True,
            )
            for row in reinforced(one, share - 0.5)
        ]


def win_shares(worths: Sequence[float]) -> list[float]:
    """P of each of two tries or more."""
    others = len(worths) - 1
    # Each one is a tie with itself, which is taken off again.
    return [(sum(_beats(one, two) for two in worths) - 0.5) / others for one in worths]


def _beats(one: float, two: float) -> float:
    return 0.5 if abs(one - two) < CONTRAST else float(one > two)
