"""What a plan's method is made of, and the privacy modes that follow from it.

    mode                                  what a part may couple       what it may read
    none, silo                            anything                     anything
    record_*, unit ``task``               try, task                    public, unit
    record_*, unit ``user``               try, task, user              public, unit
    … a sampler or a gate                 the same                     public

    … a value head of the silo's own      refused: see ``Recipe.head_refusal``

Where units inside a silo are protected, one unit's contribution may not depend on another's data,
and which units are sampled from may not depend on any. The driver of a recipe holds parts to their
cards (``evolution/methods/recipe.py``); here is what follows from the cards.

Covered: choosing parts, their options, refusals with part and reason. Not covered: whether a site
allows a package's parts (``silo_agent/policy/plan.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dp.config import RECORD_MODES, Mode, Unit
from federation.errors import UnknownPartError
from federation.plan.methods import (
    KINDS,
    VALUE,
    Couples,
    MethodCard,
    Normaliser,
    PartCard,
    Reads,
    method_card,
    part_card,
)
from federation.plan.section import Section, Slug

__all__ = [
    "FED_SE",
    "ChosenPart",
    "NormaliserName",
    "PartChoice",
    "PartsSection",
    "Recipe",
    "recipe_of",
    "refusal",
    "require_fitting",
]

FED_SE: Final = "fed-se"
NormaliserName = Literal["batch_tokens", "unit_tokens", "constant"]
"""A value of ``Normaliser``, as plans write it."""
_WITHIN: Final[Mapping[Unit, frozenset[Couples]]] = MappingProxyType(
    {
        "task": frozenset({Couples.TRY, Couples.TASK}),
        "user": frozenset({Couples.TRY, Couples.TASK, Couples.USER}),
    }
)
_OUTSIDE: Final = frozenset({"sampler", "gate"})
"""Kinds that look at units from outside."""


class PartChoice(BaseModel):
    """``{ name = "…", package = "…", … }``: a part, where it is from, and its options.

    A bare name stands for a part without options.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="allow", allow_inf_nan=False)

    name: Slug
    """What the part's card calls it."""
    package: str = Field(default="", pattern=r"^(|[a-z0-9]+(-[a-z0-9]+)*)$", max_length=128)
    """The distribution that brings it; empty for Chorale's own."""

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def given(self) -> dict[str, Any]:
        """The options as they were written."""
        return dict(self.model_extra or {})


class PartsSection(Section):
    """``[evolve.parts]``: other parts in the place of the method's own."""

    sampler: PartChoice | None = None
    """Which tasks a round tries."""
    play: PartChoice | None = None
    """How tries are played."""
    credit: PartChoice | None = None
    """What becomes a training row, with which weights."""
    objective: PartChoice | None = None
    """The loss of a row."""
    gate: PartChoice | None = None
    """Whether what was learned is taken; none where neither method nor plan names one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenPart:
    """A part with the plan's options of it."""

    card: PartCard
    """What it is."""
    options: Section
    """An instance of the card's ``options``."""
    package: str = ""
    """The distribution that brings it; empty for Chorale's own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A method and its parts."""

    method: MethodCard
    """Its card."""
    package: str
    """The distribution that brings the method; empty for Chorale's own."""
    parts: Mapping[str, ChosenPart]
    """By kind; empty for a method that is no recipe."""
    divided_by: Normaliser | None = None
    """The plan's word on it; None leaves it to the method."""

    @property
    def normaliser(self) -> Normaliser:
        """By what a mini-batch's terms are divided where no unit is protected."""
        return self.method.normaliser if self.divided_by is None else self.divided_by

    @property
    def tempered(self) -> bool:
        """Whether log-probabilities are at the temperature of exploring; see ``PartCard``."""
        return any(part.card.tempered for part in self.parts.values())

    @property
    def least_tries(self) -> int:
        """Tries that each task needs."""
        return max((part.card.least_tries for part in self.parts.values()), default=1)

    @property
    def least_window(self) -> int:
        """Rounds of the memory that it looks back on, the present one included."""
        return max((part.card.least_window for part in self.parts.values()), default=1)

    @property
    def value_head(self) -> Literal["local", "federated"] | None:
        """Where the value head lies that the objective learns; None where it learns none.

        An objective says it by its option ``value_head``; without that option it is each silo's.
        """
        objective = self.parts.get("objective")
        if objective is None or VALUE not in objective.card.needs:
            return None
        shared = getattr(objective.options, "value_head", "local") == "federated"
        return "federated" if shared else "local"

    @property
    def shares_value_head(self) -> bool:
        """Whether the run's adapter has a value head, which silos train and upload."""
        return self.value_head == "federated"

    def head_refusal(self, mode: Mode) -> str | None:
        """Why the recipe's value head does not go with a mode; None if it does, or there is none.

        A head of the silo's own is trained on the units without noise, and every later upload is
        computed through it.
        """
        if mode not in RECORD_MODES or self.value_head != "local":
            return None
        return (
            "a value head of each silo's own is trained on its units without noise, and every "
            f"later upload is computed through it, which mode {mode.value!r} does not charge: set "
            'value_head = "federated"'
        )

    @property
    def packages(self) -> tuple[str, ...]:
        """Every distribution that brings a part or the method, in ascending order."""
        found = {self.package, *(part.package for part in self.parts.values())}
        return tuple(sorted(found - {""}))

    def refusals(self, mode: Mode, unit: Unit) -> tuple[str, ...]:
        """Why this recipe does not run under a mode: part by part, with the reason."""
        if mode in RECORD_MODES and not self.parts and self.package:
            whole = (
                f"evolve.method: {self.method.name!r} of {self.package} is no recipe, so nothing "
                f"keeps its units apart, and mode {mode.value!r} protects each {unit} by itself: "
                "use a recipe, or a mode that protects whole silos"
            )
            return (whole,)
        if mode in RECORD_MODES and self.divided_by not in {None, Normaliser.CONSTANT}:
            whole = (
                f"evolve.normaliser: {self.divided_by} divides by what all tries of a batch have, "
                f"so each {unit}'s part depends on others, and mode {mode.value!r} protects each "
                f"{unit} by itself: remove it, or set it to 'constant'"
            )
            return (whole,)
        problems = [
            f"evolve.parts.{kind}: {problem}"
            for kind, part in self.parts.items()
            if (problem := refusal(part.card, mode, unit))
        ]
        if problem := self.head_refusal(mode):
            problems.append(f"evolve.parts.objective: {problem}")
        return tuple(problems)


def refusal(card: PartCard, mode: Mode, unit: Unit) -> str | None:
    """Why a part does not run under a mode; None if it does."""
    if mode not in RECORD_MODES:
        return None
    what = f"{card.kind} {card.name!r}"
    instead = "choose another part, or a mode that protects whole silos"
    if card.couples not in _WITHIN[unit]:
        return (
            f"{what} couples {card.couples.value!r}: what it makes of one {unit} depends on "
            f"others, and mode {mode.value!r} protects each {unit} by itself; {instead}"
        )
    if card.kind in _OUTSIDE and card.reads is not Reads.PUBLIC:
        return (
            f"{what} reads the {card.reads.value}'s results: what it decides would tell them, and "
            f"no noise of mode {mode.value!r} hides that; {instead}"
        )
    if card.reads is Reads.SILO:
        return (
            f"{what} reads the whole silo: what it makes of one {unit} depends on others, and mode "
            f"{mode.value!r} protects each {unit} by itself; {instead}"
        )
    return None


def recipe_of(
    method: str, choices: PartsSection, normaliser: NormaliserName | None = None
) -> Recipe:
    """A method with a plan's choices of parts, and of the normaliser if it is not the method's.

    Raises:
        UnknownPartError: Something is not there, or does not fit; one line that begins with the key
            below ``evolve``.
    """
    try:
        found = method_card(method)
    except UnknownPartError as error:
        raise UnknownPartError(f"method: {error}{_install(method, '')}") from error
    if not isinstance(found.card, MethodCard):
        raise UnknownPartError(f"method: {method!r} is the name of a part")
    parts: dict[str, ChosenPart] = {}
    for kind in KINDS:
        choice: PartChoice | None = getattr(choices, kind)
        own = found.card.parts.get(kind)
        if choice is not None and not found.card.parts:
            raise UnknownPartError(f"parts.{kind}: method {method!r} is no recipe and has no parts")
        preset = found.card.presets.get(kind, {})
        if choice is not None:
            same = choice.name == own and not choice.package
            parts[kind] = _chosen(kind, choice, preset if same else {})
        elif own is not None:
            parts[kind] = _chosen(kind, PartChoice(name=own), preset, by_method=True)
    if normaliser is not None and not parts:
        raise UnknownPartError(f"normaliser: method {method!r} trains nothing; remove it")
    return Recipe(
        method=found.card,
        package=found.package,
        parts=MappingProxyType(parts),
        divided_by=None if normaliser is None else Normaliser(normaliser),
    )


def require_fitting(
    recipe: Recipe,
    *,
    nominal_tokens: int | None,
    temperature: float,
    tries_per_task: int,
    window: int,
) -> None:
    """Check numbers of ``[evolve]`` against what its recipe needs.

    Raises:
        ValueError: One does not fit; the text says what to set.
    """
    name = recipe.method.name
    constant = recipe.normaliser is Normaliser.CONSTANT
    if constant != (nominal_tokens is not None):
        raise ValueError(
            f"method {name!r} divides by a public constant: set nominal_tokens"
            if constant
            else f"nominal_tokens would change nothing with method {name!r}: remove it"
        )
    if recipe.tempered and temperature <= 0:
        raise ValueError(
            f"method {name!r} compares probabilities with those that tries were played with, and "
            "at temperature 0 all of these are 1: set a temperature above 0"
        )
    if tries_per_task < recipe.least_tries:
        raise ValueError(
            f"method {name!r} compares the tries at a task with each other: set tries_per_task to "
            f"at least {recipe.least_tries}"
        )
    if 0 < window < recipe.least_window:
        raise ValueError(
            f"method {name!r} learns from tries of earlier rounds, and a window of {window} has "
            f"none: set window to at least {recipe.least_window}, or to 0 for all rounds"
        )


def _chosen(
    kind: str, choice: PartChoice, preset: Mapping[str, Any], *, by_method: bool = False
) -> ChosenPart:
    where = f"parts.{kind}"
    try:
        found = part_card(kind, choice.name)
    except UnknownPartError as error:
        raise UnknownPartError(
            f"{where}: {error}{_install(choice.name, choice.package)}"
        ) from error
    card = found.card
    if not isinstance(card, PartCard):
        raise UnknownPartError(f"{where}: {choice.name!r} is the name of a method")
    if not by_method and choice.package != found.package:
        wanted = f"package = {found.package!r}" if found.package else "no package: it is built in"
        raise UnknownPartError(
            f"{where}: {choice.name!r} needs {wanted}, so that whoever lacks it is told what to "
            "install"
        )
    try:
        options = card.options.model_validate({**preset, **choice.given})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = "".join(f".{part}" for part in first["loc"])
        known = ", ".join(sorted(card.options.model_fields)) or "none"
        raise UnknownPartError(
            f"{where}{key}: {first['msg'].removeprefix('Value error, ')} (options of "
            f"{choice.name!r}: {known})"
        ) from error
    return ChosenPart(card=card, options=options, package=found.package)


def _install(name: str, package: str) -> str:
    if package:
        return f"; install {package}, which brings it"
    return f"; if a package brings {name!r}, install it here and name it in the plan"
