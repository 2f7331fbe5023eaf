"""What a try is worth beside the other tries at its task, on each of its tokens.

With R_j = success − penalty · invalid actions, or the sum of the environment's rewards ::

    A_j = R_j − mean R          GRPO without the standard deviation (Dr. GRPO, arXiv 2503.20783)
        / (std R + 1e-6)        scale "std": GRPO (arXiv 2402.03300, eq. 3), FedAgent
        / mean R, 0 if ≤ 0      scale "mean": MaxRL (arXiv 2602.02710)
    A_j = R_j − mean of others  baseline "others": RLOO (arXiv 2402.14740, eq. 7)

The deviation is the sample's, over G − 1, as in TRL and verl.

Tries that are worth the same teach nothing, and a lone try has nothing to be compared with: such
groups have no rows, so nothing is computed for them. A try that a limit of steps ended is a failure
and stays; of an answer that the limit of tokens cut off, the tokens have no loss, for nobody knows
what it would have been.

Covered: tries of the round itself, of which each token's probability is known. Not covered:
remembered tries, credit within a try.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import ClassVar, Final

from evolution.part import BasePart
from evolution.parts.seam import MemoryView, PartWork
from evolution.train.rows import Row
from evolution.trajectory import Group, Trajectory
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import GroupRelativeOptions, Reward, RewardOptions

__all__ = [
    "CONTRAST",
    "GroupRelative",
    "advantages",
    "compared",
    "gained",
    "reinforced",
    "worth",
]

CONTRAST: Final = 1e-8
"""Least difference of rewards within a group."""
_STD_FLOOR: Final = 1e-6


class GroupRelative(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TASK
    reads: ClassVar = Reads.UNIT
    options: GroupRelativeOptions

    def credit(self, groups: Sequence[Group], past: MemoryView, work: PartWork) -> list[Row]:  # noqa: ARG002  # the seam
        """One row for each try of a group in which tries differ."""
        return compared(groups, self.options)


def compared(groups: Sequence[Group], options: GroupRelativeOptions) -> list[Row]:
    """The rows of groups, as the module has it."""
    rows = []
    for group in groups:
        worths = [worth(one, options) for one in group.trajectories]
        for one, advantage in zip(group.trajectories, advantages(worths, options), strict=True):
            rows += reinforced(one, advantage)
    return rows


def worth(one: Trajectory, options: RewardOptions) -> float:
    """R of a try."""
    invalid = sum(step.invalid for step in one.steps)
    return gained(one, options.reward) - options.invalid_penalty * invalid


def gained(one: Trajectory, reward: Reward) -> float:
    """What the environment gave for a try, or whether it calls it solved."""
    return one.reward if reward == "return" else float(one.success)


def advantages(worths: Sequence[float], options: GroupRelativeOptions) -> list[float]:
    """A of each of a group's tries; 0 for all of them where there is no contrast."""
    count = len(worths)
    if count < 2 or max(worths) - min(worths) < CONTRAST:
        return [0.0] * count
    mean = statistics.fmean(worths)
    above = [one - mean for one in worths]
    if options.baseline == "others":
        # R − (ΣR − R)/(G − 1) = (R − mean)·G/(G − 1).
        above = [one * count / (count - 1) for one in above]
    if options.scale == "std":
        return [one / (statistics.stdev(worths) + _STD_FLOOR) for one in above]
    if options.scale == "mean":
        return [one / mean if mean > 0 else 0.0 for one in above]
    return above


def reinforced(one: Trajectory, advantage: float) -> list[Row]:
    """A try's row with its advantage on every token; none where there is nothing to learn."""
    if advantage == 0.0:
        return []
    kept = [
        own and not step.cut_off
        for step in one.steps
        for own in (*(False,) * len(step.context_ids), *(True,) * len(step.action_ids))
    ]
    return [Row.of(one, weight=advantage, mask=kept)] if any(kept) else []
