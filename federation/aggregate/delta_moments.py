"""Server optimisers with moments of mean deltas, kept from round to round.

Reddi et al., "Adaptive Federated Optimization", arXiv 2003.00295 (version 5), Algorithm 2, with
Δ the mean delta of a round:

    m ← β₁m + (1 − β₁)Δ                                 m = 0 at the start
    fedadagrad   v ← v + s                              v = τ² at the start
    fedyogi      v ← v − (1 − β₂)·s·sign(v − s)
    fedadam      v ← β₂v + (1 − β₂)·s
    move = m/(√v + τ)                                   τ = 1e-3, β₁ = 0.9, β₂ = 0.99

and, with server momentum (Hsu, Qi and Brown, arXiv 1909.06335, section 4.3),

    fedavgm      m ← βm + Δ,  move = m                  β = 0.9

s is Δ² in the paper. The noise of private sums adds its variance σ² to every coordinate of Δ²,
which would take √v for the noise's size everywhere and leave moves of one length in all directions.
So s = Δ² − σ², and v never falls below τ². (The same correction of Adam's second moment: Tang et
al., "DP-AdamBC", arXiv 2312.14334.) In ``fedyogi`` s is not below 0, where its sign would turn the
step around. σ² is the part that everyone knows: more may be in the mean, and then moves are
shorter, never longer.

As in the paper there is no bias correction. η of the paper is the plan's ``server_step``: 1e-3 to
1e-2 for the three adaptive ones, whose moves have entries near ±1; around 1 − β for ``fedavgm``,
whose moves grow to 1/(1 − β) of a constant Δ.

Covered: methods with fixed coordinates. Not covered: the gauge, and methods that alternate factors
(``federation.aggregate.registry`` says why). Both would leave m and v in coordinates that are gone.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Final

import numpy as np

from federation.aggregate.moments import MomentOptimiser, Moments
from federation.aggregate.server_step import Float64Vector, Mean

BETA: Final = 0.9
"""Of ``fedavgm``."""
BETA_1: Final = 0.9
BETA_2: Final = 0.99
TAU: Final = 1e-3
LEAST_SECOND: Final = TAU * TAU


class FedAvgM(MomentOptimiser):
    """Momentum alone; v is not used."""

    name: ClassVar[str] = "fedavgm"
    crosses_rounds: ClassVar[bool] = True

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
        return BETA * first + mean, second

    def _read(self, state: Moments) -> Mean:
        return state.first


class _Adaptive(MomentOptimiser):
    """Algorithm 2 but for the line of v."""

    crosses_rounds: ClassVar[bool] = True

    def _start(self) -> tuple[float, float]:
        return 0.0, LEAST_SECOND

    def _advance(
        self,
        first: Float64Vector,
        second: Float64Vector,
        mean: Float64Vector,
        noise_variance: float,
    ) -> tuple[Float64Vector, Float64Vector]:
        raised = self._second(second, mean * mean - noise_variance)
        return BETA_1 * first + (1.0 - BETA_1) * mean, np.maximum(raised, LEAST_SECOND)

    @abstractmethod
    def _second(self, second: Float64Vector, square: Float64Vector) -> Float64Vector:
        """The next v before its floor; ``square`` is s."""

    def _read(self, state: Moments) -> Mean:
        return _AdaptiveMove(state)


class FedAdagrad(_Adaptive):
    """v never forgets."""

    name: ClassVar[str] = "fedadagrad"

    def _second(self, second: Float64Vector, square: Float64Vector) -> Float64Vector:
        return second + square


class FedYogi(_Adaptive):
    """v moves towards s by an amount that does not depend on v."""

    name: ClassVar[str] = "fedyogi"

    def _second(self, second: Float64Vector, square: Float64Vector) -> Float64Vector:
        square = np.maximum(square, 0.0)
        return second - ((1.0 - BETA_2) * square) * np.sign(second - square)


class FedAdam(_Adaptive):
    """v is an exponential mean of s."""

    name: ClassVar[str] = "fedadam"

    def _second(self, second: Float64Vector, square: Float64Vector) -> Float64Vector:
        return BETA_2 * second + (1.0 - BETA_2) * square


class _AdaptiveMove:
    """m/(√v + τ), computed where it is read."""

    def __init__(self, state: Moments) -> None:
        self._state = state

    @property
    def shape(self) -> tuple[int, ...]:
        """One side: the coordinates."""
        return self._state.first.shape

    def __getitem__(self, place: slice, /) -> Float64Vector:
        """The move over a slice."""
        return np.asarray(
            self._state.first[place] / (np.sqrt(self._state.second[place]) + TAU),
            dtype=np.float64,
        )
