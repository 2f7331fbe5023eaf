"""``fedsa``: A ← A + η_s·mean ΔA, every round; each silo keeps a B of its own.

FedSA-LoRA, arXiv 2410.01463, section 3: A carries what the silos have in common, B what is
particular to each. A silo trains both from its own B and uploads ΔA alone.
What is published has the initial B, which is zero: on its own the global adapter is the base
model's function, and only a silo that adds its personal B has an adapted model.
Assumption: the silos' tasks share the subspace that A spans.
No gauge: B is zero here and different at every silo, so there is no product to rewrite.
dp_compat: none, silo. At record level the personal B is trained on the same units as A, outside the
noisy steps that are charged, and the next ΔA is computed through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NoReturn

from federation.adapter.layout import Layout, factor
from federation.aggregate.aggregator import Aggregator
from federation.errors import LayoutError


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedA(Aggregator):
    """A of every layer is shared; B of the published adapter stays what it was."""

    name: ClassVar[str] = "fedsa"

    def shared_layout(self, round_number: int) -> Layout:
        """All A, whatever the round.

        Raises:
            LayoutError: If the adapter is not made of complete LoRA pairs.
        """
        del round_number
        self.layout.pairs()
        return self.layout.subset(lambda spec: factor(spec.name) == "A")

    def gauge_form(self, next_round: int) -> NoReturn:
        """Refuse, by a LayoutError."""
        del next_round
        raise LayoutError("method 'fedsa' leaves B to each silo, so no common product exists")
