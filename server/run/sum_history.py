"""What a run's closed sums say of its silos: that one spoils them, or that the newest stands out.

Both are computed from the closed releases alone, which are in the store: a restart changes neither.

Covered: quarantined sums in a row; the newest norm against earlier ones. Not covered: a silo that
spoils every other sum, and one that moves the norm by no more than it varies by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile
from statistics import median
from typing import Final

from federation.aggregate.registry import ALTERNATING
from federation.plan.plan import Plan
from server.errors import RunError
from server.figures import RoundFigures

__all__ = ["norm_ratio", "require_usable"]

SUMMED: Final = frozenset({"aggregated", "quarantined"})
"""Outcomes of releases that had a sum; the others say nothing of the silos."""
LEAST_EARLIER: Final = 3
"""Fewer earlier norms have no median worth comparing with."""


def require_usable(finished: Sequence[RoundFigures], plan: Plan) -> None:
    """End a run whose last sums were all quarantined.

    Args:
        finished: Its closed releases, oldest first.
        plan: Says how many in a row.

    Raises:
        RunError: There are as many; the text says what to do.
    """
    summed = [done.outcome for done in finished if done.outcome in SUMMED]
    in_a_row = list(takewhile("quarantined".__eq__, reversed(summed)))
    if len(in_a_row) >= plan.rounds.max_quarantined:
        raise RunError(
            f"{len(in_a_row)} sums in a row were not applied (rounds.max_quarantined), as honest "
            "silos cannot have made them. Which silo spoils them cannot be seen: ask the sites, "
            "leave out those that cannot explain it (chorale silo suspend), and start a new run "
            "from the last adapter: docs/operations/SumQuarantined.md"
        )


def norm_ratio(finished: Sequence[RoundFigures], plan: Plan) -> float:
    """‖Δ̄‖ of the newest sum over the median of the run's earlier ones; noise is in all of them.

    Args:
        finished: Its closed releases, oldest first.
        plan: Says whether the same factors are trained in each round.

    Returns:
        NaN before a fourth sum of the same factors, and where the median is zero.
    """
    sums = [done for done in finished if done.outcome == "aggregated"]
    if not sums:
        return math.nan
    newest, period = sums[-1], 2 if plan.aggregation.method in ALTERNATING else 1
    earlier = [done.update_norm for done in sums[:-1] if (newest.round - done.round) % period == 0]
    usual = median(earlier) if len(earlier) >= LEAST_EARLIER else 0.0
    return newest.update_norm / usual if usual > 0.0 else math.nan
