"""``fedask``: the mean of the silos' products through two sketches, with both factors trained.

FedASK, arXiv 2507.09990, Algorithm 1 (double sketching after Halko, Martinsson and Tropp, SIAM
Review 53 (2011), Algorithm 4.1), for every layer, with one Ω (n × p) for all silos:

    first sum     Y = mean B_k(A_kΩ)          Q = qr(Y), m × p
    second sum    P = mean A_kᵀ(B_kᵀQ)        P = U Σ Vᵀ, thin
    adapter       B := QV√Σ,  A := √ΣUᵀ, of the largest r singular values

Q Pᵀ is the mean product if its rank is at most p, and r(m + n) numbers would not do that. Summed
here are the differences D_k = B_kA_k − BA (``lab.aggregation.layers``): Y = (BA + η_s·mean D_k)Ω is
the same matrix for η_s = 1, and clip and noise act on what was learned in the round.

Ω has entries ±1/√p from SHAKE-256 of the seed, the round and the layer's name, so everyone knows it
and E‖DΩ‖² = ‖D‖²; Q has orthonormal columns, so ‖DᵀQ‖ ≤ ‖D‖. Both sums are therefore clipped to the
one bound of the product.

Two sums a round, p(m + n) numbers: an accountant has to charge both, the second one adaptively.
Assumption: the mean product has rank at most p, or a spectrum that falls quickly.
dp_compat: none, silo (both sums at their own noise).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np

from federation.adapter.layout import Layout, LoraPair
from federation.aggregate.gauge import Matrix, rademacher
from lab.aggregation.layers import factors_of, moved_factors, tensors_of
from lab.aggregation.method import LabAggregation, MeanOf, SiloUpdate, require_finite, require_silos
from lab.aggregation.truncation import Factors, balanced_factors

__all__ = ["FedAsk"]

SketchOf = Callable[[Factors, int], Matrix]


class FedAsk(LabAggregation):
    """Two sketches of the mean product of every layer."""

    name: ClassVar[str] = "fedask"
    sums_per_round: ClassVar[int] = 2

    def __init__(
        self,
        layout: Layout,
        *,
        silos: int,
        product_clip_l2: float,
        server_step: float,
        sketch: int,
        seed: int,
    ) -> None:
        """Sketch with p = ``sketch`` columns, or the layer's smaller side where that is less.

        p is at least the rank. ``product_clip_l2`` bounds one silo's whole sketch, all layers
        together; ``server_step`` is η_s, and the seed is that of Ω, which is public.

        Raises:
            LayoutError: If the layout is not of LoRA pairs.
        """
        self._layout = layout
        self._pairs = layout.pairs()
        self._silos = silos
        self._clip_l2 = product_clip_l2
        self._server_step = server_step
        self._sketch = sketch
        self._seed = seed

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
        """Algorithm 1, lines of the server and the silos' two sketches."""
        self._layout.require(tensors)
        require_silos(updates, self._silos)
        for update in updates:
            self._layout.require(update.delta)
        starts = [factors_of(tensors, pair) for pair in self._pairs]
        omegas = [self._omega(pair, round_number) for pair in self._pairs]
        moved = self._means(starts, updates, lambda f, i: f.b_mr @ (f.a_rn @ omegas[i]), mean, "Y")
        bases = [
            np.linalg.qr(start.b_mr @ (start.a_rn @ omega) + self._server_step * y)[0]
            for start, omega, y in zip(starts, omegas, moved, strict=True)
        ]
        moved = self._means(
            starts, updates, lambda f, i: f.a_rn.T @ (f.b_mr.T @ bases[i]), mean, "P"
        )
        made = []
        for start, basis, p in zip(starts, bases, moved, strict=True):
            whole = start.a_rn.T @ (start.b_mr.T @ basis) + self._server_step * p
            u, sigma, vt = np.linalg.svd(whole, full_matrices=False)
            made.append(balanced_factors(basis @ vt.T, sigma, u, former=start))
        return tensors_of(self._layout, made)

    def _means(
        self,
        starts: Sequence[Factors],
        updates: Sequence[SiloUpdate],
        sketch: SketchOf,
        mean: MeanOf,
        what: str,
    ) -> list[Matrix]:
        """Mean over silos of what each layer's sketch moved by: one sum over all layers."""
        before = [sketch(start, i) for i, start in enumerate(starts)]
        vectors = []
        for update in updates:
            moved = [
                sketch(moved_factors(start, update.delta, pair), i) - old
                for i, (start, pair, old) in enumerate(
                    zip(starts, self._pairs, before, strict=True)
                )
            ]
            vectors.append(np.concatenate([one.reshape(-1) for one in moved]))
        flat = require_finite(mean(vectors, clip_l2=self._clip_l2, what=f"sketch {what}"))
        ends = np.cumsum([one.size for one in before])[:-1]
        parts = np.split(flat, ends)
        return [part.reshape(old.shape) for part, old in zip(parts, before, strict=True)]

    def _omega(self, pair: LoraPair, round_number: int) -> Matrix:
        n = pair.a.shape[1]
        width = min(self._sketch, n, pair.b.shape[0])
        text = f"chorale/v1/lab/fedask/{self._seed}/{round_number}/{pair.prefix}"
        signs = rademacher(hashlib.sha256(text.encode()).digest(), n, width)
        return signs / math.sqrt(width)
