"""``flex_masked``: the sum of whole products, cut back to rank r.

The server step of FlexLoRA (arXiv 2402.11505, section 3.2), mean B_kA_k and its truncated SVD, from
one sum over all layers of the differences D_k = B_kA_k − BA (``lab.aggregation.layers``):

    M = BA + η_s·mean D_k,   M = U Σ Vᵀ,   B := U_r√Σ_r,  A := √Σ_rV_rᵀ

The product of the next adapter is the mean's best approximation of rank r, so only truncation is
lost. The uplink is the sum of m·n over the layers, where factors cost r(m + n), and noise has that
many coordinates: for small layers only.
Assumption: the mean product is close to rank r.
dp_compat: none, silo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from federation.adapter.layout import Layout
from lab.aggregation.layers import factors_of, moved_factors, tensors_of
from lab.aggregation.method import LabAggregation, MeanOf, SiloUpdate, require_finite, require_silos
from lab.aggregation.truncation import Factors, balanced_factors

__all__ = ["FlexMasked"]


class FlexMasked(LabAggregation):
    """One dense sum of the products' differences."""

    name: ClassVar[str] = "flex_masked"
    sums_per_round: ClassVar[int] = 1

    def __init__(
        self, layout: Layout, *, silos: int, product_clip_l2: float, server_step: float
    ) -> None:
        """Sum the products of all layers.

        ``product_clip_l2`` bounds one silo's D, all layers together; ``server_step`` is η_s.

        Raises:
            LayoutError: If the layout is not of LoRA pairs.
        """
        self._layout = layout
        self._pairs = layout.pairs()
        self._silos = silos
        self._clip_l2 = product_clip_l2
        self._server_step = server_step

    def trainable(self, round_number: int) -> frozenset[str]:
        """Both factors of every layer."""
        del round_number
        return frozenset(spec.name for spec in self._layout.specs)

    def combine(
        self,
        tensors: Mapping[str, np.ndarray],
        updates: Sequence[SiloUpdate],
        *,
        round_number: int,
        mean: MeanOf,
    ) -> dict[str, np.ndarray]:
        """Mean product, then its truncation, layer by layer."""
        del round_number
        self._layout.require(tensors)
        require_silos(updates, self._silos)
        for update in updates:
            self._layout.require(update.delta)
        starts = [factors_of(tensors, pair) for pair in self._pairs]
        vectors = [self._difference(starts, update) for update in updates]
        flat = require_finite(mean(vectors, clip_l2=self._clip_l2, what="product"))
        made, at = [], 0
        for pair, start in zip(self._pairs, starts, strict=True):
            m, n = pair.b.shape[0], pair.a.shape[1]
            moved = flat[at : at + m * n].reshape(m, n)
            at += m * n
            u, sigma, vt = np.linalg.svd(
                start.b_mr @ start.a_rn + self._server_step * moved, full_matrices=False
            )
            made.append(balanced_factors(u, sigma, vt.T, former=start))
        return tensors_of(self._layout, made)

    def _difference(self, starts: Sequence[Factors], update: SiloUpdate) -> np.ndarray:
        parts = []
        for pair, start in zip(self._pairs, starts, strict=True):
            own = moved_factors(start, update.delta, pair)
            parts.append((own.b_mr @ own.a_rn - start.b_mr @ start.a_rn).reshape(-1))
        return np.concatenate(parts)
