"""What a card says of a method or a part: its name, its code, and what privacy follows from.

    couples    what one unit's contribution may depend on
               try    each try by itself         task   all tries of a task
               user   all tasks of a subject     all    other units as well
    reads      what the part looks at
               public   plan, seeds, the released adapter
               unit     the unit's own tries and memory
               silo     everything in the silo

Covered: types, and bounds of a card. Not covered: which cards there are (``federation.plan.own``,
``federation.plan.methods``), what a plan makes of them (``federation.plan.recipe``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from federation.errors import UnknownPartError
from federation.plan.section import Section

__all__ = [
    "DRIVER",
    "KINDS",
    "NAME",
    "VALUE",
    "Couples",
    "MethodCard",
    "NoOptions",
    "Normaliser",
    "PartCard",
    "Reads",
]

KINDS: Final = ("sampler", "play", "credit", "objective", "gate")
"""What a recipe is made of, in the order in which a round uses them; a gate is optional."""
DRIVER: Final = "evolution.methods.recipe:RecipeEvolver"
"""What runs every recipe and holds its parts to their cards."""
NEEDS: Final = frozenset({"old", "reference", "first", "base", "value", "old_value", "teacher"})
"""What an objective may ask the trainer for beside the present log-probability."""
VALUE: Final = "value"
"""Of ``NEEDS``: what makes the trainer put a value head on the model."""
NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
"""Of a part or a method."""
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
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
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
    least_window: int = 1
    """Rounds of the memory, the present one included, for it to mean anything."""

    def __post_init__(self) -> None:
        """Refuse what is no card, whoever made it."""
        _require_named(self.name, self.code, self.says)
        if not isinstance(self.tempered, bool) or (self.tempered and self.kind != "objective"):
            raise UnknownPartError(f"part {self.name!r}: objectives alone are tempered, or not")
        for least in ("least_tries", "least_window"):
            if type(getattr(self, least)) is not int:
                raise UnknownPartError(f"part {self.name!r}: {least} is a whole number")
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
