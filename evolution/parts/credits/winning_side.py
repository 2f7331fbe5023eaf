"""Of a game between two sides that are one agent, each side imitates what it won with.

    solved            the tokens of the last turn, of weight 1
    a rule broken     those of the turn before it: its words made the last turn break the rule
    neither           no row

For environments in which the sides take turns and the one that moves last is judged, such as
``keeper`` (Self-RedTeam, arXiv 2506.07468; row 28 of the page of methods). There both sides are
reinforced by one game's zero-sum reward; here each is imitated where it won, so that an attacker
does not learn from what was fended off, nor a defender from what got through. A try of one turn has
a last turn alone. Where an environment states no rules this is imitation of last turns.

Covered: tries of the plan's window, and demonstrations, of which every turn is imitated. Not
covered: more than two sides, and rewards of turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.credits.by_task import each_once
from evolution.parts.seam import MemoryView, PartWork
from evolution.train.rows import Row
from evolution.trajectory import Group, Trajectory
from federation.plan.methods import Couples, Reads

__all__ = ["WinningSide"]


class WinningSide(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TASK
    reads: ClassVar = Reads.UNIT

    def credit(self, groups: Sequence[Group], past: MemoryView, work: PartWork) -> list[Row]:  # noqa: ARG002  # the seam
        """One row for each try that somebody won."""
        played = [one for group in past.groups() for one in group.trajectories]
        won = [(one, turn) for one in each_once(played) if (turn := _won_by(one)) is not None]
        rows = [Row.of(one, mask=_tokens_of(one, turn)) for one, turn in won if one.steps]
        return rows + [Row.of(one) for one in each_once(past.demonstrations())]


def _won_by(one: Trajectory) -> int | None:
    """The turn that won; None where neither side did."""
    last = len(one.steps) - 1
    if one.success:
        return last
    return last - 1 if one.violated and last > 0 else None


def _tokens_of(one: Trajectory, turn: int) -> list[bool]:
    return [
        own and place == turn
        for place, step in enumerate(one.steps)
        for own in (*(False,) * len(step.context_ids), *(True,) * len(step.action_ids))
    ]
