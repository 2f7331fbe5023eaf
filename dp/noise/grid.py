"""Fixed point: a float vector of bounded L2 norm becomes integers of bounded L2 norm.

    x ← clip_L2(x, C·(Δ − √d/2 − 1)/Δ)      q = round(x·Δ/C)      check Σq² ≤ Δ²

Rounding moves a vector by at most √d/2 grid steps, so the clip leaves that much room and one step
for float error; the check is on the integers themselves and is exact.

Invariants:
    1. Whatever ``encode`` returns, and whatever ``FittedVector.add_into`` leaves in its output,
       satisfies Σq² ≤ Δ². There is no other way out than an error and zeros.
    2. The clip acts on the whole vector, never per tensor.
    3. No finite input overflows or loses its direction: float64 vectors are first divided by their
       largest magnitude, so 1e308 and denormals take the same path as ones. Float32 vectors need no
       such division: in float64 their squares neither overflow nor vanish, from 2^-298 to 2^256.
    4. NaN and ±Inf raise; they are never replaced.
    5. Work goes tile by tile: beside the vector and the output there are a few tiles of 64 KiB.

Covered: sensitivity of one vector per silo. Not covered: noise and the ring (``dp.noise.share``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dp.config import MAX_GRID_STEPS
from dp.errors import NonFiniteError, NormExceededError, SpecError

_TILE: Final = 1 << 13
"""With steps ≤ 2^24 the squares of one tile sum to at most 2^62, so int64 cannot overflow."""
_STEPS_PER_ROOT_DIMENSION: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class FittedVector:
    """A finite vector with its clip, ready to be encoded tile by tile; made by ``Grid.fit``."""

    x: npt.NDArray[np.floating]
    """The vector, not copied: it must not change until it is encoded."""
    divisor: float
    """Its largest magnitude; 1 for float32 and for zeros."""
    factor: float
    """What x/divisor is multiplied by before rounding."""
    steps: int
    """Δ, the bound on the integers' norm."""

    def add_into(self, out: npt.NDArray[np.uint32]) -> None:
        """Add the integers to ring elements modulo 2^32, in place.

        The norm is checked on the very integers that are added.

        Raises:
            SpecError: If ``out`` has another length or type.
            NormExceededError: If the integers are longer than Δ after all. ``out`` is zeros then,
                because it would hold a part of the vector.
        """
        if out.shape != self.x.shape or out.dtype != np.uint32:
            raise SpecError(f"expected {self.x.size} ring elements, got {out.dtype} {out.shape}")
        try:
            self._add(out)
        except BaseException:
            # Also on an interrupt: a part of the vector must not stay in the output.
            out.fill(0)
            raise

    def _add(self, out: npt.NDArray[np.uint32]) -> None:
        total = start = 0
        whole = np.empty(_TILE, dtype=np.int32)
        for tile in _scaled_tiles(self.x, self.divisor, self.factor):
            np.rint(tile, out=tile)
            # Squares of integers: exact in float64 as long as they sum to at most Δ² ≤ 2^48, and
            # beyond Δ² if they do not.
            total += int(np.dot(tile, tile))
            if total > self.steps**2:
                raise NormExceededError("the encoded vector is longer than its clip")
            part = whole[: tile.size]
            np.copyto(part, tile, casting="unsafe")
            target = out[start : start + part.size]
            np.add(target, part.view(np.uint32), out=target)
            start += part.size

    def encoded(self) -> npt.NDArray[np.int32]:
        """The integers themselves.

        Raises:
            NormExceededError: If they are longer than Δ after all.
        """
        out = np.zeros(self.x.size, dtype=np.uint32)
        self.add_into(out)
        return out.view(np.int32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """One clip, one scale, one dimension."""

    clip_l2: float
    """C, in the units of the delta."""
    steps: int
    """Δ: what C is in grid units; the integer sensitivity."""
    dimension: int
    """d, the length of the vectors."""

    def __post_init__(self) -> None:
        """Refuse grids on which rounding would eat a visible part of the clip."""
        if not (math.isfinite(self.clip_l2) and self.clip_l2 > 0):
            raise SpecError(f"clip_l2 must be positive and finite, got {self.clip_l2!r}")
        if self.dimension < 1:
            raise SpecError(f"dimension must be at least 1, got {self.dimension}")
        if not 1 <= self.steps <= MAX_GRID_STEPS:
            raise SpecError(f"grid steps must lie in [1, {MAX_GRID_STEPS}], got {self.steps}")
        if self.steps**2 < _STEPS_PER_ROOT_DIMENSION**2 * self.dimension:
            least = math.isqrt(_STEPS_PER_ROOT_DIMENSION**2 * self.dimension - 1) + 1
            raise SpecError(
                f"grid of {self.steps} steps is too coarse for {self.dimension} coordinates: "
                f"use at least {least} steps, or train fewer parameters"
            )
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise SpecError(f"clip_l2 {self.clip_l2!r} has no finite scale at {self.steps} steps")

    @property
    def scale(self) -> float:
        """Grid steps per unit: s = Δ/C."""
        return self.steps / self.clip_l2

    @property
    def clip_steps(self) -> float:
        """The float clip in grid units: Δ − √d/2 − 1."""
        return self.steps - math.sqrt(self.dimension) / 2.0 - 1.0

    def encode(self, x: npt.NDArray[np.floating]) -> npt.NDArray[np.int32]:
        """Clip, scale and round one vector of length d.

        Raises:
            SpecError: If the shape or the type is wrong.
            NonFiniteError: If any coordinate is NaN or infinite.
            NormExceededError: If the integers are longer than Δ after all.
        """
        if x.shape != (self.dimension,) or not np.issubdtype(x.dtype, np.floating):
            raise SpecError(
                f"expected a float vector of length {self.dimension}, got {x.dtype} {x.shape}"
            )
        return self.fit(x).encoded()

    def fit(self, x: npt.NDArray[np.floating]) -> FittedVector:
        """Check one vector and settle its clip; nothing is encoded yet.

        The L2 norm is the square root of the exactly rounded sum (``math.fsum``) of the dot
        products of tiles of 2^13 coordinates in float64, each divided by the largest magnitude
        unless the vector is float32.

        Raises:
            SpecError: If the shape or the type is wrong.
            NonFiniteError: If any coordinate is NaN or infinite.
        """
        if x.shape != (self.dimension,) or not np.issubdtype(x.dtype, np.floating):
            raise SpecError(
                f"expected a float vector of length {self.dimension}, got {x.dtype} {x.shape}"
            )
        # A zero vector takes the same path as any other, so its timing tells little.
        divisor = 1.0 if x.dtype == np.float32 else _largest_magnitude(x) or 1.0
        # A signalling NaN would warn where it is widened.
        with np.errstate(invalid="ignore"):
            norm = l2_norm(x, divisor)
        if not math.isfinite(norm):
            # A float32 without a NaN or an infinity has a finite norm in float64.
            raise NonFiniteError("the vector holds a NaN or an infinity")
        # Python floats overflow to inf here, and then the clip decides.
        unclipped = divisor * self.scale
        factor = min(unclipped, self.clip_steps / norm) if norm > 0.0 else 0.0
        return FittedVector(x=x, divisor=divisor, factor=factor, steps=self.steps)

    def decode(self, total: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Turn a signed integer sum back into floats: total·C/Δ."""
        if total.shape != (self.dimension,) or total.dtype != np.int64:
            raise SpecError(
                f"expected an int64 vector of length {self.dimension}, "
                f"got {total.dtype} {total.shape}"
            )
        return np.asarray(total * (self.clip_l2 / self.steps), dtype=np.float64)


def require_norm(encoded: npt.NDArray[np.int32], steps: int) -> None:
    """Check Σq² ≤ Δ² in integers.

    Raises:
        NormExceededError: If the vector is longer than ``steps``.
    """
    total = 0
    for start in range(0, encoded.size, _TILE):
        total += _norm_sq(encoded[start : start + _TILE], steps)
    if total > steps * steps:
        raise NormExceededError("the encoded vector is longer than its clip")


def l2_norm(x: npt.NDArray[np.floating], divisor: float = 1.0) -> float:
    """The L2 norm of x/divisor in float64, without a float64 copy; NaN where x holds one."""
    return math.sqrt(math.fsum(float(np.dot(tile, tile)) for tile in _scaled_tiles(x, divisor)))


def _norm_sq(tile: npt.NDArray[np.int32], steps: int) -> int:
    # Comparing both ends avoids |−2^31|, which int32 cannot hold.
    if tile.size and (int(tile.max()) > steps or int(tile.min()) < -steps):
        raise NormExceededError("an encoded coordinate is larger than the whole clip")
    wide = tile.astype(np.int64)
    return int(np.dot(wide, wide))


def _largest_magnitude(x: npt.NDArray[np.floating]) -> float:
    largest = 0.0
    for start in range(0, x.size, _TILE):
        tile = x[start : start + _TILE]
        # A NaN anywhere is the maximum and the minimum.
        high, low = float(tile.max()), float(tile.min())
        if not (math.isfinite(high) and math.isfinite(low)):
            raise NonFiniteError("the vector holds a NaN or an infinity")
        largest = max(largest, high, -low)
    return largest


def _scaled_tiles(
    x: npt.NDArray[np.floating], divisor: float, factor: float = 1.0
) -> Iterator[npt.NDArray[np.float64]]:
    """x/divisor·factor tile by tile in float64, each in the memory of the one before."""
    buffer = np.empty(min(_TILE, x.size), dtype=np.float64)
    for start in range(0, x.size, _TILE):
        tile = buffer[: min(_TILE, x.size - start)]
        np.copyto(tile, x[start : start + _TILE])
        if divisor != 1.0:
            np.divide(tile, divisor, out=tile)
        if factor != 1.0:
            np.multiply(tile, factor, out=tile)
        yield tile
