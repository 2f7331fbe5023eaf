"""``ffa``: A stays what it was in the initial adapter; B ← B + η_s·mean ΔB, every round.

FFA-LoRA, arXiv 2403.12313, section 4. With A common to all, mean(B_k)·A = mean(B_k·A) exactly, and
noise in W has the one term N_B·A. Fewer parameters are trained than with both factors, so the same
noise drowns less, and silos and coordinator send B only.
Assumption: the row space of the initial A is rich enough; what the adapter learns never leaves it.
No gauge: it would rewrite A.
dp_compat: none, silo, record_local, record_distributed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NoReturn

from federation.adapter.layout import Layout, factor
from federation.aggregate.aggregator import Aggregator
from federation.errors import LayoutError


@dataclass(frozen=True, kw_only=True, slots=True)
class FrozenA(Aggregator):
    """B of every layer is shared; A is the same at every silo and in every round."""

    name: ClassVar[str] = "ffa"

    def shared_layout(self, round_number: int) -> Layout:
        """All B, whatever the round.

        Raises:
            LayoutError: If the adapter is not made of complete LoRA pairs.
        """
        del round_number
        self.layout.pairs()
        return self.layout.subset(lambda spec: factor(spec.name) == "B")

    def gauge_form(self, next_round: int) -> NoReturn:
        """Refuse, by a LayoutError."""
        del next_round
        raise LayoutError("method 'ffa' keeps A as it was, which a gauge would rewrite")
