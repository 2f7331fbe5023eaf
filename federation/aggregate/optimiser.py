"""The server optimiser: how a mean becomes a move, before the server step η_s scales it.

    fedavg   move = mean      the sum is of deltas: modes none, silo, record_local
    sgd      move = mean      the sum is of gradients: mode record_distributed
    adam     Kingma and Ba, arXiv 1412.6980 (version 9), Algorithm 1, on the mean gradient G:
             m ← β₁m + (1 − β₁)G     v ← β₂v + (1 − β₂)G²     k ← k + 1
             move = (m/(1 − β₁ᵏ)) / (√(v/(1 − β₂ᵏ)) + ε),   β₁ = 0.9, β₂ = 0.999, ε = 1e-8

What the silos sum are negative gradients, directions of descent, so a move is added. It is
post-processing of noisy sums and costs no privacy; the coordinator and every silo compute it from
the published sums alone.

Invariants:
    1. The same bits everywhere: float64, element by element, one ufunc for each operation of
       IEEE 754, no reduction, no library function of a real power.
    2. The state is that of one round: zeros at step 0. So a round's earlier sums are all that
       ``federation.replay`` needs, the coordinates may be rewritten between rounds (gauge), and the
       factor that is trained may change with the round.
    3. Releases come in order. Asking again for the newest one repeats it from the state before
       it, so that a check or a write that failed can be made again; any other order is an error
       that says to replay.
    4. A skipped release moves nothing and does not count in k.

Covered: the above; moves are read slice by slice. Not covered: the server step and which tensors
(``federation.aggregate.aggregator``). Memory of ``adam``: four float64 vectors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np

from federation.adapter import tiles
from federation.aggregate.server_step import Float64Vector, Mean
from federation.errors import OptimiserStateError, UpdateError

BETA_1: Final = 0.9
BETA_2: Final = 0.999
EPSILON: Final = 1e-8


class Optimiser(ABC):
    """Turns the means of a round's releases into moves."""

    name: ClassVar[str]

    @abstractmethod
    def move(self, mean: Mean, *, round_number: int, step: int) -> Mean:
        """The move of a release; it may be read any number of times.

        Raises:
            OptimiserStateError: If this release does not follow the newest one.
            UpdateError: If the mean is not finite.
        """

    @abstractmethod
    def skip(self, *, round_number: int, step: int) -> None:
        """Take notice of a release that had no sum.

        Raises:
            OptimiserStateError: If it does not follow the newest one.
        """

    @abstractmethod
    def is_ready_for(self, round_number: int, step: int) -> bool:
        """Whether ``move`` can take this release without a replay."""


class Plain(Optimiser):
    """No state: the mean itself."""

    def move(self, mean: Mean, *, round_number: int, step: int) -> Mean:
        """The mean."""
        del round_number, step
        return mean

    def skip(self, *, round_number: int, step: int) -> None:
        """Nothing to notice."""

    def is_ready_for(self, round_number: int, step: int) -> bool:
        """Always."""
        del round_number, step
        return True


class FedAvg(Plain):
    """On mean deltas."""

    name: ClassVar[str] = "fedavg"


class Sgd(Plain):
    """On mean gradients."""

    name: ClassVar[str] = "sgd"


@dataclass(frozen=True, slots=True)
class _Moments:
    """Adam's state after some releases of a round; never changed once made."""

    round_number: int
    step: int
    """The newest release."""
    count: int
    """k: releases with a sum."""
    first: Float64Vector
    """m."""
    second: Float64Vector
    """v."""


class Adam(Optimiser):
    """First and second moments of a round's mean gradients."""

    name: ClassVar[str] = "adam"

    def __init__(self) -> None:
        self._before: _Moments | None = None
        self._newest: _Moments | None = None

    def move(self, mean: Mean, *, round_number: int, step: int) -> Mean:
        """Algorithm 1, one step of it."""
        before = self._state_before(round_number, step)
        (size,) = mean.shape
        if before is None:
            zeros = np.broadcast_to(np.zeros(()), size)
            count, first, second = 1, zeros, zeros
        elif before.first.size not in (0, size):
            raise UpdateError(f"a mean of length {size} follows one of {before.first.size}")
        else:
            count, first, second = before.count + 1, before.first, before.second
            if not first.size:
                first = second = np.broadcast_to(np.zeros(()), size)
        new_first, new_second = np.empty(size), np.empty(size)
        for tile in tiles(new_first):
            gradient = mean[tile]
            new_first[tile] = BETA_1 * first[tile] + (1.0 - BETA_1) * gradient
            new_second[tile] = BETA_2 * second[tile] + (1.0 - BETA_2) * (gradient * gradient)
            if not np.isfinite(new_second[tile]).all():
                raise UpdateError("the mean gradient is not finite or too long to be squared")
        after = _Moments(round_number, step, count, new_first, new_second)
        self._before, self._newest = before, after
        return _AdamMove(after)

    def skip(self, *, round_number: int, step: int) -> None:
        """The moments stay, the place moves on."""
        before = self._state_before(round_number, step)
        empty = np.empty(0)
        after = (
            _Moments(round_number, step, 0, empty, empty)
            if before is None
            else _Moments(round_number, step, before.count, before.first, before.second)
        )
        self._before, self._newest = before, after

    def is_ready_for(self, round_number: int, step: int) -> bool:
        """At step 0, after the step before it, and at the newest one again."""
        if step == 0:
            return True
        at = self._newest
        return at is not None and at.round_number == round_number and at.step in (step - 1, step)

    def _state_before(self, round_number: int, step: int) -> _Moments | None:
        if step == 0:
            return None
        at = self._newest
        if at is None or not self.is_ready_for(round_number, step):
            where = "nowhere" if at is None else f"at round {at.round_number} step {at.step}"
            raise OptimiserStateError(
                f"the optimiser is {where} and cannot take round {round_number} step {step}: "
                "replay the round's earlier sums"
            )
        return self._before if at.step == step else at


class _AdamMove:
    """m̂/(√v̂ + ε), computed where it is read."""

    def __init__(self, state: _Moments) -> None:
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


OPTIMISERS: Final[Mapping[str, type[Optimiser]]] = MappingProxyType(
    {"fedavg": FedAvg, "sgd": Sgd, "adam": Adam}
)
GRADIENT_OPTIMISERS: Final = frozenset({Sgd.name, Adam.name})
"""Those that step on sums of gradients."""
