"""``rolora``: odd rounds train B with A common to all, even rounds train A with B common.

RoLoRA, arXiv 2502.01755, Algorithm 1. With one factor common, mean(B_k)·A = mean(B_k·A) exactly,
and noise in W has one term without the quadratic one. Assumption: alternating minimisation makes
progress on each factor within a round.
The choice of order: rounds count from one and B is zero in a fresh adapter, so round 1 must train
B: A's gradient contains Bᵀ and would vanish. The parity is of the round number, so that everyone
knows it without history; after a skipped round the other factor's turn comes, with the product as
it was and the gauge of the skipped round.
With the gauge: before a B-round A has orthonormal rows (‖ΔB‖ is the change of W), before an
A-round B has orthonormal columns.
dp_compat: none, silo, record_local, record_distributed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from federation.adapter.layout import Factor, Layout, factor
from federation.aggregate.aggregator import Aggregator
from federation.aggregate.gauge import Form


def trained_factor(round_number: int) -> Factor:
    """B in odd rounds, A in even ones."""
    return "B" if round_number % 2 else "A"


@dataclass(frozen=True, kw_only=True, slots=True)
class RoLoRA(Aggregator):
    """One factor of every layer is shared; the other is the same at every silo."""

    name: ClassVar[str] = "rolora"

    def shared_layout(self, round_number: int) -> Layout:
        """All tensors of this round's factor.

        Raises:
            LayoutError: If the adapter is not made of complete LoRA pairs.
        """
        self.layout.pairs()
        wanted = trained_factor(round_number)
        return self.layout.subset(lambda spec: factor(spec.name) == wanted)

    def gauge_form(self, next_round: int) -> Form:
        """Orthonormal rows of A before a B-round, orthonormal columns of B before an A-round."""
        return "a_orthonormal" if trained_factor(next_round) == "B" else "b_orthonormal"
