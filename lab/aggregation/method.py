"""The seam of an aggregation method in the lab: what is trained, and how means become an adapter.

A method of the product makes one masked sum a round (``federation.aggregate``). The lab also runs
those that need several: each asks for every mean that it needs through ``MeanOf``, so that a plain
experiment and a masked one are the same path and no method ever sees one silo's vector.

Invariants:
    1. ``combine`` learns of the updates through ``mean`` alone; what it computes for one silo is
       what that silo would compute and upload, and stays in that silo's vector.
    2. ``combine`` calls ``mean`` ``sums_per_round`` times, always in the same order and with the
       same clips: what is asked for depends on the round and never on the updates.
    3. The adapter that comes back has the tensors that went in: names, shapes, float32.

Covered: one process that plays all silos. Not covered: processes, dropouts, accounting of more than
one sum (an experiment that adds noise states how many it releases).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from federation.errors import UpdateError

__all__ = [
    "AggregationError",
    "LabAggregation",
    "MeanOf",
    "SiloUpdate",
    "require_finite",
    "require_silos",
    "require_state",
]


class AggregationError(ValueError):
    """A method cannot run with these settings, or on these updates."""


class MeanOf(Protocol):
    """The mean over silos as secure aggregation gives it.

    Clips each vector to ``clip_l2`` (L2), encodes it on the fixed-point grid, adds the silos' noise
    shares and sums modulo 2^32, plain or masked with the same bits; float64 comes back.
    """

    def __call__(self, vectors: Sequence[np.ndarray], *, clip_l2: float, what: str) -> np.ndarray:
        """Take one vector for each silo, in the order of the silos; ``what`` names the sum."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloUpdate:
    """What one silo made of a round."""

    delta: Mapping[str, np.ndarray]
    """Local minus global over the round's trainable names, float32."""
    successes: int = 1
    """Solved episodes; ``weighted`` reads it."""
    mean_gradient: Mapping[str, np.ndarray] | None = None
    """Mean of the uncorrected gradients along the local steps; ``scaffold`` needs it."""
    silo: int | None = None
    """Its place among all silos, where only some take part in a round; None: its place among the
    round's updates. ``scaffold`` reads it."""


class LabAggregation(ABC):
    """One method over one adapter layout. It may keep state from round to round.

    The number of silos that it is made for is that of every round's updates.
    """

    name: ClassVar[str]
    sums_per_round: ClassVar[int]

    @abstractmethod
    def trainable(self, round_number: int) -> frozenset[str]:
        """Names that every silo trains in a round; rounds count from 1."""

    def correction(self, silo: int) -> Mapping[str, np.ndarray] | None:
        """What a silo adds to every gradient: c − c_k of SCAFFOLD; None for every other method.

        ``silo`` is its place among all silos.
        """
        del silo
        return None

    def state(self) -> dict[str, np.ndarray]:
        """What it keeps from round to round, as arrays by name; empty where it keeps nothing."""
        return {}

    def take_up(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what ``state`` gave in another object of the same method and settings.

        Raises:
            AggregationError: It is no state of this method.
        """
        require_state(state, {})

    @abstractmethod
    def combine(
        self,
        tensors: Mapping[str, np.ndarray],
        updates: Sequence[SiloUpdate],
        *,
        round_number: int,
        mean: MeanOf,
    ) -> dict[str, np.ndarray]:
        """The adapter that opens the next round.

        ``tensors`` are all factors that the round started from, float32, and ``updates`` are in the
        order of the silos. Rounds count from 1; ``mean`` gives every mean that is needed.

        Raises:
            AggregationError: An update lacks what the method needs, or the number of silos is not
                the one that the method was made for.
            FederationError: Tensors or deltas are not the layout's, or the update is not finite.
        """


def require_finite(mean: np.ndarray) -> np.ndarray:
    """The same mean, known to be finite.

    Raises:
        UpdateError: If it is not.
    """
    if not np.isfinite(mean).all():
        raise UpdateError("the mean is not finite")
    return mean


def require_state(state: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that a state has exactly these arrays, float64 or int64, with finite values.

    Raises:
        AggregationError: It has not.
    """
    found = {name: array.shape for name, array in state.items()}
    if found != dict(shapes):
        raise AggregationError(f"the state has the arrays {found} instead of {dict(shapes)}")
    for name, array in state.items():
        if array.dtype not in (np.float64, np.int64) or not np.isfinite(array).all():
            raise AggregationError(f"the state's {name!r} is not finite, or of type {array.dtype}")


def require_silos(updates: Sequence[SiloUpdate], silos: int) -> None:
    """Check that there is one update for each silo.

    Raises:
        AggregationError: If there is not.
    """
    if len(updates) != silos:
        raise AggregationError(f"expected {silos} updates, got {len(updates)}")
