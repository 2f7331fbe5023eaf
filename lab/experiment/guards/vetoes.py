"""Vetoes of a simulated federation: their sum under noise, and which settings can have them.

A plan of mode ``silo`` sums a metrics block beside the delta, of which one coordinate is ``vetoes``
(``federation/chain/sums.py``). Here that coordinate alone is summed: with the block's own scale s,
and with the noise that each of the n silos of a sum adds to it, ::

    v̂ = (Σ_k s·v_k + N_Z(0, σ_k²)) / (s·n)        e = √(Σ_k σ_k²) / (s·n)

v_k is 1 for a silo that vetoes, else 0. In groups σ_k is that of the silo's group, and only the
sizes of groups matter to either number, not who is in which.

Invariants: the noise depends on the key and the round, on nothing else. The block has coordinates
for every family of the run, the most that a real one would have: more coordinates are more noise.

Covered: one federation, round after round. Not covered: what follows (``circle.py``), the
other coordinates, the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from dp.noise.estimate import Estimate
from dp.noise.metrics_block import MetricsBlock
from dp.noise.share import add_noise, per_silo_sigma
from federation.chain.sums import UPDATE_NORM_SQ, VETOES
from lab.experiment.methods import Method
from lab.experiment.seeded import SeededWords
from lab.experiment.tables import AggregationTable, NoiseTable
from secagg.descriptor import EPISODES, SUCCESSES

__all__ = ["VetoSum", "unguarded"]

_STATELESS: Final = "fedavg"


class VetoSum:
    """See the module."""

    def __init__(
        self,
        noise: NoiseTable,
        *,
        silos: int,
        groups: int,
        families: Sequence[str],
        key: Sequence[str | int],
    ) -> None:
        """Sum the vetoes of so many silos, in so many groups; 1 is one sum of all."""
        names = (UPDATE_NORM_SQ, VETOES, *(k + f for f in families for k in (EPISODES, SUCCESSES)))
        block = MetricsBlock.of(names, (1.0,) * len(names))
        self._scale = block.scale
        self._sigmas = [
            per_silo_sigma(noise.z, block.grid, t=size, n_min=size, c=1)
            for size in (len(range(part, silos, groups)) for part in range(groups))
            for _ in range(size)
        ]
        self._key = tuple(key)

    def of_round(self, round_number: int, vetoes: Sequence[bool]) -> Estimate:
        """What the coordinator reads of the vetoes of all silos of a round."""
        total = self._scale * sum(vetoes)
        for place, sigma in enumerate(self._sigmas):
            share = np.zeros(1, dtype="<u4")
            add_noise(share, sigma, SeededWords(*self._key, VETOES, round_number, place))
            total += int(share.astype("<i4")[0])
        unit = 1.0 / (self._scale * len(self._sigmas))
        error = math.sqrt(sum(sigma**2 for sigma in self._sigmas))
        return Estimate(mean=total * unit, standard_error=error * unit)


def unguarded(
    name: str, method: Method, aggregation: AggregationTable, noise: NoiseTable, *, some: bool
) -> Iterator[str]:
    """Why the silos of a setting cannot have guards; ``some`` of the silos take part in a round."""
    if method.topology != "federated" or method.clustered or method.personal:
        yield f"guard: silos of method {name!r} do not all serve one shared adapter"
    if some:
        yield "guard: every silo judges each round here: set per_round = 0"
    if noise.z == 0:
        yield "guard: vetoes stand in mode 'silo' alone, so noise.z is above 0"
    for key, value in (
        ("method", aggregation.method),
        ("server_optimiser", aggregation.server_optimiser),
    ):
        if value != _STATELESS:
            yield (
                f"guard: aggregation.{key} is {_STATELESS!r}, not {value!r}: a state is not "
                "taken back with an adapter here"
            )
