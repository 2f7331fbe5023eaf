"""How well scores tell members from others: rates of one seed, and of several.

A seed's threshold is the one that its own others set: at most 1 %, say, of them lie above. Over
several seeds

    the seed is the unit   mean of the seeds' true-positive rates, t interval of that mean
    pooled                 hits and false alarms added up, exact 95 % limits (Clopper–Pearson) as if
                           canaries were independent. Those of one seed are not quite: they share
                           the run's noise. The interval over seeds does not need that.

A bound is refuted if the lower limit of the pooled true-positive rate is above it at the *upper*
limit of the pooled false-positive rate. A seed's threshold lies on one of its own others, so the
rate at which an unseen one passes it is that of an order statistic, Beta(k + 1, n − k) for k alarms
among n; over several seeds that is, nearly, the limit for one alarm more a seed but for the first.
Each limit has 97.5 %, so a bound that holds is called refuted with a probability of at most 5 %,
and in fact far more rarely.

Covered: larger scores for members. Not covered: which score to compute (``attack``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.audit.bounds import rate_lower_bound, rate_upper_bound
from lab.report.interval import SeedSpread, over_seeds

__all__ = ["Rates", "Sample", "rates_at", "roc"]

Floats = npt.NDArray[np.float64]

_TWO_SIDED = 0.975


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One seed."""

    scores: Floats
    """One per canary, larger for members."""
    included: npt.NDArray[np.bool_]
    """Who is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """How well one threshold per seed tells members from others."""

    seeds: SeedSpread
    """True-positive rates, one for each seed."""
    true_positive_rate: float
    """Pooled."""
    true_positive_low: float
    true_positive_high: float
    """Its 95 % interval."""
    false_positive_rate: float
    """Pooled."""
    false_positive_high: float
    """Upper 97.5 % limit of the rate at which an unseen other passes the thresholds."""
    members: int
    others: int

    def exceeds(self, bound: Callable[[float], float]) -> bool:
        """Whether this refutes a bound on true positives, a function of the false positives."""
        return self.true_positive_low > bound(self.false_positive_high)


def rates_at(samples: Sequence[Sample], *, target: float) -> Rates:
    """The rates where in each seed at most ``target`` of the others are taken for members."""
    counts = [_counts(sample, target) for sample in samples]
    hits, members, false, others = (sum(column) for column in zip(*counts, strict=True))
    return Rates(
        seeds=over_seeds([one_hits / one_members for one_hits, one_members, _, _ in counts]),
        true_positive_rate=hits / members,
        true_positive_low=rate_lower_bound(hits, members, confidence=_TWO_SIDED),
        true_positive_high=rate_upper_bound(hits, members, confidence=_TWO_SIDED),
        false_positive_rate=false / others,
        false_positive_high=rate_upper_bound(
            false + len(samples) - 1, others, confidence=_TWO_SIDED
        ),
        members=members,
        others=others,
    )


def roc(sample: Sample) -> tuple[Floats, Floats]:
    """False- and true-positive rates of one seed at every threshold, from the strictest on."""
    order = np.argsort(-sample.scores, kind="stable")
    hits, false = np.cumsum(sample.included[order]), np.cumsum(~sample.included[order])
    return false / max(1, false[-1]), hits / max(1, hits[-1])


def _counts(sample: Sample, target: float) -> tuple[int, int, int, int]:
    """Hits, members, false alarms, others."""
    if not np.isfinite(sample.scores).all():
        raise ValueError("a score is not a number: no rate can be given")
    inside, outside = sample.scores[sample.included], np.sort(sample.scores[~sample.included])
    threshold = outside[outside.size - int(target * outside.size) - 1]
    return (
        int((inside > threshold).sum()),
        inside.size,
        int((outside > threshold).sum()),
        outside.size,
    )
