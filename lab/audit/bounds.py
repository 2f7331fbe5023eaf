"""What an audit reports, and the confidence bounds under every audit.

An audit plays the attacker: it runs a mechanism on two inputs that differ by one unit and asks how
well anyone could tell them apart. It can only ever prove a claim wrong. ``measured`` is a bound
that the mechanism's true figure exceeds with the stated confidence, so ``measured > claimed`` means
that the mechanism leaks more than it says, and ``measured ≤ claimed`` means that this attacker, at
this number of releases, did not find a leak.

Invariants:
    1. No audit passes on doubt: a NaN anywhere, or no releases, is not ``holds``.
    2. Every bound is exact at the stated confidence (Clopper–Pearson, or a named tail bound);
       whatever is chosen from data is chosen from releases that the bound does not count.
    3. Arrays in, figures out: the mechanism under audit is a parameter, never a copy of its code.

Covered: results, binomial confidence bounds, ε from a pair of rates.
Not covered: which mechanism is audited (``tests/adversary/audit``), the accountant
(``dp.accounting.rdp``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

from scipy.special import betaincinv

from dp.errors import SpecError

__all__ = [
    "CONFIDENCE",
    "STANDARD_NORMAL",
    "AuditResult",
    "epsilon_lower_bound",
    "rate_lower_bound",
    "rate_upper_bound",
]

CONFIDENCE: Final = 0.95
"""Of every bound that an audit reports, where it does not say otherwise."""
STANDARD_NORMAL: Final = NormalDist()


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditResult:
    """One claim and what an attack made of it."""

    audit: str
    """Which audit and, where it has several, which of its questions."""
    quantity: str
    """What both figures are."""
    claimed: float
    """The largest value that the mechanism admits to."""
    measured: float
    """Exceeded by the true value, with the stated confidence."""
    estimate: float
    """The same without its confidence margin, for reading only."""
    releases: int
    """Observations that the bound counts."""

    @property
    def holds(self) -> bool:
        """Whether the attack found nothing; NaN never holds."""
        return self.releases > 0 and self.measured <= self.claimed

    def __str__(self) -> str:
        """One line for a report."""
        verdict = "holds" if self.holds else "VIOLATED"
        return (
            f"{verdict:8} {self.audit:28} {self.quantity}: claimed {self.claimed:.4g}, "
            f"measured {self.measured:.4g} (estimate {self.estimate:.4g}, n = {self.releases})"
        )


def rate_lower_bound(hits: int, trials: int, *, confidence: float = CONFIDENCE) -> float:
    """One-sided lower bound on a rate: Clopper and Pearson, Biometrika 26 (1934).

    The p at which P[Binomial(n, p) ≥ k] = I_p(k, n−k+1) equals 1 − confidence.
    """
    _require_rate(hits, trials, confidence)
    return 0.0 if hits == 0 else float(betaincinv(hits, trials - hits + 1, 1.0 - confidence))


def rate_upper_bound(hits: int, trials: int, *, confidence: float = CONFIDENCE) -> float:
    """One-sided upper bound on a rate: Clopper and Pearson, Biometrika 26 (1934)."""
    _require_rate(hits, trials, confidence)
    # By symmetry, so that rates near zero keep their digits.
    return 1.0 - rate_lower_bound(trials - hits, trials, confidence=confidence)


def epsilon_lower_bound(
    *,
    true_positives: int,
    present: int,
    false_positives: int,
    absent: int,
    delta: float,
    confidence: float = CONFIDENCE,
) -> float:
    """ε that a test of fixed threshold proves: ln((TPR − δ)/FPR), both rates at their worst.

    (ε, δ)-DP means TPR ≤ e^ε·FPR + δ for every test (Kairouz, Oh, Viswanath, arXiv 1311.0776,
    Theorem 2.1). Each rate has its Clopper–Pearson bound at half of the error probability. Where
    the rates prove nothing, ε is 0.
    """
    each = 1.0 - (1.0 - confidence) / 2.0
    low = rate_lower_bound(true_positives, present, confidence=each)
    high = rate_upper_bound(false_positives, absent, confidence=each)
    if math.isnan(low) or math.isnan(high):
        return math.nan
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def _require_rate(hits: int, trials: int, confidence: float) -> None:
    if not 0 <= hits <= trials or trials == 0:
        raise SpecError(f"no rate of {hits} hits in {trials} trials")
    if not 0.5 <= confidence < 1.0:
        raise SpecError(f"a confidence lies in [0.5, 1), got {confidence!r}")
