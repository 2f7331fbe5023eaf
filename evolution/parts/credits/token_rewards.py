"""What each action earned, on the action's last token: the rewards that a value is learned from.

    reward "success"   1 at the try's last token, if the environment calls the try solved
    reward "return"    what the environment gave for an action, at that action's last token
    both               minus the penalty at an action that the environment could not read

Every try is a row, failures too: a value is learned from what fails as well, and what a try is
worth beside others is the objective's to say (``evolution/parts/objectives/ppo.py``).

Of an answer that the limit of tokens cut off, the tokens have no loss. What such an action earned
stands at the last token before it that has one: what led there is what can learn from it.

Covered: tries of the round itself, of which each token's probability is known. Not covered:
remembered tries; rewards within an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.seam import MemoryView, PartWork
from evolution.train.rows import Row
from evolution.trajectory import Group, Trajectory
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import RewardOptions

__all__ = ["TokenRewards"]


class TokenRewards(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TRY
    reads: ClassVar = Reads.UNIT
    options: RewardOptions

    def credit(self, groups: Sequence[Group], past: MemoryView, work: PartWork) -> list[Row]:  # noqa: ARG002  # the seam
        """One row for each try that has a token to learn from."""
        return [
            row
            for group in groups
            for one in group.trajectories
            for row in _rewarded(one, self.options)
        ]


def _rewarded(one: Trajectory, options: RewardOptions) -> list[Row]:
    kept: list[bool] = []
    rewards: list[float] = []
    last = -1
    for step in one.steps:
        own = not step.cut_off
        kept += [False] * len(step.context_ids) + [own] * len(step.action_ids)
        rewards += [0.0] * (len(kept) - len(rewards))
        if own and step.action_ids:
            last = len(kept) - 1
        if last >= 0:
            rewards[last] += step.reward if options.reward == "return" else 0.0
            rewards[last] -= options.invalid_penalty * step.invalid
    if last < 0:
        return []
    if options.reward == "success":
        rewards[last] += float(one.success)
    return [Row.of(one, weight=rewards, mask=kept)]
