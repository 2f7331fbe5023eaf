"""A figure of a masked sum and the standard error of its noise.

Covered: the pair, and whether its mean says anything. Not covered: what the standard errors are
(``dp.noise.metrics_block``, ``federation.chain.sums``); how a ratio is shown
(``dp.noise.figures``).
"""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["Estimate"]


class Estimate(NamedTuple):
    """A mean over silos and the standard error that the noise gives it."""

    mean: float
    standard_error: float

    @property
    def reportable(self) -> float:
        """The mean, or NaN ("below noise") where the error exceeds it."""
        return math.nan if self.standard_error > abs(self.mean) else self.mean
