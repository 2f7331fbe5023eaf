"""How much of the direction survives the noise, predicted from the plan alone.

A release divided by n silos of B̄ units each (B̄ = 1 for a delta) is a mean of norm at most C. Each
silo adds variance (zC)²/k per coordinate, so the noise in that mean has the norm

    √d · z · C / (B̄·√(n·k))      and          cos ≈ signal / √(signal² + noise²).

    mode                 B̄     k
    silo                 1     max(t, n_min) − c: the silos share the noise
    record_distributed   B̄     max(t, n_min) − c, in each optimiser step
    record_local         B̄     1: each silo adds all of the noise to each of its steps

With k = n (nobody may drop, nobody colludes) this is z√d·C/(B̄·n), the least noise that any protocol
with the same guarantee adds. The prediction is an upper bound: real contributions differ between
silos and units, so their mean is shorter than C.

Covered: the gate ``min_cosine``, and the number of silos or of units that a plan would need.
Not covered: what a given cosine does to learning; that a larger B̄ at the same q needs a larger
population.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from dp.errors import SpecError

_MAX_COUNT: Final = 1 << 40


def predicted_cosine(
    *,
    noise_multiplier: float,
    dimension: int,
    silos: int,
    divisor: int,
    expected_units: int = 1,
    signal_fraction: float = 1.0,
) -> float:
    """Upper bound on the cosine between the noisy and the noiseless mean.

    Args:
        noise_multiplier: z of the delta or of the step; 0 gives 1.
        dimension: d.
        silos: Silos in the mean, n.
        divisor: k, what each silo's variance is divided by.
        expected_units: B̄; 1 for a delta.
        signal_fraction: Norm of the mean in multiples of the clip; 1 is the upper bound.
    """
    if min(silos, divisor, dimension, expected_units) < 1:
        raise SpecError("the prediction needs at least one silo, divisor, coordinate and unit")
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise SpecError(f"the noise multiplier must not be negative, got {noise_multiplier!r}")
    if not 0 < signal_fraction <= 1:
        raise SpecError(f"the signal is a fraction of the clip in (0, 1], got {signal_fraction!r}")
    noise = noise_multiplier / expected_units * math.sqrt(dimension / (silos * divisor))
    return signal_fraction / math.hypot(signal_fraction, noise)


def alone(silos: int) -> int:
    """The divisor of ``record_local``, whatever n is."""
    del silos
    return 1


def undivided(silos: int) -> int:
    """The divisor if every silo is honest and none may drop: n itself."""
    return silos


def threshold_divisor(silos: int, *, colluding: int) -> int:
    """The divisor t − c at the threshold t = max(⌊(n+c)/2⌋ + 1, c + 2), for n_min ≤ t."""
    return max((silos + colluding) // 2 + 1, colluding + 2) - colluding


def silos_needed(
    *,
    min_cosine: float,
    noise_multiplier: float,
    dimension: int,
    divisor: Callable[[int], int] = undivided,
    expected_units: int = 1,
    signal_fraction: float = 1.0,
) -> int:
    """Least number of silos whose predicted cosine reaches ``min_cosine``, a gate in (0, 1).

    ``divisor`` is k as a function of n that does not decrease: ``undivided`` is the lower bound
    over all protocols, ``alone`` is ``record_local``. The rest is as in ``predicted_cosine``.
    """

    def cosine(silos: int) -> float:
        return predicted_cosine(
            noise_multiplier=noise_multiplier,
            dimension=dimension,
            silos=silos,
            divisor=divisor(silos),
            expected_units=expected_units,
            signal_fraction=signal_fraction,
        )

    return least_count(cosine, min_cosine, "silos")


def units_needed(
    *,
    min_cosine: float,
    noise_multiplier: float,
    dimension: int,
    silos: int,
    divisor: int,
    signal_fraction: float = 1.0,
) -> int:
    """Least B̄ whose predicted cosine reaches ``min_cosine``, a gate in (0, 1).

    The other arguments are those of ``predicted_cosine``.
    """

    def cosine(units: int) -> float:
        return predicted_cosine(
            noise_multiplier=noise_multiplier,
            dimension=dimension,
            silos=silos,
            divisor=divisor,
            expected_units=units,
            signal_fraction=signal_fraction,
        )

    return least_count(cosine, min_cosine, "units")


def least_count(cosine: Callable[[int], float], min_cosine: float, what: str) -> int:
    """The least count at which a cosine that never falls reaches the gate."""
    if not 0 < min_cosine < 1:
        raise SpecError(f"the cosine to reach must lie in (0, 1), got {min_cosine!r}")

    def reaches(count: int) -> bool:
        return min_cosine <= cosine(count)

    high = 1
    while not reaches(high):
        high *= 2
        if high > _MAX_COUNT:
            raise SpecError(f"no number of {what} reaches this cosine")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if reaches(middle):
            high = middle
        else:
            low = middle
    return high
