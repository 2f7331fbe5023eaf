"""What vetoes come to: when a run stops, and which adapter it is proposed to go back to.

With v the mean over the silos in a round's sum and e the standard error of its noise, a run stops
after the round if ::

    v ≥ share    and    v ≥ errors · e

Without any veto v is noise, so a round stops for nothing with a chance of at most
P(N(0, 1) ≥ errors): 1 in 741 at 3 standard errors.

Covered: the rule alone, from public figures. Not covered: pausing a run and proposing
(``server/run/vetoes.py``), the sum itself (``sums.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

from dp.noise.estimate import Estimate
from federation.plan.tables import VetoesSection

__all__ = ["origin_of", "stops"]


def stops(asked: VetoesSection | None, vetoes: Estimate, *, round_number: int, rounds: int) -> bool:
    """Whether a closed round's vetoes stop a run; nothing is left to stop after its last."""
    if asked is None or round_number >= rounds:
        return False
    # NaN, where nothing was summed, is not enough for anything.
    return vetoes.mean >= asked.share and vetoes.mean >= asked.errors * vetoes.standard_error


def origin_of(earlier: Mapping[int, int], round_number: int) -> int:
    """The round that released the adapter which a round ended with; 0 is a run's initial one.

    ``earlier`` has each round that released none: the round whose adapter it ended with.
    """
    while round_number in earlier:
        round_number = earlier[round_number]
    return round_number
