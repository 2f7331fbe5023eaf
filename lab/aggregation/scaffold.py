"""``scaffold``: control variates against client drift, from two sums.

SCAFFOLD, arXiv 1910.06378, Algorithm 1, with |S| of N silos in each round, S the same size in all
of them, g_k the mean of silo k's uncorrected gradients along its local steps:

    local         y ← y − η_l(g(y) + c − c_k), so that Δ_k = y − x      (``correction`` is c − c_k)
    control       c_k⁺ = g_k
    first sum     x ← x + η_g·mean Δ_k           Δ_k clipped to C
    second sum    c ← c + |S|/N · mean (c_k⁺ − c_k)      clipped to its own bound C_c

Option II of the paper is c_k⁺ = c_k − c + (x − y)/(η_l·steps). With plain SGD that is g_k exactly,
as (x − y)/(η_l·steps) = g_k + c − c_k; with AdamW a step is no multiple of a gradient, and g_k is
what the option stands for. The correction is added to the gradients in either case.

Both means are over S, and the c_k of the other silos stay as they are.

Invariants: c is the mean of all c_k, up to grid and noise of the sums, because a silo moves its own
c_k by the *clipped* difference that it uploads; all start at zero.

Two private sums a round, and c_k is state of the silo, computed from its data and never uploaded
whole. Assumption: the silos' gradients differ in a way that lasts from round to round; coordinates
stay, which excludes the gauge and alternating factors.
dp_compat: none, silo (two releases a round).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from federation.aggregate.aggregator import Aggregator
from lab.aggregation.method import (
    AggregationError,
    LabAggregation,
    MeanOf,
    SiloUpdate,
    require_state,
)
from lab.aggregation.single_sum import flat_deltas

__all__ = ["Scaffold"]


class Scaffold(LabAggregation):
    """Keeps c and, in the silos' stead, every c_k."""

    name: ClassVar[str] = "scaffold"
    sums_per_round: ClassVar[int] = 2

    def __init__(
        self,
        aggregator: Aggregator,
        *,
        silos: int,
        of: int,
        clip_l2: float,
        control_clip_l2: float,
    ) -> None:
        """Start with every control variate at zero; each round has ``silos`` ``of`` all.

        The aggregator shares the same tensors in every round, without the gauge. ``clip_l2`` is C,
        of a delta; ``control_clip_l2`` is C_c, of a change of a control variate, in units of the
        gradient.
        """
        self._aggregator = aggregator
        self._shared = aggregator.shared_layout(1)
        self._silos = silos
        self._share = silos / of
        self._clip_l2 = clip_l2
        self._control_clip_l2 = control_clip_l2
        self._control = np.zeros(self._shared.dimension)
        self._controls = np.zeros((of, self._shared.dimension))

    def trainable(self, round_number: int) -> frozenset[str]:
        """The same tensors in every round."""
        del round_number
        return frozenset(spec.name for spec in self._shared.specs)

    def correction(self, silo: int) -> Mapping[str, np.ndarray]:
        """What a silo adds to its gradients, c − c_k: float32 over the trainable names.

        Raises:
            AggregationError: If there is no such silo.
        """
        self._require_silo(silo)
        difference = self._control - self._controls[silo]
        return self._shared.unflatten(difference.astype(np.float32))

    def combine(
        self,
        tensors: Mapping[str, np.ndarray],
        updates: Sequence[SiloUpdate],
        *,
        round_number: int,
        mean: MeanOf,
    ) -> dict[str, np.ndarray]:
        """Move the adapter, then c and every c_k."""
        deltas = flat_deltas(self._shared, updates, self._silos)
        places = [place if u.silo is None else u.silo for place, u in enumerate(updates)]
        for silo in places:
            self._require_silo(silo)
        changes = [
            _clipped(self._gradient(update, silo) - self._controls[silo], self._control_clip_l2)
            for silo, update in zip(places, updates, strict=True)
        ]
        moved = mean(deltas, clip_l2=self._clip_l2, what="delta")
        control = mean(changes, clip_l2=self._control_clip_l2, what="control variate")
        made = dict(self._aggregator.apply(tensors, moved, round_number))
        self._control = self._control + self._share * control
        controls = self._controls.copy()
        controls[places] += np.stack(changes)
        self._controls = controls
        return made

    def state(self) -> dict[str, np.ndarray]:
        """Every control variate: c and the c_k."""
        return {"control": self._control, "controls": self._controls}

    def take_up(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on with these control variates."""
        require_state(state, {"control": self._control.shape, "controls": self._controls.shape})
        self._control, self._controls = state["control"], state["controls"]

    def _require_silo(self, silo: int) -> None:
        if not 0 <= silo < len(self._controls):
            raise AggregationError(f"there is no silo {silo} among {len(self._controls)}")

    def _gradient(self, update: SiloUpdate, silo: int) -> np.ndarray:
        if update.mean_gradient is None:
            raise AggregationError(f"silo {silo} gave no mean gradient, which 'scaffold' needs")
        return self._shared.flatten(update.mean_gradient).astype(np.float64)


def _clipped(vector: np.ndarray, clip_l2: float) -> np.ndarray:
    norm = float(np.linalg.norm(vector))
    if not math.isfinite(norm):
        raise AggregationError("a mean gradient is not finite")
    return vector * (clip_l2 / norm) if norm > clip_l2 else vector
