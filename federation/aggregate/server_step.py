"""The one arithmetic of an update: φ' = float32(float64(φ) + η_s·mean), element by element.

Invariants:
    1. mean = float64(Σ q) / (s·K): the integer sum is below 2^53, so its conversion is exact and
       two correctly rounded operations follow, the same bits on every IEEE 754 machine.
    2. The product and the addition are separate elementwise operations in float64, so no compiler
       fuses them, and nothing is reduced, so no order of summation matters.
    3. Every silo counts once: K is the number of silos in the sum, and no weight exists. Of a sum
       of gradients K stands for the silos times the plan's fixed B̄.

FedAvg, unweighted: McMahan et al. 2017, arXiv 1602.05629, Algorithm 1 with n_k/n replaced by 1/K
(Fed-SE, arXiv 2512.08870: unweighted is better); server step η_s: Reddi et al. 2021,
arXiv 2003.00295, Algorithm 1 with SGD.

Everything is worked on tile by tile: a mean is a ``Mean``, which yields float64 slices and is never
whole in memory.

Covered: sum → mean → next tensors. Not covered: which tensors, and the gauge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from federation.adapter.encoding import tiles
from federation.adapter.layout import Layout, Tensors, TensorSpec
from federation.errors import LayoutError, UpdateError

SignedVector = npt.NDArray[np.signedinteger]
Float64Vector = npt.NDArray[np.float64]


class Mean(Protocol):
    """A mean delta that can be read slice by slice; a float64 vector is one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """One side: the coordinates."""

    def __getitem__(self, place: slice, /) -> Float64Vector:
        """The coordinates of a slice."""


class MeanOfSum:
    """The mean delta over the silos of a sum, computed where it is read."""

    def __init__(self, total: SignedVector, *, scale: float, count: int) -> None:
        """Read a signed integer sum over the shared layout as a mean; it may be a memory map.

        The scale is s = Δ/C, grid steps per unit; the count is K, the silos in the sum.

        Raises:
            UpdateError: If the sum is not int32 or int64, or scale or count is not positive.
        """
        if total.dtype not in (np.int32, np.int64) or total.ndim != 1:
            raise UpdateError(f"a sum is a vector of integers, got {total.dtype} {total.shape}")
        if count < 1 or not (math.isfinite(scale) and scale > 0):
            raise UpdateError(f"a mean needs a positive count and scale, got {count} and {scale!r}")
        self._total = total
        self._divisor = scale * count

    @property
    def shape(self) -> tuple[int, ...]:
        """One side: the coordinates."""
        return self._total.shape

    @property
    def divisor(self) -> float:
        """s·K: what an element of the sum is divided by."""
        return self._divisor

    def __getitem__(self, place: slice, /) -> Float64Vector:
        """The mean over a slice."""
        return np.asarray(self._total[place].astype(np.float64) / self._divisor, dtype=np.float64)


def mean_of_sum(total: SignedVector, *, scale: float, count: int) -> Float64Vector:
    """``MeanOfSum`` in one piece.

    Raises:
        UpdateError: If the sum is not int32 or int64, or scale or count is not positive.
    """
    return MeanOfSum(total, scale=scale, count=count)[:]


class MovedTile(NamedTuple):
    """A part of one tensor after the step."""

    spec: TensorSpec
    place: slice
    """Of the tensor in row-major order."""
    values: npt.NDArray[np.float32]


def moved_tiles(
    layout: Layout, tensors: Tensors, shared: Layout, mean: Mean, server_step: float
) -> Iterator[MovedTile]:
    """Move the shared tensors by η_s·mean, a tile at a time, in the order of the layout.

    Raises:
        LayoutError: If the tensors are not the layout's, or the mean has another length.
        UpdateError: If a coordinate would leave float32.
    """
    layout.require(tensors)
    if mean.shape != (shared.dimension,):
        raise LayoutError(f"expected a mean of length {shared.dimension}, got {mean.shape}")
    start = 0
    for spec in shared.specs:
        flat = tensors[spec.name].reshape(-1)
        for place in tiles(flat):
            delta = mean[start + place.start : start + place.stop]
            exact = flat[place].astype(np.float64) + server_step * delta
            with np.errstate(over="ignore", invalid="ignore"):
                values = exact.astype(np.float32)
            if not np.isfinite(values).all():
                raise UpdateError(f"the update moves tensor {spec.name!r} out of float32")
            yield MovedTile(spec, place, values)
        start += spec.size


def step(
    layout: Layout, tensors: Tensors, shared: Layout, mean: Mean, server_step: float
) -> dict[str, npt.NDArray[np.float32]]:
    """Move the shared tensors by η_s·mean; the others are handed on as they are, not copied.

    Raises:
        LayoutError: If the tensors are not the layout's, or the mean has another length.
        UpdateError: If a coordinate would leave float32.
    """
    layout.require(tensors)
    moved = {spec.name: tensors[spec.name] for spec in layout.specs}
    for spec in shared.specs:
        moved[spec.name] = np.empty(spec.shape, dtype=np.float32)
    for tile in moved_tiles(layout, tensors, shared, mean, server_step):
        moved[tile.spec.name].reshape(-1)[tile.place] = tile.values
    return moved
