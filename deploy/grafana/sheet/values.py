"""Panels of values at one time: large figures, bars, tables.

Covered: mappings, thresholds, units, and saying how much did not fit. Not covered: sorting, which
the queries do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from deploy.grafana.reading import PanelReading
from deploy.grafana.sheet.card import GREY, INK, Card, colour_of
from deploy.grafana.sheet.units import shown

__all__ = ["draw_bars", "draw_stat", "draw_table"]

_ROW_PX: Final = 21
_LARGEST_PX: Final = 34


def _value(values: Sequence[float]) -> float:
    return values[-1] if values else math.nan


def _look(value: float, defaults: Mapping[str, Any]) -> tuple[str, str]:
    """Text and colour of a value."""
    for mapping in defaults["mappings"]:
        options = mapping["options"]
        high = math.inf if options["to"] is None else options["to"]
        if options["from"] <= value <= high:
            return options["result"]["text"], colour_of(options["result"]["color"])
    colour = defaults["thresholds"]["steps"][0]["color"]
    for step in defaults["thresholds"]["steps"][1:]:
        if value >= step["value"]:
            colour = step["color"]
    return shown(value, defaults["unit"], defaults.get("decimals")), colour_of(colour)


def draw_stat(card: Card, reading: PanelReading) -> None:
    """One large figure for each series, side by side or one above the other."""
    panel, mode = reading.panel, reading.panel["options"]["textMode"]
    defaults = panel["fieldConfig"]["defaults"]
    several = len(reading.lines) > 1
    looks = [(line.name, *_look(_value(line.series.values), defaults)) for line in reading.lines]
    named = mode == "value_and_name" or (mode == "auto" and several)
    texts = [name if mode == "name" else text for name, text, _ in looks]
    stacked = mode == "name" and several
    width = card.width if stacked else card.width / len(looks)
    height = card.height / len(looks) if stacked else card.height
    for at, (name, _, colour) in enumerate(looks):
        left, top = (0.0, at * height) if stacked else (at * width, 0.0)
        room = height * (0.55 if named else 0.8)
        size = min(_LARGEST_PX, room)
        while size > 9 and card.measure(texts[at], size=size, bold=True) > width - 12:
            size -= 1
        middle = top + height * (0.58 if named else 0.5)
        if named:
            card.text(
                left + width / 2, top + height * 0.16, name, align="center", colour=GREY,
                room=width - 12,
            )  # fmt: skip
        card.text(
            left + width / 2, middle, texts[at], size=size, bold=True, align="center",
            colour=colour, room=width - 4,
        )  # fmt: skip


def draw_bars(card: Card, reading: PanelReading) -> None:
    """A horizontal bar for each series."""
    defaults = reading.panel["fieldConfig"]["defaults"]
    looks = [
        (line.name, _value(line.series.values), *_look(_value(line.series.values), defaults))
        for line in reading.lines
    ]
    fits = max(1, int(card.height // _ROW_PX))
    drawn = looks if len(looks) <= fits else looks[: fits - 1]
    names = min(card.width * 0.5, max(card.measure(name) for name, *_ in drawn) + 8)
    figures = max(card.measure(text, bold=True) for _, _, text, _ in drawn) + 10
    low = defaults.get("min", 0.0)
    known = [value for _, value, _, _ in looks if math.isfinite(value)]
    high = defaults.get("max", max(known, default=1.0))
    room = card.width - names - figures
    height = min(34.0, card.height / max(1, len(drawn) + (len(drawn) < len(looks))))
    for at, (name, value, text, colour) in enumerate(drawn):
        top = at * height
        card.text(names - 8, top + height / 2, name, align="right", room=names - 8)
        card.box(names, top + 3, room, height - 6, face="#eef0f3")
        share = 1.0 if math.isinf(value) else (value - low) / ((high - low) or 1.0)
        share = 0.0 if math.isnan(share) else min(1.0, max(0.0, share))
        card.box(names, top + 3, max(2.0, room * share), height - 6, face=colour)
        card.text(
            card.width, top + height / 2, text, align="right", bold=True,
            colour=INK if colour == "none" else colour,
        )  # fmt: skip
    if len(drawn) < len(looks):
        missing = f"and {len(looks) - len(drawn)} more"
        card.text(names, (len(drawn) + 0.5) * height, missing, colour=GREY)


def _rows(reading: PanelReading) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: what has the same labels is one row, as Grafana's merge has it."""
    panel = reading.panel
    (organised,) = (one["options"] for one in panel["transformations"] if one["id"] == "organize")
    names: Mapping[str, str] = organised["renameByName"]
    order = sorted(names, key=lambda name: int(organised["indexByName"][name]))
    units = {
        one["matcher"]["options"]: each["value"]
        for one in panel["fieldConfig"]["overrides"]
        for each in one["properties"]
        if each["id"] == "unit"
    }
    defaults = panel["fieldConfig"]["defaults"]
    rows: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for line in reading.lines:
        labels = {key: value for key, value in line.series.labels.items() if key in names}
        row = rows.setdefault(tuple(sorted(labels.items())), dict(labels))
        field = f"Value #{line.query}" if f"Value #{line.query}" in names else "Value"
        unit = units.get(names.get(field, ""), defaults["unit"])
        row[field] = shown(_value(line.series.values), unit, defaults.get("decimals"))
    cells = [[row.get(name, "") for name in order] for row in rows.values()]
    return [names[name] for name in order], sorted(cells)


def draw_table(card: Card, reading: PanelReading) -> None:
    """A table; figures to the right, words to the left."""
    titles, rows = _rows(reading)
    fits = max(1, int(card.height // _ROW_PX) - 1)
    drawn = rows if len(rows) <= fits else rows[: fits - 1]
    columns = list(zip(titles, *drawn, strict=True))
    words = [not any(cell[:1].isdigit() for cell in column[1:]) for column in columns]
    wanted = [max(card.measure(cell, bold=True) for cell in column) + 18 for column in columns]
    scale = min(1.0, card.width / sum(wanted))
    spare = max(0.0, card.width - sum(wanted)) / len(wanted)
    left = 0.0
    for column, wide, wordy in zip(columns, wanted, words, strict=True):
        width = wide * scale + spare
        for at, cell in enumerate(column):
            card.text(
                left if wordy else left + width - 18, (at + 0.5) * _ROW_PX, cell,
                align="left" if wordy else "right", bold=at == 0, room=width - 6,
                colour=GREY if at == 0 else INK,
            )  # fmt: skip
        left += width
    for at in range(1, len(drawn) + 1):
        card.box(0, at * _ROW_PX, card.width, 1, face="#e4e7eb")
    if len(drawn) < len(rows):
        missing = f"and {len(rows) - len(drawn)} more"
        card.text(0, (len(drawn) + 1.5) * _ROW_PX, missing, colour=GREY)
