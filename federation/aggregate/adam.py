"""``adam``: Kingma and Ba, arXiv 1412.6980 (version 9), Algorithm 1, on the mean gradient G.

    m ← β₁m + (1 − β₁)G     v ← β₂v + (1 − β₂)G²     k ← k + 1
    move = (m/(1 − β₁ᵏ)) / (√(v/(1 − β₂ᵏ)) + ε),   β₁ = 0.9, β₂ = 0.999, ε = 1e-8

The state is that of one round, because the gauge may rewrite the coordinates between rounds and the
factor that is trained may change with the round.
"""

from __future__ import annotations

import math
from typing import ClassVar, Final

import numpy as np

from federation.aggregate.moments import MomentOptimiser, Moments
from federation.aggregate.server_step import Float64Vector, Mean

BETA_1: Final = 0.9
BETA_2: Final = 0.999
EPSILON: Final = 1e-8


class Adam(MomentOptimiser):
    """First and second moments of a round's mean gradients."""

    name: ClassVar[str] = "adam"

    def _start(self) -> tuple[float, float]:
        return 0.0, 0.0

    def _advance(
        self,
        first: Float64Vector,
        second: Float64Vector,
        mean: Float64Vector,
        noise_variance: float,
    ) -> tuple[Float64Vector, Float64Vector]:
        del noise_variance
        return (
            BETA_1 * first + (1.0 - BETA_1) * mean,
            BETA_2 * second + (1.0 - BETA_2) * (mean * mean),
        )

    def _read(self, state: Moments) -> Mean:
        return _AdamMove(state)


class _AdamMove:
    """m̂/(√v̂ + ε), computed where it is read."""

    def __init__(self, state: Moments) -> None:
        self._state = state
        # Repeated products, not pow: libraries of mathematical functions differ in the last bit.
        self._first_correction = 1.0 - math.prod((BETA_1,) * state.count)
        self._second_correction = 1.0 - math.prod((BETA_2,) * state.count)

    @property
    def shape(self) -> tuple[int, ...]:
        """One side: the coordinates."""
        return self._state.first.shape

    def __getitem__(self, place: slice, /) -> Float64Vector:
        """The move over a slice."""
        root = np.sqrt(self._state.second[place] / self._second_correction)
        return np.asarray(
            (self._state.first[place] / self._first_correction) / (root + EPSILON),
            dtype=np.float64,
        )
