"""The seam of an aggregation method: what is trained and uploaded, and how a mean is applied."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from federation.adapter.layout import Layout, Tensors
from federation.aggregate.gauge import Form, regauge
from federation.aggregate.server_step import Mean, MovedTile, moved_tiles, step


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregator(ABC):
    """One method over one adapter layout. Stateless: the round number decides everything.

    ``mean`` is what the optimiser made of the mean (``federation.aggregate.optimiser``).
    """

    layout: Layout
    server_step: float
    gauge: bool
    """Whether the same product is rewritten after each round."""
    name: ClassVar[str]

    @abstractmethod
    def shared_layout(self, round_number: int) -> Layout:
        """The tensors that every silo trains and uploads in this round, and no others."""

    @abstractmethod
    def gauge_form(self, next_round: int) -> Form:
        """The form of the factors that ``next_round`` wants under the gauge.

        Raises:
            LayoutError: If the method excludes the gauge.
        """

    def regauge(self, tensors: Tensors, next_round: int) -> Tensors:
        """The same product BA in the factors that ``next_round`` wants.

        Raises:
            LayoutError: If the method excludes the gauge, or the layout is not of LoRA pairs.
            UpdateError: If a factor is not finite or its decomposition fails.
        """
        return regauge(self.layout, tensors, self.gauge_form(next_round))

    def apply_ungauged(self, tensors: Tensors, mean: Mean, round_number: int) -> Tensors:
        """The step alone, byte-exact on every machine."""
        return step(self.layout, tensors, self.shared_layout(round_number), mean, self.server_step)

    def moved_tiles(self, tensors: Tensors, mean: Mean, round_number: int) -> Iterator[MovedTile]:
        """The step alone, tile by tile: the tensors it names move, the others do not."""
        shared = self.shared_layout(round_number)
        return moved_tiles(self.layout, tensors, shared, mean, self.server_step)

    def apply(
        self, tensors: Tensors, mean: Mean, round_number: int, *, last_step: bool = True
    ) -> Tensors:
        """The adapter that opens the next step, or the next round after the last one.

        The gauge acts at the end of a round only: within one, the optimiser's state refers to the
        coordinates as they are.
        """
        moved = self.apply_ungauged(tensors, mean, round_number)
        return self.regauge(moved, round_number + 1) if self.gauge and last_step else moved
