"""One-run audit: many canaries, one training, one lower bound on ε.

Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run" (arXiv 2305.08846): each of m
canaries is put into the training data by a fair coin of its own. From the trained model alone the
auditor guesses r of the coins and abstains from the others. If the training is (ε, δ)-DP, the
number of right guesses v is, by Theorem 5.2, not much larger than Binomial(r, e^ε/(e^ε + 1)):

    P[V ≥ v] ≤ β + 2mδ·α,   β = P[B ≥ v],   α = max_{1≤i≤v} P[v > B ≥ v − i]/i

with B ~ Binomial(r, e^ε/(e^ε + 1)). The ε at which the right side falls to 1 − confidence is the
lower bound.

Invariants:
    1. How many coins are guessed is fixed before the scores are looked at.
    2. The coins are fair and independent; whoever draws them shows them to nobody before the
       scores exist.

Covered: any training whose result gives every canary a score.
Not covered: bugs that only a single step shows; ``lab.audit.steps`` is the sharper test of those.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from dp.errors import SpecError
from lab.audit.bounds import CONFIDENCE, AuditResult

__all__ = ["audit_one_run", "one_run_p_value"]

_BISECTIONS: Final = 40
_LARGEST_EPSILON: Final = 64.0


def audit_one_run(
    *,
    scores: npt.NDArray[np.float64],
    included: npt.NDArray[np.bool_],
    guesses: int,
    delta: float,
    claimed_epsilon: float,
    confidence: float = CONFIDENCE,
    name: str = "one run",
) -> AuditResult:
    """Guess the highest scores as included, the lowest as left out, and bound ε from below.

    Args:
        scores: One per canary; larger means more likely to have been trained on.
        included: The coins.
        guesses: r, an even number of coins to guess: half of them from each end.
        delta: δ of the claim.
        claimed_epsilon: What the accountant says of the training.
        confidence: That the true ε is at least the measured one.
        name: Shown in the report.
    """
    m = scores.size
    if scores.shape != included.shape or scores.ndim != 1:
        raise SpecError("one score for each coin")
    if not 2 <= guesses <= m or guesses % 2:
        raise SpecError(f"guess an even number of at most {m} coins, got {guesses}")
    measured, estimate = math.nan, math.nan
    if np.isfinite(scores).all():
        order = np.argsort(scores, kind="stable")
        half = guesses // 2
        right = int(included[order[-half:]].sum()) + int((~included[order[:half]]).sum())
        measured = _largest_refuted(m, guesses, right, delta, 1.0 - confidence)
        wrong = guesses - right
        estimate = max(0.0, math.log(right / wrong)) if right and wrong else math.inf * right
        estimate = 0.0 if math.isnan(estimate) else estimate
    return AuditResult(
        audit=name,
        quantity=f"epsilon at delta {delta:g}",
        claimed=claimed_epsilon,
        measured=measured,
        estimate=estimate,
        releases=guesses,
    )


def one_run_p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Upper bound on the probability of v or more right guesses: arXiv 2305.08846, Theorem 5.2.

    Of m canaries r are guessed; ε and δ are those of the hypothesis.
    """
    if not 0 <= v <= r <= m:
        raise SpecError(f"{v} right ones of {r} guesses at {m} coins")
    # P[B = k] for k = 0 … r; ln of success and failure without cancellation.
    k = np.arange(r + 1, dtype=np.float64)
    log_choose = np.array([math.lgamma(r + 1) - _log_choose_rest(r, j) for j in range(r + 1)])
    log_success = -math.log1p(math.exp(-epsilon))
    mass = np.exp(log_choose + k * log_success + (r - k) * (log_success - epsilon))
    beta = float(mass[v:].sum())
    # P[v > B ≥ v − i] for i = 1 … v.
    below = np.cumsum(mass[:v][::-1])
    alpha = float((below / np.arange(1, v + 1)).max()) if v else 0.0
    return min(1.0, beta + 2.0 * m * delta * alpha)


def _log_choose_rest(r: int, k: int) -> float:
    return math.lgamma(k + 1) + math.lgamma(r - k + 1)


def _largest_refuted(m: int, r: int, v: int, delta: float, error: float) -> float:
    """The largest ε whose p-value is still below ``error``; 0 if none is."""
    if one_run_p_value(m, r, v, 0.0, delta) > error:
        return 0.0
    low, high = 0.0, _LARGEST_EPSILON
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        if one_run_p_value(m, r, v, middle, delta) <= error:
            low = middle
        else:
            high = middle
    return low
