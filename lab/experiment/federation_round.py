"""One round of a federation, and what the true deltas say about agreement.

A *circle* is those who share one adapter: all silos, a cluster, or a single one. A circle of one
keeps its own delta as it is, as ``silo_agent/local_work/alone.py`` does: no clip, no noise, no
server step.

From the true deltas, which only the lab sees (``methods/aggregation.md``; a coordinator estimates
both from sums), with the mean taken within each circle::

    κ  = Σ_circles n·‖mean Δ‖² / Σ_k ‖Δ_k‖²        1: all agree; 1/n: orthogonal
    ζ² = (Σ_k ‖Δ_k‖² − Σ_circles n·‖mean Δ‖²) / K

Where only some silos take part in a round, both are about those. The others neither explore nor
train, and keep their stores, personal adapters and control variates as they are.

Covered: rounds of all silos or of some; leaving a circle between two rounds and taking it up. Not
covered: dropouts, which simulated rounds have (``orchestration``); where the local work is done
(``engines``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from dp.noise.estimate import Estimate
from evolution.methods.evolver import Evolution
from lab.aggregation.aggregation import LabAggregation, SiloUpdate
from lab.experiment.engines.engine import MemberEngine
from lab.experiment.engines.local_round import LocalRound
from lab.experiment.member import Adapter
from lab.experiment.sums import RoundMean

__all__ = [
    "Chosen",
    "Circle",
    "CircleState",
    "Guarding",
    "Indices",
    "RoundFigures",
    "SharingCircle",
    "SoleCircle",
    "play_round",
    "update_of",
]

Indices = tuple[int, ...]
"""The silos that a member stands for; several are pooled."""
Chosen = Callable[[int], Sequence[int]]
"""Places of the members that take part in a round of that number, in ascending order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarding:
    """What guards came to in a round."""

    vetoes: Estimate | None = None
    """The mean over silos as the coordinator reads it; None where a rollback took the round."""
    restored_round: int | None = None
    """The round whose adapter came back; None where nothing did."""


@dataclass(kw_only=True, slots=True)
class RoundFigures:
    """What a round of all circles amounts to."""

    silos: list[int] = field(default_factory=list)
    """Who took part."""
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
    guarding: Guarding | None = None
    """Of a run whose silos have guards."""
    simulated: dict[str, Any] = field(default_factory=dict)
    """What the round came to in simulated time; empty where there is none."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class CircleState:
    """What the next round of a circle needs, beside its members' stores."""

    adapter: Mapping[str, np.ndarray]
    """All factors, float32."""
    aggregation: Mapping[str, np.ndarray] = field(default_factory=dict)
    """``LabAggregation.state``."""
    sums: tuple[int, ...] = ()
    """``RoundMean.counted``."""
    ended: Sequence[Mapping[str, np.ndarray]] = ()
    """Where silos have guards: the initial adapter, and what each round ended with."""
    restored: Mapping[int, int] = field(default_factory=dict)
    """Rounds that a rollback took, with the round whose adapter came back."""
    back_to: int | None = None
    """Of a run that stopped: the round whose adapter the next one brings back."""
    record: bytes = b""
    """What else its next round follows from; empty for nothing."""


class Circle(ABC):
    """Those who share one adapter."""

    guarding: Guarding | None = None
    """Of the round that was taken last."""

    def __init__(self, members: Sequence[Indices], adapter: Adapter) -> None:
        self.members = tuple(members)
        self.adapter: dict[str, np.ndarray] = dict(adapter)

    @abstractmethod
    def work(self, round_number: int) -> list[LocalRound]:
        """What the members that take part in a round are to do."""

    @abstractmethod
    def take(self, round_number: int, evolutions: Sequence[Evolution]) -> None:
        """End the round with what came of its ``work``; ``adapter`` is the next one then."""

    def simulated(self) -> dict[str, Any]:
        """What the last round came to in simulated time; nothing where there is none."""
        return {}

    def decisions(self) -> str:
        """A line for each choice of whom a round asked; nothing where none was made."""
        return ""

    def state(self) -> CircleState:
        """What the next round needs."""
        return CircleState(adapter=self.adapter)

    def take_up(self, state: CircleState) -> None:
        """Go on from what ``state`` gave in another circle of the same run, after so many rounds.

        Raises:
            ValueError: It is the state of another kind of circle.
        """
        if state.adapter.keys() != self.adapter.keys() or any(
            state.adapter[name].shape != tensor.shape for name, tensor in self.adapter.items()
        ):
            raise ValueError("the adapter of the state has other tensors than the run's")
        self.adapter = {name: np.array(tensor) for name, tensor in state.adapter.items()}


class SoleCircle(Circle):
    """One learner by itself."""

    def work(self, round_number: int) -> list[LocalRound]:
        """Its own."""
        (member,) = self.members
        return [
            LocalRound(
                indices=member,
                round_number=round_number,
                adapter=self.adapter,
                trainable=frozenset(self.adapter),
            )
        ]

    def take(self, round_number: int, evolutions: Sequence[Evolution]) -> None:
        """Keep the delta as it is."""
        del round_number
        (evolution,) = evolutions
        moved = {
            name: np.asarray(self.adapter[name] + delta, dtype=np.float32)
            for name, delta in evolution.delta.items()
        }
        self.adapter = {**self.adapter, **moved}


class SharingCircle(Circle):
    """Several silos and the arithmetic between them; all take part where nobody is chosen."""

    def __init__(
        self,
        members: Sequence[Indices],
        adapter: Adapter,
        *,
        aggregation: LabAggregation,
        mean: RoundMean,
        chosen: Chosen | None = None,
    ) -> None:
        super().__init__(members, adapter)
        self._aggregation = aggregation
        self._mean = mean
        everybody = range(len(self.members))
        self._chosen: Chosen = (lambda _: everybody) if chosen is None else chosen

    def work(self, round_number: int) -> list[LocalRound]:
        """Evolve each silo that takes part from the shared adapter."""
        trainable = self._aggregation.trainable(round_number)
        return [
            LocalRound(
                indices=self.members[place],
                round_number=round_number,
                adapter=self.adapter,
                trainable=trainable,
                correction=self._aggregation.correction(place),
            )
            for place in self._chosen(round_number)
        ]

    def take(self, round_number: int, evolutions: Sequence[Evolution]) -> None:
        """Combine the deltas."""
        places = self._chosen(round_number)
        self.adapter = self._aggregation.combine(
            self.adapter,
            [update_of(evolution, at) for evolution, at in zip(evolutions, places, strict=True)],
            round_number=round_number,
            mean=self._mean.among(places),
        )

    def state(self) -> CircleState:
        """The adapter, the aggregation's state, and how many sums there were."""
        return CircleState(
            adapter=self.adapter,
            aggregation=self._aggregation.state(),
            sums=self._mean.counted,
        )

    def take_up(self, state: CircleState) -> None:
        """Go on with all three."""
        super().take_up(state)
        self._aggregation.take_up(state.aggregation)
        self._mean.go_on_after(state.sums)


def play_round(
    circles: Sequence[Circle], round_number: int, *, engine: MemberEngine
) -> RoundFigures:
    """One round, counted from 1, of every circle; they do not depend on one another.

    Raises:
        ExperimentError: Some of the local work cannot be done.
    """
    figures = RoundFigures()
    work = [circle.work(round_number) for circle in circles]
    evolutions = engine.play([one for of_circle in work for one in of_circle])
    for circle, of_circle in zip(circles, work, strict=True):
        made = list(islice(evolutions, len(of_circle)))
        figures.take(made)
        figures.silos += [index for one in of_circle for index in one.indices]
        circle.take(round_number, made)
        figures.guarding = circle.guarding
        figures.simulated |= circle.simulated()
    return figures


def update_of(evolution: Evolution, place: int) -> SiloUpdate:
    """What a silo at this place brings to a sum."""
    # Without exploration nothing was solved in the round: what was imitated stands for it.
    explored = sum(evolution.episodes.values()) > 0
    selected = int(evolution.metrics.get("selected", 0))
    solved = sum(evolution.successes.values()) if explored else selected
    return SiloUpdate(
        delta=evolution.delta,
        successes=solved,
        mean_gradient=evolution.mean_gradient,
        silo=place,
    )


def _norm(tensors: Adapter) -> float:
    return float(
        np.sqrt(sum(float(np.square(t, dtype=np.float64).sum()) for t in tensors.values()))
    )
