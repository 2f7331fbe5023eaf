"""``weighted``: deltas weighted by how many episodes a silo solved, from two sums.

    w_k = min(successes_k, w_max)/w_max in [0, 1]
    first sum     mean w_kΔ_k      clipped to C after weighting
    second sum    mean w_k         bound 1
    Δ = (mean w_kΔ_k)/(mean w_k)

McMahan et al., arXiv 1602.05629, Algorithm 1, with n_k the solved episodes. The cap w_max is
public, so both sums have a bound that does not depend on data. Fed-SE (arXiv 2512.08870) measured
unweighted averaging as the better one; this is the comparison.
Where the second mean is below half of what one silo with one success adds, 1/(K·w_max), nobody is
known to have solved anything and nothing moves; and it is never divided by less than that, so that
noise in a weight cannot blow up the step.

The clip acts on w_kΔ_k, so a silo with few successes is clipped less. Two sums, both private: how
many episodes a silo solved is in the second one.
Assumption: a silo that solved more knows more.
dp_compat: none, silo (two releases a round).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from federation.aggregate.aggregator import Aggregator
from federation.aggregate.optimiser import Optimiser
from lab.aggregation.method import AggregationError, LabAggregation, MeanOf, SiloUpdate
from lab.aggregation.optimiser_state import moments_of, take_up_moments
from lab.aggregation.single_sum import flat_deltas

__all__ = ["Weighted"]


class Weighted(LabAggregation):
    """An aggregator of the product on a weighted mean."""

    name: ClassVar[str] = "weighted"
    sums_per_round: ClassVar[int] = 2

    def __init__(
        self,
        aggregator: Aggregator,
        optimiser: Optimiser,
        *,
        silos: int,
        clip_l2: float,
        weight_cap: int,
    ) -> None:
        """Weight what ``aggregator`` averages; the optimiser takes the weighted mean.

        ``silos`` is K, ``clip_l2`` is C, of a weighted delta, and ``weight_cap`` is w_max, public.
        """
        self._aggregator = aggregator
        self._optimiser = optimiser
        self._silos = silos
        self._clip_l2 = clip_l2
        self._weight_cap = weight_cap

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
        """Two means, their quotient, and the aggregator's step."""
        shared = self._aggregator.shared_layout(round_number)
        deltas = flat_deltas(shared, updates, self._silos)
        weights = [self._weight(update) for update in updates]
        weighted = [weight * delta for weight, delta in zip(weights, deltas, strict=True)]
        numerator = mean(weighted, clip_l2=self._clip_l2, what="weighted delta")
        (denominator,) = mean([np.array([w]) for w in weights], clip_l2=1.0, what="weight")
        least = 1.0 / (self._silos * self._weight_cap)
        if denominator < least / 2.0:
            moved = np.zeros(shared.dimension)
        else:
            moved = numerator / max(float(denominator), least)
        move = self._optimiser.move(moved, round_number=round_number, step=0)
        return dict(self._aggregator.apply(tensors, move, round_number))

    def _weight(self, update: SiloUpdate) -> float:
        if update.successes < 0:
            raise AggregationError(f"a silo reports {update.successes} successes")
        return min(update.successes, self._weight_cap) / self._weight_cap
