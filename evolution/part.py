"""A part of a recipe as a silo makes it: its card, its options, its class.

Invariants:

1. A class is loaded because a card names it, and used only if it says what its card says: kind by
   kind what it couples, reads and needs. What privacy is computed from is what runs.
2. Each ``make`` is a fresh instance: what one unit left in it never meets another unit.
3. As text, for a training job in a process of its own, a part is its name and its options; code is
   found by the name again, never by what the text says.

Covered: loading, comparing, making. Not covered: what a part does (``evolution/parts``), whether a
plan may name it (``federation.plan.recipe``).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from evolution.errors import EvolverSetupError
from federation.errors import UnknownPartError
from federation.plan.methods import PARTS, Couples, PartCard, Reads, part_card
from federation.plan.section import Section

__all__ = ["BasePart", "Part"]


class BasePart:
    """What every part's class says of itself, and how it is made."""

    couples: ClassVar[Couples]
    """As on its card."""
    reads: ClassVar[Reads]
    """As on its card."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """As on its card; of objectives only."""
    keeps_principles: ClassVar[bool] = False
    """Whether the silo keeps principles for it (``MemoryView.principles``); of plays only."""
    watches: ClassVar[tuple[str, ...]] = ()
    """Figures that an objective notes of a training."""
    options: Any
    """An instance of its card's ``options``."""
    watch: Any = None
    """An ``evolution.train.objective.Watch`` while an objective is watched."""
    progress: float = 0.0
    """How far the training has come that an objective is part of, before each of its steps: 0 at
    the first, towards 1. A count of steps and nothing of the data. Where each step is an
    aggregation of its own, the steps are those of the round."""

    def __init__(self, options: Section) -> None:
        self.options = options

    def concluded(self, figures: Mapping[str, float]) -> dict[str, float]:
        """What it makes of the figures that it watched, once a training is over."""
        return dict(figures)

    @classmethod
    def needed(cls, options: Section) -> frozenset[str]:  # noqa: ARG003  # for those that ask less
        """What of ``needs`` it asks for with these options."""
        return cls.needs


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A card with the plan's options of it."""

    card: PartCard
    """What it is."""
    options: Section
    """An instance of the card's ``options``."""

    def make(self) -> Any:
        """A fresh instance.

        Raises:
            EvolverSetupError: The class cannot be loaded, or says something else than its card.
        """
        return self.load()(self.options)

    def load(self) -> type[BasePart]:
        """The part's class.

        Raises:
            EvolverSetupError: As ``make``.
        """
        card, (module, _, attribute) = self.card, self.card.code.partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except Exception as error:
            # A package is foreign code, and that it cannot be used is no data.
            raise EvolverSetupError(f"{self} cannot be loaded: {error}") from error
        if not isinstance(found, type) or not issubclass(found, BasePart):
            raise EvolverSetupError(f"{self}: {card.code} is no part")
        for name in ("couples", "reads", "needs"):
            if getattr(found, name, None) != getattr(card, name):
                raise EvolverSetupError(
                    f"{self}: its class and its card do not agree on {name!r}, so nobody can say "
                    "which privacy it has"
                )
        return found

    @property
    def needs(self) -> frozenset[str]:
        """What an objective asks the trainer for, with its options: at most what its card says.

        Raises:
            EvolverSetupError: As ``make``.
        """
        return self.load().needed(self.options) & self.card.needs

    @classmethod
    def own(cls, name: str, **options: Any) -> Self:
        """One of Chorale's own parts; options that are not given are as they are by default."""
        card = PARTS[name]
        return cls(card=card, options=card.options(**options))

    def as_json(self) -> dict[str, Any]:
        """Name and options, for a job of another process."""
        card = self.card
        return {"kind": card.kind, "name": card.name, "options": self.options.model_dump()}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        """What ``as_json`` gave.

        Raises:
            ValueError: It is no part that this installation knows.
            TypeError: It is a method.
        """
        try:
            card = part_card(str(said["kind"]), str(said["name"])).card
        except UnknownPartError as error:
            raise ValueError(str(error)) from error
        if not isinstance(card, PartCard):
            raise TypeError(f"{card.name!r} is no part")
        return cls(card=card, options=card.options.model_validate(said["options"]))

    def __str__(self) -> str:
        return f"{self.card.kind} {self.card.name!r}"
