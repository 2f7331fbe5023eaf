"""Names, colours and last values of a panel's lines, below them or beside them.

Invariants: a legend has a place of its own; where it has more entries than room, the last line says
how many are missing.

Covered: last value and change over the range. Not covered: the other figures Grafana offers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from deploy.grafana.errors import PanelError
from deploy.grafana.sheet.card import GREY, Card
from deploy.grafana.sheet.units import shown

__all__ = ["Entry", "below_height", "change", "draw_below", "draw_beside", "entry_text"]

_LINE_PX: Final = 17
_CHIP_PX: Final = 16
_GAP_PX: Final = 14
_MOST_LINES: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One line of a legend."""

    name: str
    figures: tuple[str, ...]
    colour: str
    dashed: bool


def entry_text(
    values: Sequence[float], calcs: Sequence[str], defaults: Mapping[str, Any]
) -> tuple[str, ...]:
    """What a legend says of one line, from its values in time.

    ``calcs`` are Grafana's names; the defaults have the panel's unit and decimals.
    """
    texts = []
    for calc in calcs:
        if calc == "lastNotNull":
            known = [value for value in values if not math.isnan(value)]
            value = known[-1] if known else math.nan
            texts.append(shown(value, defaults["unit"], defaults.get("decimals")))
        elif calc == "delta":
            grown = shown(change(values), defaults["unit"], defaults.get("decimals"))
            texts.append(f"(+{grown})")
        else:
            raise PanelError(f"the contact sheet does not know the calculation {calc!r}")
    return tuple(texts)


def change(values: Sequence[float]) -> float:
    """By how much a counter grew, over resets."""
    known = [value for value in values if not math.isnan(value)]
    return sum(after - before if after >= before else after for before, after in pairwise(known))


def _words(entry: Entry) -> str:
    return "  ".join((entry.name, *entry.figures))


def _flow(card: Card, entries: Sequence[Entry]) -> list[list[Entry]]:
    lines: list[list[Entry]] = [[]]
    used = 0.0
    for entry in entries:
        needs = min(card.width, _CHIP_PX + card.measure(_words(entry)) + _GAP_PX)
        if lines[-1] and used + needs > card.width:
            lines.append([])
            used = 0.0
        lines[-1].append(entry)
        used += needs
    return lines


def below_height(card: Card, entries: Sequence[Entry]) -> float:
    """Pixels that a legend below the lines wants."""
    return _LINE_PX * min(_MOST_LINES, len(_flow(card, entries))) if entries else 0.0


def draw_below(card: Card, entries: Sequence[Entry]) -> None:
    """Entries one after the other, over as many lines as there is height for."""
    lines = _flow(card, entries)
    fits = max(1, int(card.height // _LINE_PX))
    if len(lines) > fits:
        missing = sum(len(line) for line in lines[fits - 1 :])
        lines = [*lines[: fits - 1]]
        card.text(0, (fits - 0.5) * _LINE_PX, f"and {missing} more", colour=GREY)
    for at, line in enumerate(lines):
        left, middle = 0.0, (at + 0.5) * _LINE_PX
        for entry in line:
            _chip(card, left, middle, entry)
            room = card.width - left - _CHIP_PX
            left += _CHIP_PX + _GAP_PX
            left += card.text(left - _GAP_PX, middle, _words(entry), room=room)


def draw_beside(card: Card, entries: Sequence[Entry]) -> None:
    """A table: a line for each entry, its figures to the right."""
    fits = max(1, int(card.height // _LINE_PX))
    drawn = entries if len(entries) <= fits else entries[: fits - 1]
    for at, entry in enumerate(drawn):
        middle = (at + 0.5) * _LINE_PX
        right = card.width
        for figure in reversed(entry.figures):
            right -= card.text(right, middle, figure, align="right") + 10
        _chip(card, 0, middle, entry)
        card.text(_CHIP_PX, middle, entry.name, room=right - _CHIP_PX - 4)
    if len(drawn) < len(entries):
        missing = f"and {len(entries) - len(drawn)} more"
        card.text(0, (fits - 0.5) * _LINE_PX, missing, colour=GREY)


def _chip(card: Card, left: float, middle: float, entry: Entry) -> None:
    if entry.dashed:
        card.box(left, middle - 1.5, 4, 3, face=entry.colour)
        card.box(left + 7, middle - 1.5, 4, 3, face=entry.colour)
    else:
        card.box(left, middle - 1.5, 11, 3, face=entry.colour)
