"""How many tasks each silo gets: quotas from a Beta distribution that keep their mean.

COVERAGEPARTITION (FedAgent, arXiv appendix): μ = (average − least)/(most − least), x ~ Beta(μξ,
(1−μ)ξ) for each silo, u = least + x·(most − least), scaled so that all of them add up to what there
is to deal, rounded by largest remainder within the bounds. A large ξ makes silos alike, a small one
puts them at the bounds.

Invariants:
    1. Quotas lie within the bounds and have exactly the sum that was asked for.
    2. One factor scales all of them; who would leave a bound by it stays there.
    3. Each silo draws x from a stream of its own.

Covered: whole quotas and shares. Not covered: which tasks (``partitions.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lab.partitions.errors import DialError
from lab.partitions.streams import Streams

__all__ = ["Bounds", "quotas", "require_concentration", "shares"]

Floats = npt.NDArray[np.float64]
_LEAST_DRAWN: Final = 1e-9
"""What a draw is at least, of the upper bound."""
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Least, average and most of a silo's quota."""

    least: float
    """No silo has less."""
    average: float
    """All silos together have so many times their number."""
    most: float
    """No silo has more."""

    def __post_init__(self) -> None:
        """Refuse bounds that no quota lies between.

        Raises:
            DialError: They are not in order, or negative.
        """
        if not 0 <= self.least <= self.average <= self.most:
            raise DialError(
                "least, average and most: in this order and from 0 on, got "
                f"{self.least:g}, {self.average:g}, {self.most:g}"
            )

    @property
    def mu(self) -> float:
        """μ: where between the bounds the average lies."""
        width = self.most - self.least
        return (self.average - self.least) / width if width else 0.0

    def spread(self, unit: float) -> float:
        """C: the largest variance of a quota of this mean, over ``unit`` squared."""
        if unit <= 0:
            raise DialError("average: more than 0, or the quotas are all 0 and have no dispersion")
        return (self.most - self.least) ** 2 * self.mu * (1 - self.mu) / unit**2


def require_concentration(name: str, value: float) -> None:
    """Refuse what is no concentration of a Beta distribution.

    Raises:
        DialError: It is not positive and finite.
    """
    if not 1e-6 <= value <= 1e9:  # beyond them a quota is a bound or the average
        raise DialError(f"{name}: from 1e-6 to 1e9, small for unlike silos, got {value:g}")


def quotas(bounds: Bounds, concentration: float, *, silos: int, total: int, rng: Streams) -> Counts:
    """Whole quotas that add up to ``total``.

    Raises:
        DialError: The bounds are not whole, or so many silos cannot have that sum within them.
    """
    least, most = int(bounds.least), int(bounds.most)
    if (least, most) != (bounds.least, bounds.most):
        raise DialError(
            f"least and most: whole numbers of tasks, got {bounds.least:g} and {bounds.most:g}"
        )
    if not silos * least <= total <= silos * most:
        raise DialError(
            f"{silos} silos with {least} to {most} tasks each take {silos * least} to "
            f"{silos * most} in all, and {total} are to be dealt: widen the bounds"
        )
    scaled = _scaled(bounds, concentration, silos=silos, total=float(total), rng=rng)
    whole = np.floor(scaled + 1e-9).astype(np.int64)
    # Who is at the upper bound has no remainder, so nobody is lifted above it.
    remainders = np.where(whole < most, scaled - whole, -1.0)
    order = np.argsort(-remainders, kind="stable")
    whole[order[: total - int(whole.sum())]] += 1
    return whole


def shares(bounds: Bounds, concentration: float, *, silos: int, rng: Streams) -> Floats:
    """Quotas as shares of a silo's tasks, whose mean is the average.

    Raises:
        DialError: A bound is above 1.
    """
    if bounds.most > 1:
        raise DialError(f"most: a share of a silo's tasks, at most 1, got {bounds.most:g}")
    return _scaled(bounds, concentration, silos=silos, total=silos * bounds.average, rng=rng)


def _scaled(
    bounds: Bounds, concentration: float, *, silos: int, total: float, rng: Streams
) -> Floats:
    """Draws from the Beta distribution, times the factor that gives them their sum."""
    require_concentration("concentration", concentration)
    if silos < 1:
        raise DialError(f"silos: at least 1, got {silos}")
    drawn = np.full(silos, bounds.average)
    if 0 < bounds.mu < 1:
        a, b = bounds.mu * concentration, (1 - bounds.mu) * concentration
        x = np.array([rng.of("quota", silo).beta(a, b) for silo in range(silos)])
        drawn = bounds.least + x * (bounds.most - bounds.least)
    # A draw of 0 would stay at 0 under every factor.
    drawn = np.maximum(drawn, _LEAST_DRAWN * bounds.most)

    def at(factor: float) -> Floats:
        return np.asarray(np.clip(factor * drawn, bounds.least, bounds.most), dtype=np.float64)

    low, high = 0.0, 1.0
    # Safety: with the largest factor everybody is at the upper bound, up to rounding of the sum.
    while at(high).sum() < total and high < 2 / _LEAST_DRAWN:
        high *= 2
    # Down to neighbouring floats.
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if at(middle).sum() < total else (low, middle)
    return at(high)
