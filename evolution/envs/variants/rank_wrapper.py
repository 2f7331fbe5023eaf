"""Rank Wrapper (stage 4): a silo's results are shown in another order than they were ranked in.

FedAgent's pool, in the paper's order: as ranked; the first 50 shuffled and cut to K; the first K
reversed; and, with probability ½ at each search, K documents at random instead of the first K. K is
10. A wrapper that is random always is not among them: it would show what is asked for in one search
of a hundred, and its silos would learn nothing.

One thing differs from the paper. There each silo has one generator, seeded with σ0 + i, that goes
on from search to search through the whole run. Here a draw is seeded with σ0 + i, the task and the
number of the search within the episode (``stages.Search``): an episode then follows from its reset
alone, which every environment promises, so a run can be resumed, tries of one task meet the same
chance, and it does not matter how many episodes are played at once. Searching again in the same
episode draws anew, as there.

Covered: the pool of four. Not covered: other K.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from evolution.envs.variants.seeds import BASE_SEED

__all__ = ["ORDERS", "RankWrapper", "rank_line"]

Order = Literal["as-ranked", "shuffle", "reverse", "random"]
ORDERS: Final[tuple[Order, ...]] = ("as-ranked", "shuffle", "reverse", "random")
_SHOWN: Final = 10
_SHUFFLED: Final = 50
_RANDOM_SHARE: Final = 0.5
_LINES: Final[dict[Order, str]] = {
    "as-ranked": "page 1 2 3 .",
    "shuffle": "page 2 3 1 .",
    "reverse": "page 3 2 1 .",
    "random": "page not known .",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RankWrapper:
    """One of ``ORDERS`` but the first, for silo ``index``, counted from 1."""

    order: Order
    """What becomes of a ranking."""
    index: int
    """Whose chance it is."""

    @property
    def seed(self) -> int:
        """See ``Rendering``."""
        return BASE_SEED + self.index

    def show(
        self, ranked: Sequence[int], *, documents: int, rng: np.random.Generator
    ) -> Sequence[int]:
        """See ``Rendering``."""
        first = list(ranked[:_SHOWN])
        if self.order == "shuffle":
            first = list(ranked[:_SHUFFLED])
            return [first[place] for place in rng.permutation(len(first))[:_SHOWN]]
        if self.order == "reverse":
            return first[::-1]
        if self.order == "random" and rng.random() < _RANDOM_SHARE:
            drawn = rng.choice(documents, size=min(_SHOWN, documents), replace=False)
            return [int(number) for number in drawn]
        return first


def rank_line(choice: int) -> str:
    """An order in words."""
    return _LINES[ORDERS[choice]]
