"""How many seeds tell a difference, from the seeds at hand.

The unit is the seed: of S seeds the S differences of two settings, paired, are tested against 0 by
Student's two-sided t at 5 %. With standard deviation σ of a difference, n seeds and a true
difference d its power is

    1 − F(t; n − 1, δ) + F(−t; n − 1, δ),   δ = √n·|d|/σ,   t = t_{0.975, n−1},

with F the noncentral t distribution (J. Cohen, Statistical Power Analysis for the Behavioral
Sciences, 2nd ed. 1988, ch. 2; R's ``power.t.test(type = "paired", strict = TRUE)``).

σ is not known: s is its estimate from S seeds, and σ² lies in (S − 1)s²/χ²_{0.975, S−1} to
(S − 1)s²/χ²_{0.025, S−1} with 95 % for normal differences. With three seeds the upper end is 6.3·s,
so what is planned for s alone may be short by a factor of 39: the numbers of seeds are said for
both ends as well.

Invariants:
    1. ``seeds_needed`` is the least n ≥ 2 whose power is as asked, and None beyond ``MOST_SEEDS``.
    2. A deviation of 0, or one seed, is an error and never a number.

Covered: paired differences over seeds, as ``paired.py`` has them. Not covered: how differences vary
between panels of tasks; the chance that a *true* difference is as large as the one that is planned
for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Final

from scipy.special import chdtri, nctdtr, stdtrit

from lab.evidence.errors import PowerError

__all__ = ["MOST_SEEDS", "Deviation", "Planned", "detectable", "planned", "power", "seeds_needed"]

MOST_SEEDS: Final = 100_000
_TAIL: Final = 0.975
_STEPS: Final = 200
_FARTHEST: Final = 64.0
"""d/σ that two seeds already tell with a power of nearly 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deviation:
    """σ of a difference between two settings, from seeds."""

    estimate: float
    """s."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    """Upper end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """What seeds can tell; each triple is for s and for both ends of its interval."""

    differences: tuple[float, ...]
    """At the seeds at hand, as rates."""
    mean: float
    """Of them."""
    deviation: Deviation
    """Of them."""
    difference: float
    """That is to be told."""
    power: float
    """With which."""
    needed: tuple[int | None, int | None, int | None]
    """Seeds for that: at s, at the lower end, at the upper end; None beyond ``MOST_SEEDS``."""
    seeds: int
    """For which the least difference is said."""
    detectable: tuple[float, float, float]
    """The least difference that so many seeds tell with this power."""
    reached: tuple[float, float, float]
    """The power with which so many seeds tell ``difference``."""


def power(seeds: int, difference: float, deviation: float) -> float:
    """With which chance so many seeds tell a true difference."""
    freedom, shift = seeds - 1, math.sqrt(seeds) * abs(difference) / deviation
    limit = float(stdtrit(freedom, _TAIL))
    # Far out F is 0, and its series may answer with no number: then the power is 1.
    below, above = (float(nctdtr(freedom, shift, t)) for t in (limit, -limit))
    return 1.0 - (0.0 if math.isnan(below) else below) + (0.0 if math.isnan(above) else above)


def seeds_needed(difference: float, deviation: float, wanted: float) -> int | None:
    """The least number of seeds whose power is as wanted; None beyond ``MOST_SEEDS``."""
    high = 2
    while power(high, difference, deviation) < wanted:
        if high >= MOST_SEEDS:
            return None
        high = min(2 * high, MOST_SEEDS)
    low = high // 2
    # Power grows with the number of seeds.
    while high - low > 1:
        middle = (low + high) // 2
        if middle >= 2 and power(middle, difference, deviation) >= wanted:
            high = middle
        else:
            low = middle
    return high


def detectable(seeds: int, deviation: float, wanted: float) -> float:
    """The least true difference that so many seeds tell with the power wanted."""
    low, high = 0.0, _FARTHEST * deviation
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if power(seeds, middle, deviation) < wanted:
            low = middle
        else:
            high = middle
    return high


def planned(
    differences: Sequence[float], *, difference: float, wanted: float, seeds: int | None = None
) -> Planned:
    """What more seeds of two settings would tell, from their paired differences so far.

    Raises:
        PowerError: There are no two seeds, or all differences are equal.
    """
    if len(differences) < 2:  # a deviation takes two
        raise PowerError(
            f"{len(differences)} seed has no spread: run both settings at two seeds or more"
        )
    estimate = stdev(differences)
    if estimate <= 0:
        raise PowerError(
            f"the difference is {100 * differences[0]:+.2f} points at all {len(differences)} "
            "seeds: without a spread no number of seeds follows"
        )
    freedom = len(differences) - 1
    low, high = (
        estimate * math.sqrt(freedom / float(chdtri(freedom, upper)))
        for upper in (1 - _TAIL, _TAIL)
    )
    count = len(differences) if seeds is None else seeds
    at = (estimate, low, high)
    needed = [seeds_needed(difference, one, wanted) for one in at]
    least = [detectable(count, one, wanted) for one in at]
    reached = [power(count, difference, one) for one in at]
    return Planned(
        differences=tuple(differences),
        mean=mean(differences),
        deviation=Deviation(estimate=estimate, low=low, high=high),
        difference=difference,
        power=wanted,
        needed=(needed[0], needed[1], needed[2]),
        seeds=count,
        detectable=(least[0], least[1], least[2]),
        reached=(reached[0], reached[1], reached[2]),
    )
