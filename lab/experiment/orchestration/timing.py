"""What became of a round's cohort by the deadline, and how long it took.

    ready      who answered within the deadline
    lost       fewer than the quorum are ready: no sum, and the time has passed all the same
    seconds    until the last of all answered; until the deadline where somebody did not

Covered: one attempt a round. Not covered: silos that are lost between ready and unmasking, and the
time of the protocol itself, which is seconds where the work is hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Timing", "timing_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """One round."""

    ready: tuple[str, ...]
    """In ascending order; they are in the sum unless it is lost."""
    is_lost: bool
    seconds: float


def timing_of(answers: Mapping[str, float | None], *, deadline_s: float, quorum: int) -> Timing:
    """The round of those who were asked, by when each answers; None for never."""
    in_time = {
        silo_id: after_s
        for silo_id, after_s in answers.items()
        if after_s is not None and after_s <= deadline_s
    }
    everybody = len(in_time) == len(answers)
    return Timing(
        ready=tuple(sorted(in_time)),
        is_lost=len(in_time) < quorum,
        seconds=max(in_time.values(), default=0.0) if everybody else float(deadline_s),
    )
