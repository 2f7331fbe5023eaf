"""``fedsvd``: a B-round with A common, then BA = UΣVᵀ gives A ← Vᵀ and B ← UΣ, every round.

FedSVD, arXiv 2505.12805, section 3. With A common to all, mean(B_k)·A = mean(B_k·A) exactly, and
noise in W has the one term N_B·A. From round 2 on the rows of A are orthonormal, so ‖ΔB‖ is the
norm of the change of W. The rewriting is the gauge in its form ``a_orthonormal``, at every round's
end: the method is ``ffa`` with it, and ``rolora`` with the gauge but for the A-rounds.
A layer whose product is still zero, or short of rank, keeps the row space of its A: the rows that
carry nothing are an orthonormal basis of the rest of it.
Assumption: the row space of the initial A is rich enough; V spans what A spanned, so what the
adapter learns never leaves it, as with ``ffa``.
dp_compat: none, silo, record_local, record_distributed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from federation.adapter.layout import Layout, factor
from federation.aggregate.aggregator import Aggregator
from federation.aggregate.gauge import Form


@dataclass(frozen=True, kw_only=True, slots=True)
class FedSvd(Aggregator):
    """B of every layer is shared; A is rewritten, never trained."""

    name: ClassVar[str] = "fedsvd"

    def shared_layout(self, round_number: int) -> Layout:
        """All B, whatever the round.

        Raises:
            LayoutError: If the adapter is not made of complete LoRA pairs.
        """
        del round_number
        self.layout.pairs()
        return self.layout.subset(lambda spec: factor(spec.name) == "B")

    def gauge_form(self, next_round: int) -> Form:
        """Orthonormal rows of A, whatever the round."""
        del next_round
        return "a_orthonormal"
