"""The product's methods in the lab: one sum of deltas a round, applied by ``federation.aggregate``.

Covered: every method and every server optimiser that a plan can name for sums of deltas, with the
arithmetic that coordinator and silos verify. Not covered: sums of gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from federation.adapter.layout import Layout
from federation.aggregate.aggregator import Aggregator
from federation.aggregate.optimiser import Optimiser
from lab.aggregation.method import LabAggregation, MeanOf, SiloUpdate, require_silos
from lab.aggregation.optimiser_state import moments_of, take_up_moments

__all__ = ["SingleSum", "flat_deltas"]


class SingleSum(LabAggregation):
    """One aggregator of the product with its server optimiser."""

    name: ClassVar[str] = "single-sum"
    sums_per_round: ClassVar[int] = 1

    def __init__(
        self,
        aggregator: Aggregator,
        optimiser: Optimiser,
        *,
        silos: int,
        clip_l2: float,
        noise_variance: float = 0.0,
    ) -> None:
        """Apply what a plan would apply; the optimiser takes the mean.

        ``clip_l2`` is C, of a delta; the noise variance is that of one coordinate of the mean, for
        the optimiser.
        """
        self._aggregator = aggregator
        self._optimiser = optimiser
        self._silos = silos
        self._clip_l2 = clip_l2
        self._noise_variance = noise_variance

    def trainable(self, round_number: int) -> frozenset[str]:
        """The aggregator's shared tensors."""
        shared = self._aggregator.shared_layout(round_number)
        return frozenset(spec.name for spec in shared.specs)

    def state(self) -> dict[str, np.ndarray]:
        """The server optimiser's moments."""
        return moments_of(self._optimiser)

    def take_up(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on with these moments."""
        take_up_moments(self._optimiser, state)

    def combine(
        self,
        tensors: Mapping[str, np.ndarray],
        updates: Sequence[SiloUpdate],
        *,
        round_number: int,
        mean: MeanOf,
    ) -> dict[str, np.ndarray]:
        """Mean delta, server optimiser, step and gauge, as a plan's round would do it."""
        shared = self._aggregator.shared_layout(round_number)
        moved = mean(flat_deltas(shared, updates, self._silos), clip_l2=self._clip_l2, what="delta")
        move = self._optimiser.move(
            moved, round_number=round_number, step=0, noise_variance=self._noise_variance
        )
        return dict(self._aggregator.apply(tensors, move, round_number))


def flat_deltas(shared: Layout, updates: Sequence[SiloUpdate], silos: int) -> list[np.ndarray]:
    """One flat float64 vector for each silo, in the layout's order.

    Raises:
        AggregationError: If there is not one update for each silo.
        LayoutError: If a delta is not exactly the shared tensors.
    """
    require_silos(updates, silos)
    return [shared.flatten(update.delta).astype(np.float64) for update in updates]
