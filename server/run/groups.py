"""The groups or halves of one attempt at a release: whose sum is open or there, who still waits.

The groups of an attempt take their turns: each is an aggregation of its own, with its number as its
part, and silos of a later group are shown the round's task until theirs is open. One after the
other, as a coordinator holds one sum in memory; phases end as soon as everybody has answered, so a
round takes g times the protocol and once the local work.

Ordered invariants:

1. A group whose attempt fails, or whose sum honest silos cannot have made, is left out; the release
   goes on while 2f + 1 are left of those that are summed, open or waiting.
2. A sum that is there stays open in the store until its release is closed, with which it ends. The
   attempt is made anew only if no silo of any group can have signed survivors.

The halves of a bisected round are driven alike, and all of them: each sum is judged, none is used.

Covered: the above. Not covered: a coordinator that restarts, which gives the attempt up: what is
summed is in its memory only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from federation.chain.task import RoundTask
from server.attempt.attempt import Attempt
from server.run.aggregation import GroupSum
from server.run.cohorts import Ready

__all__ = ["OpenGroups", "Summed"]


class Summed(NamedTuple):
    """A group that is through."""

    attempt: Attempt
    """Its attempt, whose files hold the sum."""
    found: GroupSum
    """Its sum."""


@dataclass(kw_only=True, slots=True)
class OpenGroups:
    """One attempt at a release of several sums."""

    number: int
    """Of the attempt, the same for each group."""
    task: RoundTask
    """The task that all were ready for."""
    waiting: dict[int, Ready]
    """Who is ready in each group whose turn has not come, by part."""
    open: Attempt | None = None
    """The attempt that messages are for."""
    summed: list[Summed] = field(default_factory=list)
    """In order of part."""
    signed: bool = False
    """Whether silos of a group that failed may have signed survivors."""
    quarantined: bool = False
    """Whether a sum was left out because honest silos cannot have made it."""

    def can_reach(self, least: int) -> bool:
        """Whether there may be so many sums still."""
        return len(self.summed) + (self.open is not None) + len(self.waiting) >= least

    @property
    def may_retry(self) -> bool:
        """Whether no silo of any group can have signed survivors."""
        closed = self.open is None or self.open.may_retry
        return closed and not self.summed and not self.signed

    def is_waiting(self, silo_id: str) -> bool:
        """Whether a silo's group has its turn later."""
        return any(silo_id in members for members in self.waiting.values())
