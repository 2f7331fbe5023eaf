"""What was better than the task's other tries, and earlier successes that are not sure yet (SPEAR).

Tries of the round have the credit of ``group_relative.py``. Beside them, of rounds before it ::

    replayed   successes of the last ``max_age`` rounds of the window, each conversation once
    A          replay_weight · (1 − p), on each token; dropped where A ≤ least
    p          the part of the task's tries that succeed, from its oldest round of the window to
               the present one:  p ← decay·p + (1 − decay)·(successes / tries of the round)

so what the agent has come to master is no longer replayed. A replayed row has the probabilities
that were recorded when it was played: a bounded ratio of policies (``clipped``) says how far
today's policy may learn from it.

The source is arXiv 2509.22601: self-imitation out of a buffer whose advantages are set anew. Its
code replays whenever the buffer is full, and subtracts the median of the latest group means of
*all* tasks; with rewards of 0 and 1 that is one number for everything, and couples all tasks. Here
p is the task's own.

Covered: replay over rounds; it needs a window of two rounds or more. Not covered: a weight that
rises over training, rewards for using tools, control of the entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.credits.by_task import each_once, groups_by_task
from evolution.parts.credits.group_relative import compared, reinforced
from evolution.parts.seam import MemoryView, PartWork
from evolution.train.rows import Row
from evolution.trajectory import Group
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import SelfImitationOptions

__all__ = ["SelfImitation", "share_solved"]


class SelfImitation(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TASK
    reads: ClassVar = Reads.UNIT
    options: SelfImitationOptions

    def credit(self, groups: Sequence[Group], past: MemoryView, work: PartWork) -> list[Row]:
        """The round's rows as ``group-relative`` makes them, then the replayed ones."""
        rows = compared(groups, self.options)
        for own in groups_by_task(past.groups()).values():
            rows += self._replayed(own, work.round)
        return rows

    def _replayed(self, groups: Sequence[Group], present: int) -> list[Row]:
        """Of one task, whose groups are given with the oldest first."""
        said = self.options
        advantage = said.replay_weight * (1.0 - share_solved(groups, decay=said.decay))
        if advantage <= said.least:
            return []
        return [
            row
            # Of one conversation the newest: its probabilities are nearest to today's.
            for one in each_once(
                one
                for group in reversed(groups)
                if 1 <= present - group.round <= said.max_age
                for one in group.trajectories
                if one.success
            )
            for row in reinforced(one, advantage)
        ]


def share_solved(groups: Sequence[Group], *, decay: float) -> float:
    """What p is for a task whose groups stand oldest first; 0 if no try came to its end."""
    counts: dict[int, tuple[int, int]] = {}
    for group in groups:
        solved, tried = counts.get(group.round, (0, 0))
        won = sum(one.success for one in group.trajectories)
        counts[group.round] = solved + won, tried + len(group.trajectories)
    found: float | None = None
    for solved, tried in counts.values():
        if tried:
            share = solved / tried
            found = share if found is None else decay * found + (1.0 - decay) * share
    return 0.0 if found is None else found
