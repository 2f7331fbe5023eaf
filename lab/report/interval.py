"""Intervals of a mean of several success rates, and of a mean over seeds. All are 95 %.

* `combined`: Σ w_i·p_i for independent proportions p_i = x_i/n_i, by recovering each variance from
  its Wilson limits [l_i, u_i] (MOVER):

      L = Σ w_i p̂_i − √Σ w_i² (p̂_i − l_i)²,   U = Σ w_i p̂_i + √Σ w_i² (u_i − p̂_i)²   (w_i ≥ 0)

  G. Y. Zou, W. Huang, X. Zhang, "A note on confidence interval estimation for a linear function of
  binomial proportions", Comput. Stat. Data Anal. 53 (2009), eq. 3. Away from 0 and 1 it tends to
  the binomial variances Σ w_i² p̂_i(1 − p̂_i)/n_i; with one proportion it is Wilson's. It speaks of
  *these* adapters on more tasks of the same kind.
* `over_seeds`: x̄ ± t_{0.975, S−1}·s/√S over S ≥ 3 seeds (Student, Biometrika 6, 1908). It speaks of
  *another run* with the same setting, on the same tasks.

Covered: independent tasks. Not covered: the same task at another seed counts as another task in
`combined`; the seed interval does not need that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Final

from scipy.special import stdtrit

from lab.wilson import Interval, wilson

__all__ = ["LEAST_SEEDS", "SeedSpread", "Stratum", "combined", "over_seeds"]

LEAST_SEEDS: Final = 3
_TAIL: Final = 0.975


@dataclass(frozen=True, kw_only=True, slots=True)
class Stratum:
    """Some tasks and what they count for."""

    weight: float
    """w_i, at least 0."""
    successes: int
    """x_i."""
    tasks: int
    """n_i, at least 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedSpread:
    """How a rate differs between seeds."""

    rates: tuple[float, ...]
    """One for each seed, ascending by seed."""
    low: float
    """Lower end of the t interval of their mean; NaN below three seeds. Not cut at 0."""
    high: float
    """Upper end; NaN below three seeds. Not cut at 1."""

    @property
    def mean(self) -> float:
        """x̄."""
        return mean(self.rates)

    @property
    def deviation(self) -> float:
        """s, with S − 1 in the denominator; NaN for one seed."""
        return stdev(self.rates) if len(self.rates) > 1 else math.nan


def combined(strata: Sequence[Stratum]) -> Interval:
    """The interval of Σ w_i·p_i.

    Raises:
        ValueError: No stratum, a negative weight, or counts that are no rate.
    """
    if not strata or min(stratum.weight for stratum in strata) < 0:
        raise ValueError("a combined rate takes strata with weights of at least 0")
    rate = below = above = 0.0
    for stratum in strata:
        one = wilson(stratum.successes, stratum.tasks)
        rate += stratum.weight * one.rate
        below += (stratum.weight * (one.rate - one.low)) ** 2
        above += (stratum.weight * (one.high - one.rate)) ** 2
    return Interval(
        rate=rate,
        low=rate - math.sqrt(below),
        high=rate + math.sqrt(above),
        episodes=sum(stratum.tasks for stratum in strata),
    )


def over_seeds(rates: Sequence[float]) -> SeedSpread:
    """The spread of a rate over seeds, in the order given.

    Raises:
        ValueError: No rate.
    """
    if not rates:
        raise ValueError("no seed, no spread")
    low = high = math.nan
    if len(rates) >= LEAST_SEEDS:
        half = float(stdtrit(len(rates) - 1, _TAIL)) * stdev(rates) / math.sqrt(len(rates))
        low, high = mean(rates) - half, mean(rates) + half
    return SeedSpread(rates=tuple(rates), low=low, high=high)
