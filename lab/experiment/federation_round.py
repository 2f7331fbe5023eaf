"""One round of a federation in one process, and what the true deltas say about agreement.

A *circle* is those who share one adapter: all silos, a cluster, or a single one. A circle of one
keeps its own delta as it is, as ``silo_agent/local_work/alone.py`` does: no clip, no noise, no
server step.

From the true deltas, which only the lab sees (``methods/aggregation.md``; a coordinator estimates
both from sums), with the mean taken within each circle::

    κ  = Σ_circles n·‖mean Δ‖² / Σ_k ‖Δ_k‖²        1: all agree; 1/n: orthogonal
    ζ² = (Σ_k ‖Δ_k‖² − Σ_circles n·‖mean Δ‖²) / K

Covered: full participation. Not covered: dropouts, processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from evolution.methods.evolver import Evolution
from lab.aggregation.aggregation import LabAggregation, MeanOf, SiloUpdate
from lab.experiment.member import Adapter, Member

__all__ = ["Circle", "RoundFigures", "SharingCircle", "SoleCircle", "play_round"]


@dataclass(kw_only=True, slots=True)
class RoundFigures:
    """What a round of all circles amounts to."""

    successes: Counter[str] = field(default_factory=Counter)
    """By family."""
    episodes: Counter[str] = field(default_factory=Counter)
    """By family."""
    norms: list[float] = field(default_factory=list)
    """‖Δ_k‖, silo after silo."""
    agreed: float = 0.0
    """Σ_circles n·‖mean Δ‖²."""
    shared: bool = False
    """Whether any circle has more than one silo."""

    @property
    def kappa(self) -> float | None:
        """κ; None where nobody shares or nobody moved."""
        total = sum(norm**2 for norm in self.norms)
        return self.agreed / total if self.shared and total else None

    @property
    def zeta2(self) -> float | None:
        """ζ²; None where nobody shares."""
        if not self.shared:
            return None
        return (sum(norm**2 for norm in self.norms) - self.agreed) / len(self.norms)

    def take(self, evolutions: Sequence[Evolution]) -> None:
        """Add the silos of one circle."""
        for evolution in evolutions:
            self.successes.update(evolution.successes)
            self.episodes.update(evolution.episodes)
            self.norms.append(_norm(evolution.delta))
        if len(evolutions) > 1:
            count = len(evolutions)
            mean = {
                name: np.asarray(
                    np.mean([e.delta[name] for e in evolutions], axis=0, dtype=np.float64)
                )
                for name in evolutions[0].delta
            }
            self.agreed += count * _norm(mean) ** 2
            self.shared = True


class Circle(ABC):
    """Those who share one adapter."""

    def __init__(self, members: Sequence[Member], adapter: Adapter) -> None:
        self.members = tuple(members)
        self.adapter: dict[str, np.ndarray] = dict(adapter)

    @abstractmethod
    def play(self, round_number: int) -> list[Evolution]:
        """One round; afterwards ``adapter`` is the next one."""


class SoleCircle(Circle):
    """One learner by itself."""

    def play(self, round_number: int) -> list[Evolution]:
        """Evolve and keep the delta as it is."""
        (member,) = self.members
        evolution = member.evolve(
            self.adapter, round_number=round_number, trainable=frozenset(self.adapter)
        )
        for name, delta in evolution.delta.items():
            self.adapter[name] = np.asarray(self.adapter[name] + delta, dtype=np.float32)
        return [evolution]


class SharingCircle(Circle):
    """Several silos and the arithmetic between them."""

    def __init__(
        self,
        members: Sequence[Member],
        adapter: Adapter,
        *,
        aggregation: LabAggregation,
        mean: MeanOf,
    ) -> None:
        super().__init__(members, adapter)
        self._aggregation = aggregation
        self._mean = mean

    def play(self, round_number: int) -> list[Evolution]:
        """Evolve each silo from the shared adapter, then combine."""
        trainable = self._aggregation.trainable(round_number)
        evolutions = [
            member.evolve(
                self.adapter,
                round_number=round_number,
                trainable=trainable,
                correction=self._aggregation.correction(place),
            )
            for place, member in enumerate(self.members)
        ]
        self.adapter = self._aggregation.combine(
            self.adapter,
            [_update(evolution) for evolution in evolutions],
            round_number=round_number,
            mean=self._mean,
        )
        return evolutions


def play_round(circles: Sequence[Circle], round_number: int) -> RoundFigures:
    """One round, counted from 1, of every circle; they do not depend on one another."""
    figures = RoundFigures()
    for circle in circles:
        figures.take(circle.play(round_number))
    return figures


def _update(evolution: Evolution) -> SiloUpdate:
    # Without exploration nothing was solved in the round: what was imitated stands for it.
    explored = sum(evolution.episodes.values()) > 0
    selected = int(evolution.metrics.get("selected", 0))
    solved = sum(evolution.successes.values()) if explored else selected
    return SiloUpdate(
        delta=evolution.delta, successes=solved, mean_gradient=evolution.mean_gradient
    )


def _norm(tensors: Adapter) -> float:
    return float(
        np.sqrt(sum(float(np.square(t, dtype=np.float64).sum()) for t in tensors.values()))
    )
