"""What a silo's update did to the product of each layer, and products back into adapters.

    D_k = B_k A_k − B A,    A_k = A + ΔA_k,  B_k = B + ΔB_k

is what its weights moved by, up to the factor α/r that all silos share. Because every silo starts
from the same BA, the mean of B_k A_k is BA + mean D_k; summing the difference keeps what is clipped
and noised as small as what was learned in the round.

Covered: the exact product of one silo, thin or dense. Not covered: sums (``LabAggregation``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from federation.adapter.layout import Layout, LoraPair
from federation.aggregate.gauge import Matrix
from federation.errors import UpdateError
from lab.aggregation.truncation import Factors

__all__ = ["factors_of", "moved_factors", "stored", "tensors_of"]


def factors_of(tensors: Mapping[str, np.ndarray], pair: LoraPair) -> Factors:
    """One layer's factors in float64."""
    return Factors(
        a_rn=tensors[pair.a.name].astype(np.float64), b_mr=tensors[pair.b.name].astype(np.float64)
    )


def moved_factors(start: Factors, delta: Mapping[str, np.ndarray], pair: LoraPair) -> Factors:
    """A silo's own factors of one layer."""
    moved = factors_of(delta, pair)
    return Factors(a_rn=start.a_rn + moved.a_rn, b_mr=start.b_mr + moved.b_mr)


def stored(matrix: Matrix, name: str) -> np.ndarray:
    """A factor as an adapter stores it: float32, with one zero.

    Raises:
        UpdateError: If an entry leaves float32.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = (matrix + 0.0).astype(np.float32)
    if not np.isfinite(narrow).all():
        raise UpdateError(f"the update moves tensor {name!r} out of float32")
    return narrow


def tensors_of(layout: Layout, factors: Sequence[Factors]) -> dict[str, np.ndarray]:
    """The adapter of these layers, in the order of ``layout.pairs()``.

    Raises:
        UpdateError: If an entry leaves float32.
    """
    tensors = {}
    for pair, (a, b) in zip(layout.pairs(), factors, strict=True):
        tensors[pair.a.name] = stored(a, pair.a.name)
        tensors[pair.b.name] = stored(b, pair.b.name)
    return tensors
