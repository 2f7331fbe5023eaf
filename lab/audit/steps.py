"""Whole-run audit: the log-likelihood ratio of every step, summed, against the claimed ε.

The attacker sees every release of a run and knows the canary's direction. Per step, with x the
release along it in multiples of C,

    without the canary   x ~ N(0, z²)
    with it              x ~ (1 − q)·N(0, z²) + q·N(1, z²)
    L(x) = ln(1 − q + q·e^{(2x − 1)/(2z²)})

and the sum of L over the steps is the most powerful test of a correct run (Neyman and Pearson). A
run that differs from the claim moves the sum, mostly to where the claim says it cannot be. The
final adapter alone hides much of that, which is why every step is looked at.

Invariants:
    1. The threshold, and in which direction the test looks, are chosen from the first part of the
       experiments; the bound counts the rest alone.
    2. ε is bounded by Clopper–Pearson on both rates: ``lab.audit.bounds.epsilon_lower_bound``.

Covered: composition, sampling, noise, clipping of a unit with several rows.
Not covered: leaks that show only in coordinates away from the canary's (``lab.audit.noise``).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from dp.errors import SpecError
from lab.audit.bounds import CONFIDENCE, AuditResult, epsilon_lower_bound
from lab.audit.canaries import Observations

__all__ = ["audit_steps", "step_log_likelihood_ratio"]

Floats = npt.NDArray[np.float64]

_CHOOSING: Final = 1.0 / 3.0
_CANDIDATES: Final = 200


def step_log_likelihood_ratio(x: Floats, *, q: float, z: float) -> Floats:
    """L(x) of the module."""
    if not (0.0 < q <= 1.0 and z > 0.0 and math.isfinite(z)):
        raise SpecError(f"a step has q in (0, 1] and z > 0, got {q!r}, {z!r}")
    exponent = (2.0 * x - 1.0) / (2.0 * z * z)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.logaddexp(np.log1p(-q), math.log(q) + exponent))


def audit_steps(
    observations: Observations,
    *,
    q: float,
    z: float,
    delta: float,
    claimed_epsilon: float,
    confidence: float = CONFIDENCE,
    name: str = "steps",
) -> AuditResult:
    """Bound the ε of a run from below.

    Args:
        observations: Experiments of one canary over all steps of a run; a third of them chooses
            the threshold.
        q: The claimed sampling rate.
        z: The claimed noise multiplier.
        delta: δ of the claim.
        claimed_epsilon: What the accountant says of the whole run.
        confidence: That the true ε is at least the measured one.
        name: Shown in the report.
    """
    choosing, counting = (_sums(part, q=q, z=z) for part in observations.split(_CHOOSING))
    measured, estimate = math.nan, math.nan
    if np.isfinite(observations.present).all() and np.isfinite(observations.absent).all():
        test = _choose(choosing, delta=delta, confidence=confidence)
        counts = _counts(counting, test)
        measured = epsilon_lower_bound(**counts, delta=delta, confidence=confidence)
        estimate = _plain(**counts, delta=delta)
    return AuditResult(
        audit=name,
        quantity=f"epsilon at delta {delta:g}",
        claimed=claimed_epsilon,
        measured=measured,
        estimate=estimate,
        releases=counting.present.size + counting.absent.size,
    )


class _Sums(NamedTuple):
    """The summed log-likelihood ratio of each experiment."""

    present: Floats
    absent: Floats


class _Test(NamedTuple):
    """Says "present" above the threshold, or "absent" at or below it."""

    threshold: float
    detects_presence: bool


class _Counts(TypedDict):
    true_positives: int
    present: int
    false_positives: int
    absent: int


def _sums(observations: Observations, *, q: float, z: float) -> _Sums:
    return _Sums(
        present=step_log_likelihood_ratio(observations.present, q=q, z=z).sum(axis=1),
        absent=step_log_likelihood_ratio(observations.absent, q=q, z=z).sum(axis=1),
    )


def _choose(sums: _Sums, *, delta: float, confidence: float) -> _Test:
    """The test with the best bound on these experiments."""
    pooled = np.sort(np.concatenate(sums))
    places = np.linspace(0, pooled.size - 1, min(_CANDIDATES, pooled.size)).astype(int)
    tests = [
        _Test(float(threshold), detects)
        for threshold in np.unique(pooled[places])
        for detects in (True, False)
    ]
    return max(
        tests,
        key=lambda test: epsilon_lower_bound(
            **_counts(sums, test), delta=delta, confidence=confidence
        ),
    )


def _counts(sums: _Sums, test: _Test) -> _Counts:
    above = tuple(int((part > test.threshold).sum()) for part in sums)
    if test.detects_presence:
        return _Counts(
            true_positives=above[0],
            present=sums.present.size,
            false_positives=above[1],
            absent=sums.absent.size,
        )
    return _Counts(
        true_positives=sums.absent.size - above[1],
        present=sums.absent.size,
        false_positives=sums.present.size - above[0],
        absent=sums.present.size,
    )


def _plain(
    *, true_positives: int, present: int, false_positives: int, absent: int, delta: float
) -> float:
    power = true_positives / present - delta
    if power <= 0.0:
        return 0.0
    return math.log(power * absent / false_positives) if false_positives else math.inf
