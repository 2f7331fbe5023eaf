"""The one arithmetic of an update: φ' = float32(float64(φ) + η_s·mean), element by element.

Invariants:
    1. mean = float64(Σ q) / (s·K): the integer sum is below 2^53, so its conversion is exact and
       two correctly rounded operations follow, the same bits on every IEEE 754 machine.
    2. The product and the addition are separate elementwise operations in float64, so no compiler
       fuses them, and nothing is reduced, so no order of summation matters.
    3. Every silo counts once: K is the number of silos in the sum, and no weight exists.

FedAvg, unweighted: McMahan et al. 2017, arXiv 1602.05629, Algorithm 1 with n_k/n replaced by 1/K
(Fed-SE, arXiv 2512.08870: unweighted is better); server step η_s: Reddi et al. 2021,
arXiv 2003.00295, Algorithm 1 with SGD.

Covered: sum → mean → next tensors. Not covered: which tensors, and the gauge.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from federation.errors import UpdateError
from federation.layout import Layout, Tensors

Int64Vector = npt.NDArray[np.int64]
Float64Vector = npt.NDArray[np.float64]


def mean_of_sum(total: Int64Vector, *, scale: float, count: int) -> Float64Vector:
    """The mean delta over the silos of a sum.

    Args:
        total: Signed integer sum over the shared layout.
        scale: Grid steps per unit, s = Δ/C.
        count: Silos in the sum, K.

    Raises:
        UpdateError: If the sum is not int64, or scale or count is not positive.
    """
    if total.dtype != np.int64 or total.ndim != 1:
        raise UpdateError(f"a sum is an int64 vector, got {total.dtype} {total.shape}")
    if count < 1 or not (math.isfinite(scale) and scale > 0):
        raise UpdateError(f"a mean needs a positive count and scale, got {count} and {scale!r}")
    return np.asarray(total.astype(np.float64) / (scale * count), dtype=np.float64)


def step(
    layout: Layout, tensors: Tensors, shared: Layout, mean: Float64Vector, server_step: float
) -> dict[str, npt.NDArray[np.float32]]:
    """Move the shared tensors by η_s·mean and leave the others as they are.

    Raises:
        LayoutError: If the tensors are not the layout's, or the mean has another length.
        UpdateError: If a coordinate would leave float32.
    """
    layout.require(tensors)
    moved = {spec.name: tensors[spec.name].copy() for spec in layout.specs}
    for name, delta in shared.unflatten(mean).items():
        exact = tensors[name].astype(np.float64) + server_step * delta
        with np.errstate(over="ignore", invalid="ignore"):
            moved[name] = exact.astype(np.float32)
        if not np.isfinite(moved[name]).all():
            raise UpdateError(f"the update moves tensor {name!r} out of float32")
    return moved
