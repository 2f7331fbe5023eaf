"""How much of the direction survives the noise, predicted from the plan alone.

The mean over n silos has a norm of at most C. Each silo adds variance (zC)²/k per coordinate with
k = max(t, n_min) − c, so the noise in the mean has the norm

    √d · z · C / √(n·k)          and          cos ≈ signal / √(signal² + noise²).

With k = n (nobody may drop, nobody colludes) this is z√d·C/n, the least noise that any protocol
with the same guarantee adds. The prediction is an upper bound: real deltas differ between silos,
so their mean is shorter than C.

Covered: the gate ``min_cosine`` and the number of silos a plan would need.
Not covered: what a given cosine does to learning.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dp.errors import SpecError

_MAX_SILOS = 1 << 40


def predicted_cosine(
    *,
    noise_multiplier: float,
    dimension: int,
    silos: int,
    divisor: int,
    signal_fraction: float = 1.0,
) -> float:
    """Upper bound on the cosine between the noisy and the noiseless mean.

    Args:
        noise_multiplier: z of the delta; 0 gives 1.
        dimension: d.
        silos: Silos in the sum, n.
        divisor: k = max(t, n_min) − c, what each silo's variance is divided by.
        signal_fraction: Norm of the mean in multiples of the clip; 1 is the upper bound.
    """
    if silos < 1 or divisor < 1 or dimension < 1:
        raise SpecError("the prediction needs at least one silo, divisor and coordinate")
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise SpecError(f"the noise multiplier must not be negative, got {noise_multiplier!r}")
    if not 0 < signal_fraction <= 1:
        raise SpecError(f"the signal is a fraction of the clip in (0, 1], got {signal_fraction!r}")
    noise = noise_multiplier * math.sqrt(dimension / (silos * divisor))
    return signal_fraction / math.hypot(signal_fraction, noise)


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
    signal_fraction: float = 1.0,
) -> int:
    """Least number of silos whose predicted cosine reaches ``min_cosine``.

    Args:
        min_cosine: The gate, in (0, 1).
        noise_multiplier: z of the delta.
        dimension: d.
        divisor: k as a function of n that does not decrease; ``undivided`` is the lower bound
            over all protocols.
        signal_fraction: Norm of the mean in multiples of the clip.
    """
    if not 0 < min_cosine < 1:
        raise SpecError(f"the cosine to reach must lie in (0, 1), got {min_cosine!r}")

    def reaches(silos: int) -> bool:
        return min_cosine <= predicted_cosine(
            noise_multiplier=noise_multiplier,
            dimension=dimension,
            silos=silos,
            divisor=divisor(silos),
            signal_fraction=signal_fraction,
        )

    high = 1
    while not reaches(high):
        high *= 2
        if high > _MAX_SILOS:
            raise SpecError("no number of silos reaches this cosine")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if reaches(middle):
            high = middle
        else:
            low = middle
    return high
