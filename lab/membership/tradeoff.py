"""What an accountant lets a membership test achieve: the most power at a false-positive rate.

(ε, δ)-DP bounds every test by TPR ≤ e^ε·FPR + δ and, read backwards, by
TPR ≤ 1 − e^{−ε}·(1 − δ − FPR) (Kairouz, Oh, Viswanath, arXiv 1311.0776, Theorem 2.1). A mechanism
has a δ for every ε; the least bound over all of them is its trade-off curve. One pair (ε, δ) alone
says little: e^8·0.01 is above one.

    sampled Gaussian steps   δ(ε) from the privacy loss distribution (Doroshenko et al., arXiv
                             2207.04380), neighbours: a unit, or a unit with gradient zero
    one Gaussian             δ(ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) (Dong, Roth, Su, arXiv
                             1905.02383, Corollary 2.13) and TPR = Φ(Φ⁻¹(FPR) + μ)

Covered: curves for the report and for the verdicts. Not covered: charging; the ledger's accountant
is ``dp.accounting.rdp``, whose ε is larger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["TradeOff", "gaussian_mu", "gaussian_power", "sampled_gaussian"]

Floats = npt.NDArray[np.float64]

_NORMAL: Final = NormalDist()
_BISECTIONS: Final = 100
_EPSILON_STEP: Final = 0.05
_DISCRETISATION: Final = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class TradeOff:
    """A mechanism's δ at many ε."""

    epsilons: Floats
    """Ascending."""
    deltas: Floats
    """δ(ε) of each."""

    def power(self, false_positive_rate: float) -> float:
        """The largest true-positive rate of any test with this false-positive rate."""
        growth = np.exp(self.epsilons)
        forward = growth * false_positive_rate + self.deltas
        backward = 1.0 - (1.0 - self.deltas - false_positive_rate) / growth
        return float(min(1.0, forward.min(), backward.min()))

    def epsilon(self, delta: float) -> float:
        """The least tabulated ε at which δ(ε) is at most ``delta``."""
        reached = np.flatnonzero(self.deltas <= delta)
        return float(self.epsilons[reached[0]]) if reached.size else math.inf


def sampled_gaussian(*, q: float, z: float, steps: int, epsilon_max: float) -> TradeOff:
    """The curve of ``steps`` Gaussian releases with noise multiplier z and Poisson sampling q.

    The table ends at ``epsilon_max``.
    """
    from dp_accounting.pld import privacy_loss_distribution

    # Adding and removing a unit are both in it, which is what leaving its gradient out is.
    step = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=z, sampling_prob=q, value_discretization_interval=_DISCRETISATION
    )
    epsilons = np.arange(0.0, epsilon_max + _EPSILON_STEP, _EPSILON_STEP)
    deltas = step.self_compose(steps).get_delta_for_epsilon(epsilons)
    return TradeOff(epsilons=epsilons, deltas=np.asarray(deltas, dtype=np.float64))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The μ of the one Gaussian that is exactly (ε, δ)-DP."""

    def delta_of(mu: float) -> float:
        return _NORMAL.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * _NORMAL.cdf(
            -mu / 2 - epsilon / mu
        )

    low, high = 1e-6, 100.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if delta_of(middle) > delta:
            high = middle
        else:
            low = middle
    return low


def gaussian_power(mu: float, false_positive_rate: float) -> float:
    """TPR of the best test against one Gaussian: Φ(Φ⁻¹(FPR) + μ)."""
    return _NORMAL.cdf(_NORMAL.inv_cdf(false_positive_rate) + mu)
