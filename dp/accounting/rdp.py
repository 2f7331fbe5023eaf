"""Rényi differential privacy of the (Poisson-subsampled) Gaussian, and its conversion to (ε, δ).

Orders: the integers 2…256 and 320, 384, 512, 768, 1024. At integer orders the subsampled formula
is exact for the discrete Gaussian as well, because a lattice sum is shift invariant.

Adjacency is zero-out: a unit's contribution is there, or is the null one. ``rdp_replaced`` is for
two contributions of the same unit, neither of which is null, as when one task inside it changes.

Invariants:
    1. Any numerical doubt gives ε = inf: a NaN, a negative divergence, a wrong length.
    2. ε never decreases with steps or q, and never increases with z or δ.

Covered: composition by addition, one (ε, δ) conversion, calibration of z.
Not covered: privacy loss distributions (reports only), amplification by shuffling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from dp.errors import SpecError

Divergences = npt.NDArray[np.float64]

ORDERS: Final[tuple[int, ...]] = (*range(2, 257), 320, 384, 512, 768, 1024)
_ORDERS: Final = np.array(ORDERS, dtype=np.float64)
_DOUBLED: Final = tuple(2 * order for order in ORDERS)
_BELOW_DOUBLED: Final = tuple(2 * order - 1 for order in ORDERS)
_MAX_NOISE_MULTIPLIER: Final = 1e9
_SPARE_FRACTION: Final = 0.2


def rdp_gaussian(z: float, steps: int, orders: Sequence[int] = ORDERS) -> Divergences:
    """RDP of ``steps`` releases with noise multiplier z, without sampling.

    R(α) = steps · α / (2z²): Mironov, "Rényi Differential Privacy", arXiv 1702.07476, Cor. 3; for
    the discrete Gaussian, Canonne–Kamath–Steinke, arXiv 2004.00010, Prop. 5.
    """
    _require_release(1.0, z, steps)
    with np.errstate(over="ignore", divide="ignore"):
        return np.asarray(np.array(orders, dtype=np.float64) * (steps / 2.0) / z / z)


def rdp_subsampled(q: float, z: float, steps: int, orders: Sequence[int] = ORDERS) -> Divergences:
    """RDP of ``steps`` releases, each on a Poisson sample of rate q.

    A_α = Σ_k C(α,k) (1−q)^{α−k} q^k e^{(k²−k)/(2z²)} and R(α) = ln A_α / (α−1): Mironov, Talwar,
    Zhang, arXiv 1908.10530, Section 3.3. The binomial weights sum to one, so
    A_α − 1 = Σ_{k≥2} weight_k · (e^{(k²−k)/(2z²)} − 1): a sum of positive terms that keeps its
    digits where A_α is close to one.
    """
    _require_release(q, z, steps)
    if q == 0.0:
        return np.zeros(len(orders))
    if q == 1.0:
        return rdp_gaussian(z, steps, orders)
    log_q, log_1mq = math.log(q), math.log1p(-q)
    k = np.arange(2, max(orders) + 1, dtype=np.float64)
    with np.errstate(over="ignore", divide="ignore"):
        growth = (k * k - k) / 2.0 / z / z
        # ln(e^g − 1) = g + ln(1 − e^{−g}).
        log_growth = growth + np.log(-np.expm1(-growth))
    # ln k! for k = 0 … the highest order.
    log_factorial = np.array([math.lgamma(j + 1.0) for j in range(max(orders) + 1)])
    divergence = np.empty(len(orders))
    for index, order in enumerate(orders):
        count = order - 1
        j = k[:count]
        log_weight = (
            log_factorial[order]
            - log_factorial[2 : order + 1]
            - log_factorial[order - 2 :: -1]
            + (order - j) * log_1mq
            + j * log_q
        )
        log_excess = float(np.logaddexp.reduce(log_weight + log_growth[:count]))
        divergence[index] = np.logaddexp(0.0, log_excess) / (order - 1)
    return divergence * steps


def rdp_replaced(q: float, z: float, steps: int) -> Divergences:
    """RDP of the same releases between two contributions of one unit, each of norm at most C.

    The lesser of two bounds, order by order, with R(·) of one ``rdp_subsampled`` release:

        2α/z²                                     the sampling is a mixture that both sides share,
                                                  and the contributions lie at most 2C apart
        (α − ½)/(α − 1)·R(2α) + R(2α − 1)         by way of the null contribution: D_α(P‖Q) ≤
                                                  (α − ½)/(α − 1)·D_{2α}(P‖O) + D_{2α−1}(O‖Q),
                                                  Mironov, arXiv 1702.07476, Corollary 4

    R bounds both directions, P from O and O from Q (Mironov, Talwar, Zhang, Theorem 5). The first
    is the lesser one without sampling.
    """
    _require_release(q, z, steps)
    shared = 4.0 * rdp_gaussian(z, 1)
    with np.errstate(over="ignore"):
        through_null = (_ORDERS - 0.5) / (_ORDERS - 1.0) * rdp_subsampled(
            q, z, 1, _DOUBLED
        ) + rdp_subsampled(q, z, 1, _BELOW_DOUBLED)
    return np.minimum(shared, through_null) * steps


def epsilon(rdp: npt.ArrayLike, delta: float) -> float:
    """ε ≥ 0 at δ from the divergences at ``ORDERS``; inf where they support no finite value.

    ε = min_α [R(α) + ln(1 − 1/α) − ln(δα)/(α−1)]: Canonne–Kamath–Steinke, arXiv 2004.00010,
    Proposition 12. Divergences that are all exactly zero give ε = 0.
    """
    if not 0.0 < delta < 1.0:
        raise SpecError(f"delta must lie in (0, 1), got {delta!r}")
    divergence = np.asarray(rdp, dtype=np.float64)
    if divergence.shape != _ORDERS.shape or np.isnan(divergence).any() or divergence.min() < 0.0:
        return math.inf
    if not divergence.any():
        return 0.0
    bounds = (
        divergence + np.log1p(-1.0 / _ORDERS) - (math.log(delta) + np.log(_ORDERS)) / (_ORDERS - 1)
    )
    best = float(bounds.min())
    return max(0.0, best) if math.isfinite(best) else math.inf


def calibrate(*, target_epsilon: float, delta: float, steps: int, q: float = 1.0) -> float:
    """Least noise multiplier, to 1e-6 relative from above, that keeps ε at or below the target.

    ``steps`` counts charged releases, spare attempts included; ``q`` is the Poisson sampling rate,
    1 for no sampling.

    Raises:
        SpecError: If no noise multiplier below 1e9 reaches the target.
    """
    if not (math.isfinite(target_epsilon) and target_epsilon > 0.0):
        raise SpecError(f"target epsilon must be positive, got {target_epsilon!r}")

    def reaches(z: float) -> bool:
        return epsilon(rdp_subsampled(q, z, steps), delta) <= target_epsilon

    high = 1.0
    while not reaches(high):
        high *= 2.0
        if high > _MAX_NOISE_MULTIPLIER:
            raise SpecError(
                f"no noise reaches epsilon {target_epsilon} at delta {delta} with orders up to "
                f"{ORDERS[-1]}: raise epsilon or delta"
            )
    low = high / 2.0
    while low > 1.0 / _MAX_NOISE_MULTIPLIER and reaches(low):
        low, high = low / 2.0, low
    while high - low > 1e-6 * high:
        middle = (low + high) / 2.0
        if reaches(middle):
            high = middle
        else:
            low = middle
    return high


def charged_attempts(rounds: int, spare_attempts: int | None = None) -> int:
    """Releases a plan reserves: its T rounds and the attempts that may abort after upload.

    ``spare_attempts`` are those beyond T; ⌈0.2·T⌉ when not given.
    """
    if rounds < 1:
        raise SpecError(f"a plan has at least one round, got {rounds}")
    spare = math.ceil(_SPARE_FRACTION * rounds) if spare_attempts is None else spare_attempts
    if spare < 0:
        raise SpecError(f"spare attempts cannot be negative, got {spare}")
    return rounds + spare


def _require_release(q: float, z: float, steps: int) -> None:
    if not 0.0 <= q <= 1.0:
        raise SpecError(f"the sampling rate must lie in [0, 1], got {q!r}")
    if not (math.isfinite(z) and z > 0.0):
        raise SpecError(f"the noise multiplier must be positive and finite, got {z!r}")
    if steps < 0:
        raise SpecError(f"the number of steps cannot be negative, got {steps}")
