"""Cards: what every party knows of the methods and of their parts. No torch, and no code of them.

A method is a recipe of five parts. Its card names them, a part's card says where its code is, which
options a plan may give it, and two things from which the privacy modes follow
(``federation.plan.recipe``):

    couples    what one unit's contribution may depend on
               try    each try by itself         task   all tries of a task
               user   all tasks of a subject     all    other units as well
    reads      what the part looks at
               public   plan, seeds, the released adapter
               unit     the unit's own tries and memory
               silo     everything in the silo

Chorale's own cards stand in two literal tables. An installed package gives more as entry points of
the group ``chorale.parts``: each names a ``PartCard`` or a ``MethodCard`` in a module that imports
no torch, so that coordinator and admin can read plans with it.

Invariants:

1. A name is one card. A package cannot take over a name of Chorale's, and two packages that give
   the same name give none.
2. A card that cannot be imported, or is none, is a problem of that name alone.
3. A package's part is known under the distribution that brings it, and a plan that uses it names
   that distribution, so that a party that lacks it is told what to install.

Covered: tables, entry points, bounds of a card. Not covered: what a plan makes of them
(``federation.plan.recipe``), loading a part's code (``evolution/part.py``), and what a package does
when its cards are imported: whoever installs it runs it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Final

from federation.errors import UnknownPartError
from federation.plan.part_options import (
    ClippedOptions,
    GroupRelativeOptions,
    PpoOptions,
    RewardOptions,
)
from federation.plan.section import Section

__all__ = [
    "GROUP",
    "KINDS",
    "METHODS",
    "PARTS",
    "VALUE",
    "Couples",
    "MethodCard",
    "NoOptions",
    "Normaliser",
    "PartCard",
    "Reads",
    "method_card",
    "part_card",
]

GROUP: Final = "chorale.parts"
"""The group of entry points."""
KINDS: Final = ("sampler", "play", "credit", "objective", "gate")
"""What a recipe is made of, in the order in which a round uses them; a gate is optional."""
DRIVER: Final = "evolution.methods.recipe:RecipeEvolver"
"""What runs every recipe and holds its parts to their cards."""
NEEDS: Final = frozenset({"old", "reference", "first", "base", "value", "old_value"})
"""What an objective may ask the trainer for beside the present log-probability."""
VALUE: Final = "value"
"""Of ``NEEDS``: what makes the trainer put a value head on the model."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_CODE: Final = re.compile(r"[A-Za-z_][\w.]{0,199}:[A-Za-z_]\w{0,99}")


class Couples(StrEnum):
    """What one unit's contribution may depend on; see the module."""

    TRY = "try"
    TASK = "task"
    USER = "user"
    ALL = "all"


class Reads(StrEnum):
    """What a part looks at; see the module."""

    PUBLIC = "public"
    UNIT = "unit"
    SILO = "silo"


class Normaliser(StrEnum):
    """By what the sum of a mini-batch's terms is divided, where no unit is protected.

    Under protection a unit's own terms are divided by its own tokens, or by the constant.
    """

    BATCH_TOKENS = "batch_tokens"
    """The tokens of the mini-batch: long tries count more."""
    UNIT_TOKENS = "unit_tokens"
    """The mean of the units' own means."""
    CONSTANT = "constant"
    """Batch size times ``nominal_tokens`` of the plan: a public number."""


class NoOptions(Section):
    """A part without options."""


def _require_named(name: str, code: str, says: str) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise UnknownPartError(f"{name!r} cannot be the name of a part or a method")
    if not isinstance(code, str) or _CODE.fullmatch(code) is None:
        raise UnknownPartError(f"{name!r}: {code!r} is no module:attribute")
    if not isinstance(says, str) or not 0 < len(says) <= 200 or "\n" in says:
        raise UnknownPartError(f"{name!r}: it needs one line for people")


@dataclass(frozen=True, kw_only=True, slots=True)
class PartCard:
    """One part.

    Raises:
        UnknownPartError: A value is not what its line says.
    """

    kind: str
    """One of ``KINDS``."""
    name: str
    """What plans call it."""
    code: str
    """``module:attribute`` of its class."""
    says: str
    """One line for people."""
    couples: Couples
    """See the module."""
    reads: Reads
    """See the module; of a sampler and a gate ``public`` or ``silo``, for they look at units from
    outside."""
    options: type[Section] = NoOptions
    """Its keys in a plan."""
    needs: frozenset[str] = frozenset()
    """Out of ``NEEDS``, at most; of objectives only."""
    tempered: bool = False
    """All log-probabilities are at the temperature that tries are played at, as those of the
    behaviour policy are, so it must be above 0; else at 1. Of objectives only."""
    least_tries: int = 1
    """At each task, for it to mean anything."""

    def __post_init__(self) -> None:
        """Refuse what is no card, whoever made it."""
        _require_named(self.name, self.code, self.says)
        if not isinstance(self.tempered, bool) or (self.tempered and self.kind != "objective"):
            raise UnknownPartError(f"part {self.name!r}: objectives alone are tempered, or not")
        if isinstance(self.least_tries, bool) or not isinstance(self.least_tries, int):
            raise UnknownPartError(f"part {self.name!r}: least_tries is a whole number")
        if self.kind not in KINDS:
            raise UnknownPartError(f"part {self.name!r}: its kind is one of {', '.join(KINDS)}")
        if not isinstance(self.couples, Couples) or not isinstance(self.reads, Reads):
            raise UnknownPartError(f"part {self.name!r}: couples and reads are of their own types")
        if self.kind in {"sampler", "gate"} and self.reads is Reads.UNIT:
            raise UnknownPartError(f"{self.kind} {self.name!r} reads 'public' or 'silo'")
        if not isinstance(self.options, type) or not issubclass(self.options, Section):
            raise UnknownPartError(f"part {self.name!r}: its options are a Section")
        if not self.needs <= NEEDS or (self.needs and self.kind != "objective"):
            raise UnknownPartError(
                f"part {self.name!r}: objectives alone need something, of "
                f"{', '.join(sorted(NEEDS))}"
            )
        if "old_value" in self.needs and VALUE not in self.needs:
            raise UnknownPartError(
                f"part {self.name!r}: a value before the first step is of a head that learns: it "
                f"needs {VALUE!r} as well"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodCard:
    """One method: a recipe, or code of its own that needs no tasks.

    Raises:
        UnknownPartError: A value is not what its line says.
    """

    name: str
    """What plans call it."""
    says: str
    """One line for people."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """The recipe: a part's name for each kind. Empty where ``code`` is the whole method."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By kind: options that the recipe gives its part. A plan that names the same part changes
    those that it says."""
    code: str = DRIVER
    """``module:attribute`` of its evolver; of a recipe always the driver's."""
    normaliser: Normaliser = Normaliser.BATCH_TOKENS
    """See ``Normaliser``."""
    needs_model: bool = True
    """False for one that neither plays nor trains."""

    def __post_init__(self) -> None:
        """Refuse what is no card, whoever made it."""
        _require_named(self.name, self.code, self.says)
        lacking = set(KINDS) - {"gate"} - set(self.parts)
        if self.parts and (lacking or set(self.parts) - set(KINDS)):
            raise UnknownPartError(
                f"method {self.name!r}: a recipe names a part for each of "
                f"{', '.join(kind for kind in KINDS if kind != 'gate')}, and a gate if it has one"
            )
        if self.parts and self.code != DRIVER:
            raise UnknownPartError(f"method {self.name!r}: a recipe is run by {DRIVER} alone")
        if not self.parts and self.needs_model:
            raise UnknownPartError(f"method {self.name!r} has no parts: it cannot need a model")
        if set(self.presets) - set(self.parts):
            raise UnknownPartError(f"method {self.name!r}: options of a part that it does not have")
        object.__setattr__(self, "parts", MappingProxyType(dict(self.parts)))
        presets = {kind: MappingProxyType(dict(one)) for kind, one in self.presets.items()}
        object.__setattr__(self, "presets", MappingProxyType(presets))


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A card, and the distribution that brought it; empty for Chorale's own."""

    card: PartCard | MethodCard
    package: str = ""


_GRPO: Final = {
    "sampler": "uniform",
    "play": "once",
    "credit": "group-relative",
    "objective": "clipped",
}

_FEDAGENT: Final = {
    "clip_high": 0.2,
    "kl": "k3",
    "kl_beta": 0.01,
    "kl_to": "base",
    "entropy": 0.001,
}
"""What FedAgent's GRPO and PPO minimise."""

METHODS: Final[Mapping[str, MethodCard]] = MappingProxyType(
    {
        card.name: card
        for card in (
            MethodCard(
                name="constant",
                says="contributes a fixed vector and needs no model",
                code="evolution.methods.constant:ConstantEvolver",
                needs_model=False,
            ),
            MethodCard(
                name="fed-se",
                says="explore, keep what succeeded, imitate it (arXiv 2512.08870)",
                parts={
                    "sampler": "uniform",
                    "play": "once",
                    "credit": "shortest-success",
                    "objective": "nll",
                },
            ),
            MethodCard(
                name="grpo",
                says="better than the task's other tries is reinforced, in clipped steps",
                parts=_GRPO,
                normaliser=Normaliser.CONSTANT,
            ),
            MethodCard(
                name="fedagent",
                says="GRPO with FedAgent's constants: scaled, symmetric clip, KL to the base",
                parts=_GRPO,
                presets={
                    "credit": {"scale": "std"},
                    "objective": _FEDAGENT,
                },
                normaliser=Normaliser.CONSTANT,
            ),
            MethodCard(
                name="rloo",
                says="better than the mean of the task's other tries is reinforced (2402.14740)",
                parts=_GRPO,
                presets={"credit": {"baseline": "others"}},
                normaliser=Normaliser.CONSTANT,
            ),
            MethodCard(
                name="ppo",
                says="better than a learned value is reinforced, with FedAgent's constants (PPO)",
                parts={
                    "sampler": "uniform",
                    "play": "once",
                    "credit": "token-rewards",
                    "objective": "ppo",
                },
                presets={
                    "objective": _FEDAGENT,
                },
                normaliser=Normaliser.CONSTANT,
            ),
        )
    }
)
"""Chorale's own methods."""

PARTS: Final[Mapping[str, PartCard]] = MappingProxyType(
    {
        card.name: card
        for card in (
            PartCard(
                kind="sampler",
                name="uniform",
                code="evolution.parts.samplers.uniform:Uniform",
                says="every task of the silo's part is as likely",
                couples=Couples.TRY,
                reads=Reads.PUBLIC,
            ),
            PartCard(
                kind="play",
                name="once",
                code="evolution.parts.plays.once:Once",
                says="every try from the start to its end, by itself",
                couples=Couples.TRY,
                reads=Reads.PUBLIC,
            ),
            PartCard(
                kind="credit",
                name="shortest-success",
                code="evolution.parts.credits.shortest_success:ShortestSuccess",
                says="the shortest success of each task of the window, and demonstrations",
                couples=Couples.TASK,
                reads=Reads.UNIT,
            ),
            PartCard(
                kind="credit",
                name="all-tries",
                code="evolution.parts.credits.all_tries:AllTries",
                says="every try of the window, solved or not: the ablation of the success filter",
                couples=Couples.TASK,
                reads=Reads.UNIT,
            ),
            PartCard(
                kind="credit",
                name="group-relative",
                code="evolution.parts.credits.group_relative:GroupRelative",
                says="what a try is worth beside the other tries at its task (GRPO)",
                couples=Couples.TASK,
                reads=Reads.UNIT,
                options=GroupRelativeOptions,
                least_tries=2,
            ),
            PartCard(
                kind="credit",
                name="batch-scaled",
                code="evolution.parts.credits.batch_scaled:BatchScaled",
                says="the same over the standard deviation of the whole round (REINFORCE++)",
                couples=Couples.ALL,
                reads=Reads.UNIT,
                options=RewardOptions,
                least_tries=2,
            ),
            PartCard(
                kind="credit",
                name="token-rewards",
                code="evolution.parts.credits.token_rewards:TokenRewards",
                says="every try, with what each of its actions earned on that action's last token",
                couples=Couples.TRY,
                reads=Reads.UNIT,
                options=RewardOptions,
            ),
            PartCard(
                kind="objective",
                name="clipped",
                code="evolution.parts.objectives.clipped:Clipped",
                says="credit times the ratio of policies, bounded, and KL to a reference (GRPO)",
                couples=Couples.TRY,
                reads=Reads.UNIT,
                options=ClippedOptions,
                needs=frozenset({"reference", "base", "first"}),
                tempered=True,
            ),
            PartCard(
                kind="objective",
                name="ppo",
                code="evolution.parts.objectives.ppo:Ppo",
                says="rewards over a learned value, times the ratio of policies, bounded (PPO)",
                couples=Couples.TRY,
                reads=Reads.UNIT,
                options=PpoOptions,
                needs=frozenset({"reference", "base", "first", "value", "old_value"}),
                tempered=True,
            ),
            PartCard(
                kind="objective",
                name="nll",
                code="evolution.parts.objectives.nll:Nll",
                says="minus the log-probability of each token, times its weight",
                couples=Couples.TRY,
                reads=Reads.UNIT,
            ),
            PartCard(
                kind="gate",
                name="not-worse",
                code="evolution.parts.gates.not_worse:NotWorse",
                says="takes a round unless it solves fewer of the silo's probes",
                couples=Couples.ALL,
                reads=Reads.SILO,
            ),
        )
    }
)
"""Chorale's own parts."""


def method_card(name: str) -> Found:
    """The card of a method.

    Raises:
        UnknownPartError: There is none, or none that can be used; the text says which there are.
    """
    own = METHODS.get(name)
    if own is not None:
        return Found(card=own)
    return _of_package(name, MethodCard, f"method {name!r}", tuple(METHODS))


def part_card(kind: str, name: str) -> Found:
    """The card of a part.

    Raises:
        UnknownPartError: As ``method_card``.
    """
    known = tuple(card.name for card in PARTS.values() if card.kind == kind)
    own = PARTS.get(name)
    found = Found(card=own) if own else _of_package(name, PartCard, f"{kind} {name!r}", known)
    if not isinstance(found.card, PartCard) or found.card.kind != kind:
        raise UnknownPartError(f"{name!r} is no {kind}; known: {', '.join(known)}")
    return found


def _of_package(
    name: str, wanted: type[PartCard | MethodCard], what: str, known: tuple[str, ...]
) -> Found:
    if _NAME.fullmatch(name) is None:
        raise UnknownPartError(f"{name!r} cannot be a name")
    # An editable install can list the same entry point twice.
    points = list(dict.fromkeys(entry_points(group=GROUP, name=name)))
    if not points:
        raise UnknownPartError(f"unknown {what}; known: {', '.join(known)}")
    if len({point.value for point in points}) > 1:
        raise UnknownPartError(f"{what}: two installed packages have it, so neither is used")
    card = _loaded(points[0], what)
    if not isinstance(card, wanted) or card.name != name:
        raise UnknownPartError(f"{what} ({points[0].value}) is no {wanted.__name__} of that name")
    return Found(card=card, package=_package_of(points[0]))


def _loaded(point: EntryPoint, what: str) -> object:
    try:
        return point.load()
    except Exception as error:
        # A package is foreign code: whatever it raises is the problem of its own name.
        raise UnknownPartError(f"{what} ({point.value}) cannot be imported: {error}") from error


def _package_of(point: EntryPoint) -> str:
    name = "" if point.dist is None else point.dist.name
    if not name:
        raise UnknownPartError(f"{point.value} is of no installed distribution")
    return re.sub(r"[-_.]+", "-", name).lower()
