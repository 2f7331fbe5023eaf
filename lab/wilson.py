"""Wilson score interval of a success rate.

Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
JASA 22 (1927). Covered: independent tries. Not covered: repeated tries of one task, which are not
independent; count each task once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["Interval", "wilson"]

Z_95: Final = 1.959963984540054


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A rate with its 95 % interval."""

    rate: float
    low: float
    high: float
    episodes: int

    def overlaps(self, other: Interval) -> bool:
        """Whether the two intervals share a point."""
        return self.low <= other.high and other.low <= self.high

    def __str__(self) -> str:
        """Percent, as the tables print it."""
        return f"{100 * self.rate:5.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def wilson(successes: int, episodes: int, z: float = Z_95) -> Interval:
    """The interval of ``successes`` out of ``episodes``.

    Raises:
        ValueError: no episodes, or more successes than episodes.
    """
    if not 0 <= successes <= episodes or episodes == 0:
        raise ValueError(f"no rate of {successes} successes in {episodes} episodes")
    rate = successes / episodes
    centre = (rate + z * z / (2 * episodes)) / (1 + z * z / episodes)
    half = (
        z
        * math.sqrt(rate * (1 - rate) / episodes + z * z / (4 * episodes * episodes))
        / (1 + z * z / episodes)
    )
    return Interval(
        rate=rate, low=max(0.0, centre - half), high=min(1.0, centre + half), episodes=episodes
    )
