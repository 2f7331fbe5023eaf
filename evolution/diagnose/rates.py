"""A share that was counted, with Wilson's 95 % limits (JASA 22, 1927).

Covered: counts of what is 0 or 1. Not covered: counts whose single cases hang together more than
the interval knows, as the steps of one episode do; limits are then too narrow, and say so where
they are shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["Rate"]

_Z: Final = 1.959963984540054


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """``count`` of ``total``.

    Raises:
        ValueError: That is no share.
    """

    count: int
    """Of those that are."""
    total: int
    """Of all; may be 0, and then nothing is known."""

    def __post_init__(self) -> None:
        if not 0 <= self.count <= self.total:
            raise ValueError(f"{self.count} of {self.total} is no share")

    @property
    def known(self) -> bool:
        """Whether anything was counted."""
        return self.total > 0

    @property
    def value(self) -> float:
        """The share; NaN where nothing was counted."""
        return self.count / self.total if self.total else math.nan

    @property
    def low(self) -> float:
        """Lower limit; 0 where nothing was counted, and exactly 0 where none is."""
        return max(0.0, self._centre - self._half) if self.count else 0.0

    @property
    def high(self) -> float:
        """Upper limit; 1 where nothing was counted, and exactly 1 where all are."""
        return min(1.0, self._centre + self._half) if self.count < self.total else 1.0

    @property
    def _centre(self) -> float:
        n = self.total
        return (self.value + _Z * _Z / (2 * n)) / (1 + _Z * _Z / n)

    @property
    def _half(self) -> float:
        n, p = self.total, self.value
        return _Z * math.sqrt(p * (1 - p) / n + _Z * _Z / (4 * n * n)) / (1 + _Z * _Z / n)

    def __add__(self, other: Rate) -> Rate:
        return Rate(count=self.count + other.count, total=self.total + other.total)

    def __str__(self) -> str:
        """Percent with its limits."""
        if not self.known:
            return "not known"
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"
