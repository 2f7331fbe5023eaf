"""Per-silo figures (episodes, successes, norms) as a masked, bounded, noised block of coordinates.

Each value is clipped to [0, bound] and divided by its bound, so the block of m values has L2 norm
at most √m. The integer scale is s = ⌊Δ/√m⌋, which makes the integer norm at most Δ without any
further clipping: m·s² ≤ Δ². The norm is checked in integers all the same.

Invariants: no per-silo figure leaves except inside this block; the block's sensitivity to a whole
silo is its ``grid``, and to one task ``unit_steps``, so its noise is z_metrics times that over the
whole sum. A block without coordinates is on a grid of 0 and says nothing.

Covered: bounds, encoding, sensitivities, decoding with a standard error.
Not covered: which names a plan may use; whether enough silos declare a family; that a task is
counted in one family only, and at most once for each of its tries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from dp.config import MAX_GRID_STEPS
from dp.errors import NonFiniteError, SpecError
from dp.noise.estimate import Estimate
from dp.noise.grid import require_norm

UNIT_COUNTS: Final = ("episodes/", "successes/")
"""Prefixes of the coordinates that a task moves: its family's, by at most its tries each."""
UNIT_FREE: Final = frozenset({"update_norm_sq"})
"""Coordinates that say nothing of a unit beyond what is protected already."""
_FLOAT_SLACK: Final = 2.0**-20
"""More than two roundings in float64 are worth at scales up to 2^24."""


@dataclass(frozen=True, slots=True)
class MetricsBlock:
    """Layout of the block: what each coordinate means and how far it may reach."""

    names: tuple[str, ...]
    """One name per coordinate, in order."""
    bounds: tuple[float, ...]
    """Upper bound of each value; the lower bound is zero."""
    grid: int = 2**16
    """Δ of the block: its integer sensitivity; 0 exactly where there is no coordinate."""

    def __post_init__(self) -> None:
        """Refuse layouts that are ambiguous or unbounded."""
        if not self.names and not self.bounds and self.grid == 0:
            return
        if not self.names or len(set(self.names)) != len(self.names) or not all(self.names):
            raise SpecError("metric names must be present, distinct and not empty")
        if len(self.bounds) != len(self.names):
            raise SpecError(f"{len(self.names)} metric names but {len(self.bounds)} bounds")
        if not all(math.isfinite(bound) and bound > 0 for bound in self.bounds):
            raise SpecError("every metric bound must be positive and finite")
        if not 1 <= self.grid <= MAX_GRID_STEPS:
            raise SpecError(f"metrics grid must lie in [1, {MAX_GRID_STEPS}], got {self.grid}")
        if self.grid**2 < 256 * len(self.names):
            raise SpecError(f"metrics grid {self.grid} is too coarse for {len(self.names)} metrics")

    @classmethod
    def of(cls, names: tuple[str, ...], bounds: tuple[float, ...]) -> Self:
        """The block of these coordinates on the grid that every block has."""
        return cls(names, bounds) if names else cls(names, bounds, 0)

    @property
    def size(self) -> int:
        """Number of coordinates m."""
        return len(self.names)

    @property
    def scale(self) -> int:
        """Integer that a value at its bound becomes: ⌊Δ/√m⌋."""
        return math.isqrt(self.grid**2 // max(1, self.size))

    def encode(self, values: Mapping[str, float]) -> npt.NDArray[np.int32]:
        """Clip, normalise and round one silo's values.

        Raises:
            SpecError: If a name is missing or unknown.
            NonFiniteError: If a value is NaN or infinite.
        """
        if set(values) != set(self.names):
            raise SpecError("metric values must name exactly the coordinates of the block")
        raw = np.array([float(values[name]) for name in self.names], dtype=np.float64)
        if not np.isfinite(raw).all():
            raise NonFiniteError("the metrics hold a NaN or an infinity")
        bounds = np.array(self.bounds, dtype=np.float64)
        encoded = np.rint(np.clip(raw, 0.0, bounds) / bounds * self.scale).astype(np.int32)
        require_norm(encoded, self.grid)
        return encoded

    def unit_steps(self, *, tries: int) -> int:
        """Integer L2 sensitivity, at most ``grid``, of the block to one task that is there or not.

        A task belongs to one family and has at most ``tries`` episodes, each a success or not. So
        it changes two values, the family's episodes and successes, by at most ``tries`` each, and
        no other: ``UNIT_FREE`` coordinates are functions of protected vectors, or constant.

        Claim: with b the least bound of a count and s the scale, no integer changes by more than
        k = min(⌊tries·s/b + 1⌋, s), and the block by no more than √2·k.
        Proof: Clipping to [0, b] brings two values no farther apart, so before rounding the two
        integers' reals are at most x = tries·s/b apart. Rounding moves each by at most 1/2, so the
        integers are at most x + 1 apart, and being integers at most ⌊x + 1⌋; 1 more than ⌈x⌉ is
        reached when both reals are halves that round away from each other. Both lie in [0, s].
        Two changes of at most k have a norm of at most √2·k, and √2·s ≤ Δ for two coordinates.

        A block with a coordinate of any other name is taken to depend on a task as a whole.
        """
        if isinstance(tries, bool) or not isinstance(tries, int) or tries < 1:
            raise SpecError(f"a task has a positive number of tries, got {tries!r}")
        counts = [
            bound
            for name, bound in zip(self.names, self.bounds, strict=True)
            if name.startswith(UNIT_COUNTS)
        ]
        known = len(counts) + len(UNIT_FREE.intersection(self.names))
        if not counts or known != self.size:
            return self.grid
        reach = tries * self.scale / min(counts) + 1.0 + _FLOAT_SLACK
        change = math.floor(reach) if reach < self.scale else self.scale
        # ⌈√2·k⌉ in integers.
        return min(math.isqrt(2 * change * change - 1) + 1, self.grid)

    def decode(
        self, total: npt.NDArray[np.int64], count: int, noise_sigma_total: float
    ) -> dict[str, Estimate]:
        """Turn the signed integer sum over ``count`` silos into means over silos.

        ``noise_sigma_total`` is the standard deviation of the summed noise in grid units. Rounding
        adds at most half a grid step per silo, bound/(2s) on the mean, which is not part of the
        standard error.
        """
        if total.shape != (self.size,) or total.dtype != np.int64:
            raise SpecError(f"expected {self.size} int64 metric sums")
        if count < 1:
            raise SpecError(f"a mean needs at least one silo, got {count}")
        if not (math.isfinite(noise_sigma_total) and noise_sigma_total >= 0):
            raise SpecError("the noise's standard deviation must be finite and not negative")
        if not self.size:
            return {}
        unit = 1.0 / (self.scale * count)
        return {
            name: Estimate(
                mean=int(value) * unit * bound, standard_error=noise_sigma_total * unit * bound
            )
            for name, bound, value in zip(self.names, self.bounds, total, strict=True)
        }
