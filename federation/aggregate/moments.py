"""What every server optimiser with moments shares: the state, and the order of releases.

Invariants: a state is never changed once made, so a move keeps its values and the newest release
can be taken again from the state before it; nothing is taken over from a mean that is refused. A
state that was taken up from elsewhere (``go_on_after``) has none before it, so its own release
cannot be taken again.

Covered: state of one round or of the run; leaving a state and taking it up. Not covered: formulas
(``federation.aggregate.adam``, ``federation.aggregate.delta_moments``). Memory: four float64
vectors.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from federation.adapter.encoding import tiles
from federation.aggregate.optimiser import Optimiser
from federation.aggregate.rounds import FIRST_ROUND
from federation.aggregate.server_step import Float64Vector, Mean
from federation.errors import OptimiserStateError, UpdateError


@dataclass(frozen=True, slots=True)
class Moments:
    """The state after some releases."""

    round_number: int
    step: int
    """The newest release."""
    count: int
    """k: releases with a sum."""
    first: Float64Vector
    """m; empty before the first sum."""
    second: Float64Vector
    """v; empty before the first sum."""


class MomentOptimiser(Optimiser):
    """Keeps two moments of the means, from one release to the next."""

    def __init__(self) -> None:
        self._before: Moments | None = None
        self._newest: Moments | None = None
        self._has_before = True

    @property
    def newest(self) -> Moments | None:
        """The state after the newest release; None before the first."""
        return self._newest

    def go_on_after(self, state: Moments) -> None:
        """Take up what ``newest`` was in another optimiser of the same kind."""
        self._before, self._newest, self._has_before = None, state, False

    @abstractmethod
    def _start(self) -> tuple[float, float]:
        """Every coordinate of m and v before the first sum."""

    @abstractmethod
    def _advance(
        self,
        first: Float64Vector,
        second: Float64Vector,
        mean: Float64Vector,
        noise_variance: float,
    ) -> tuple[Float64Vector, Float64Vector]:
        """The moments after one more mean; over a tile."""

    @abstractmethod
    def _read(self, state: Moments) -> Mean:
        """The move of a state."""

    def move(
        self, mean: Mean, *, round_number: int, step: int, noise_variance: float = 0.0
    ) -> Mean:
        """One step of the algorithm."""
        before = self._state_before(round_number, step)
        (size,) = mean.shape
        if before is not None and before.first.size not in (0, size):
            raise UpdateError(f"a mean of length {size} follows one of {before.first.size}")
        if before is None or not before.first.size:
            first, second = (np.broadcast_to(np.float64(value), size) for value in self._start())
        else:
            first, second = before.first, before.second
        new_first, new_second = np.empty(size), np.empty(size)
        for tile in tiles(new_first):
            new_first[tile], new_second[tile] = self._advance(
                first[tile], second[tile], mean[tile], noise_variance
            )
            if not (np.isfinite(new_first[tile]).all() and np.isfinite(new_second[tile]).all()):
                raise UpdateError("the mean is not finite or too long to be squared")
        count = 1 if before is None else before.count + 1
        after = Moments(round_number, step, count, new_first, new_second)
        self._before, self._newest, self._has_before = before, after, True
        return self._read(after)

    def skip(self, *, round_number: int, step: int) -> None:
        """The moments stay, the place moves on."""
        before = self._state_before(round_number, step)
        if before is None:
            self.restart(round_number=round_number, step=step)
            return
        after = Moments(round_number, step, before.count, before.first, before.second)
        self._before, self._newest, self._has_before = before, after, True

    def restart(self, *, round_number: int, step: int) -> None:
        """The place moves on, and there are no moments."""
        empty = np.empty(0)
        state = Moments(round_number, step, 0, empty, empty)
        self._before, self._newest, self._has_before = None, state, True

    def is_ready_for(self, round_number: int, step: int) -> bool:
        """Where the state begins, after the newest release, and at the newest one again."""
        if self._is_start(round_number, step):
            return True
        at = self._newest
        if at is None:
            return False
        if (at.round_number, at.step) == (round_number, step):
            return self._has_before
        if self.crosses_rounds:
            # Rounds of one sum only: the modes that sum deltas have no other.
            return (at.round_number + 1, at.step, step) == (round_number, 0, 0)
        return (at.round_number, at.step + 1) == (round_number, step)

    def _is_start(self, round_number: int, step: int) -> bool:
        return step == 0 and not (self.crosses_rounds and round_number != FIRST_ROUND)

    def _state_before(self, round_number: int, step: int) -> Moments | None:
        if self._is_start(round_number, step):
            return None
        at = self._newest
        if at is None or not self.is_ready_for(round_number, step):
            where = "nowhere" if at is None else f"at round {at.round_number} step {at.step}"
            raise OptimiserStateError(
                f"the optimiser is {where} and cannot take round {round_number} step {step}: "
                "replay the earlier sums"
            )
        return self._before if (at.round_number, at.step) == (round_number, step) else at
