"""Which methods and parts there are: Chorale's own, and those of installed packages.

A method is a recipe of five parts. Its card names them, a part's card says where its code is, which
options a plan may give it, and what its privacy modes follow from (``federation.plan.cards``).
Cards import no torch, and no code of their parts: every party can read a plan with them.

Chorale's own stand in two literal tables (``federation.plan.own``). An installed package gives more
as entry points of the group ``chorale.parts``: each names a ``PartCard`` or a ``MethodCard`` in a
module that imports no torch. What such a package needs of cards is found here.

Invariants:

1. A name is one card. A package cannot take over a name of Chorale's, and two packages that give
   the same name give none.
2. A card that cannot be imported, or is none, is a problem of that name alone.
3. A package's part is known under the distribution that brings it, and a plan that uses it names
   that distribution, so that a party that lacks it is told what to install.

Covered: entry points. Not covered: what a plan makes of cards (``federation.plan.recipe``), loading
a part's code (``evolution/part.py``), and what a package does when its cards are imported: whoever
installs it runs it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from federation.errors import UnknownPartError
from federation.plan.cards import (
    KINDS,
    NAME,
    VALUE,
    Couples,
    MethodCard,
    NoOptions,
    Normaliser,
    PartCard,
    Reads,
)
from federation.plan.own import METHODS, PARTS

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A card, and the distribution that brought it; empty for Chorale's own."""

    card: PartCard | MethodCard
    package: str = ""


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
    if own is not None and own.kind != kind:
        # A package's of that name would be found by nobody.
        raise UnknownPartError(
            f"{name!r} is no {kind}, for Chorale's own {own.kind} has that name; known: "
            f"{', '.join(known)}"
        )
    found = Found(card=own) if own else _of_package(name, PartCard, f"{kind} {name!r}", known)
    if not isinstance(found.card, PartCard) or found.card.kind != kind:
        raise UnknownPartError(f"{name!r} is no {kind}; known: {', '.join(known)}")
    return found


def _of_package(
    name: str, wanted: type[PartCard | MethodCard], what: str, known: tuple[str, ...]
) -> Found:
    if NAME.fullmatch(name) is None:
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
