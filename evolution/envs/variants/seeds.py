"""Which silo has which variant of a pool, and the seed that everything is counted from.

FedAgent, algorithm 6: silo i, counted from 1, has the variant j of V with ::

    j = RandomState(σ0 + i).randint(|V|)

for all rounds. Four variants over i = 1..100 come to 21, 20, 32 and 27 silos. (FedAgent's code
counts silos from 0, which gives 21, 19, 33 and 27.)

Covered: the rule. Not covered: what the variants are.
"""

from __future__ import annotations

from typing import Final

import numpy as np

__all__ = ["BASE_SEED", "assigned"]

BASE_SEED: Final = 42
"""σ0."""


def assigned(index: int, count: int) -> int:
    """The place in a pool of ``count`` variants that silo ``index``, counted from 1, has."""
    return int(np.random.RandomState(BASE_SEED + index).randint(count))
