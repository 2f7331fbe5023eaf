"""``fedavg``: A ← A + η_s·mean ΔA and B ← B + η_s·mean ΔB, every round.

FedIT (arXiv 2305.05644) and Fed-SE (arXiv 2512.08870): both factors averaged separately and
unweighted.
Assumption: mean(B_k)·mean(A_k) is close to mean(B_k·A_k), that is, silos stay near the common
adapter within a round. Noise in W has the terms B·N_A, N_B·A and N_B·N_A.
With the gauge, both factors get √Σ before every round.
dp_compat: none, silo, record_local, record_distributed. In the last one all silos take a gradient
at the one adapter, so the assumption is not needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from federation.adapter.layout import Layout
from federation.aggregate.aggregator import Aggregator
from federation.aggregate.gauge import Form


@dataclass(frozen=True, kw_only=True, slots=True)
class FedAvg(Aggregator):
    """Everything is shared in every round; without the gauge any tensors will do."""

    name: ClassVar[str] = "fedavg"

    def shared_layout(self, round_number: int) -> Layout:
        """All tensors, whatever the round."""
        del round_number
        return self.layout

    def gauge_form(self, next_round: int) -> Form:
        """√Σ in both factors, whatever the round."""
        del next_round
        return "balanced"
