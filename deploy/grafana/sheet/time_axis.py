"""Panels with a time axis: lines, and timelines of states.

Invariants: a gap in the samples is a gap in the drawing; a value that holds until the next one is
drawn as a step.

Covered: bands, dashes, thresholds, logarithmic axes, annotations. Not covered: two axes in one
panel, which no dashboard uses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from deploy.grafana.errors import PanelError
from deploy.grafana.reading import DashboardReading, Line, PanelReading
from deploy.grafana.sheet.card import GREY, INK, Card, colour_of
from deploy.grafana.sheet.legend import (
    Entry,
    below_height,
    draw_below,
    draw_beside,
    entry_text,
)
from deploy.grafana.sheet.units import shown

__all__ = ["draw_lines", "draw_timeline"]

_PALETTE: Final = (
    "#2f6fc1", "#d55e00", "#009e73", "#b8559b", "#c98a00", "#4aa3d8", "#5b5f66", "#8c6d1f",
    "#7d4cc2", "#2b8a8a", "#a33d3d", "#6b8e23",
)  # fmt: skip
_KNOWN: Final = frozenset(
    {
        "color", "custom.fillBelowTo", "custom.fillOpacity", "custom.hideFrom",
        "custom.lineStyle", "custom.lineWidth", "custom.showPoints",
    }
)  # fmt: skip
_STEPS_S: Final = (
    2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 21600.0,
    43200.0, 86400.0,
)  # fmt: skip
_DECADES: Final = tuple(10.0**power for power in range(-6, 2))
_LEFT_PX: Final = 66
_AXIS_PX: Final = 20
_ROW_PX: Final = 15
_TIME_PX: Final = 72
_BESIDE_SHARE: Final = 0.36


@dataclass(frozen=True, kw_only=True, slots=True)
class _Style:
    """How one line is drawn."""

    colour: str
    width: float
    dashed: bool
    below_to: str
    opacity: float
    listed: bool


def draw_lines(card: Card, reading: PanelReading, of: DashboardReading) -> None:
    """A panel of lines with its legend."""
    panel = reading.panel
    defaults, options = panel["fieldConfig"]["defaults"], panel["options"]["legend"]
    styles = _styles(reading)
    entries = [
        Entry(
            name=line.name,
            figures=entry_text(line.series.values, options["calcs"], defaults),
            colour=style.colour,
            dashed=style.dashed,
        )
        for line, style in zip(reading.lines, styles, strict=True)
        if style.listed and options["showLegend"]
    ]
    width, height = card.width, card.height
    if options["placement"] == "right":
        beside = width * _BESIDE_SHARE
        draw_beside(card.inside(width - beside + 8, 0, beside - 8, height), entries)
        width -= beside
    else:
        wanted = below_height(card, entries)
        draw_below(card.inside(0, height - wanted, width, wanted), entries)
        height -= wanted + 4
    axes = card.axes(_LEFT_PX, 6, width - _LEFT_PX - 20, height - _AXIS_PX - 8)
    _plot(axes, reading, styles, of)
    _value_axis(axes, defaults, height)
    _time_axis(axes, of)


def _styles(reading: PanelReading) -> list[_Style]:
    overrides = _overrides(reading.panel)
    width = reading.panel["fieldConfig"]["defaults"]["custom"]["lineWidth"]
    styles = []
    for at, line in enumerate(reading.lines):
        own = overrides.get(line.name, {})
        unknown = set(own) - _KNOWN
        if unknown:
            raise PanelError(f"the contact sheet does not know {', '.join(sorted(unknown))}")
        colour = _PALETTE[at % len(_PALETTE)]
        if "color" in own:
            colour = colour_of(own["color"]["fixedColor"])
        styles.append(
            _Style(
                colour=colour,
                width=own.get("custom.lineWidth", width),
                dashed=own.get("custom.lineStyle", {}).get("fill") == "dash",
                below_to=own.get("custom.fillBelowTo", ""),
                opacity=own.get("custom.fillOpacity", 0) / 100,
                listed=not own.get("custom.hideFrom", {}).get("legend", False),
            )
        )
    return styles


def _overrides(panel: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        one["matcher"]["options"]: {each["id"]: each["value"] for each in one["properties"]}
        for one in panel["fieldConfig"]["overrides"]
    }


def _plot(axes: Any, reading: PanelReading, styles: Sequence[_Style], of: DashboardReading) -> None:
    stepped = reading.panel["fieldConfig"]["defaults"]["custom"]["lineInterpolation"] == "stepAfter"
    shape = {"drawstyle": "steps-post"} if stepped else {}
    drawn = {line.name: _points(line, of) for line in reading.lines}
    for line, style in zip(reading.lines, styles, strict=True):
        times, values = drawn[line.name]
        if style.below_to in drawn:
            lower = drawn[style.below_to][1]
            if len(lower) == len(values):
                axes.fill_between(
                    times, lower, values, color=style.colour, alpha=style.opacity or 0.15,
                    linewidth=0, step="post" if stepped else None,
                )  # fmt: skip
        if not style.width:
            continue
        axes.plot(
            times, values, color=style.colour, linewidth=0.8 * style.width,
            linestyle=(0, (4, 3)) if style.dashed else "-", solid_capstyle="butt", **shape,
        )  # fmt: skip
        alone = _alone(values)
        if alone:
            axes.plot(
                [times[at] for at in alone], [values[at] for at in alone], ".",
                color=style.colour, markersize=5,
            )  # fmt: skip
    for at_unix_s, _, colour in of.marks:
        axes.axvline(at_unix_s, color=colour_of(colour), linewidth=0.9, alpha=0.7)


def _points(line: Line, of: DashboardReading) -> tuple[list[float], list[float]]:
    """Times and values, with a NaN wherever samples are missing; infinity cannot be drawn."""
    times: list[float] = []
    values: list[float] = []
    before = math.inf
    for at, value in zip(line.series.times_unix_s, line.series.values, strict=True):
        if at - before > 1.5 * of.window.step_s:
            times.append(before + of.window.step_s)
            values.append(math.nan)
        times.append(at)
        values.append(value if math.isfinite(value) else math.nan)
        before = at
    return times, values


def _alone(values: Sequence[float]) -> list[int]:
    """Points without a neighbour, which no line would show."""
    known = [False, *(not math.isnan(value) for value in values), False]
    return [
        at - 1
        for at in range(1, len(known) - 1)
        if known[at] and not known[at - 1] and not known[at + 1]
    ]


def _value_axis(axes: Any, defaults: Mapping[str, Any], height: float) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    custom, unit, decimals = defaults["custom"], defaults["unit"], defaults.get("decimals")
    least = 1.0 if decimals == 0 and unit == "none" else 1e-9
    low, high = axes.get_ylim()
    if custom["scaleDistribution"]["type"] == "log":
        axes.set_yscale("log", nonpositive="mask")
        low, high = axes.get_ylim()
        axes.set_ylim(low / 1.2, high * 1.2)
        axes.yaxis.set_minor_locator(NullLocator())
        ticks = [one for one in (*_DECADES, *_STEPS_S) if low / 1.2 <= one <= high * 1.2]
        axes.yaxis.set_major_locator(FixedLocator(sorted(set(ticks))))
    else:
        low = defaults.get("min", min(low, custom.get("axisSoftMin", low)))
        high = defaults.get("max", max(high, custom.get("axisSoftMax", high)))
        high = max(high, low + least)
        step = tick_step(high - low, unit, max(2, int(height // 36)), whole=least == 1.0)
        # A line at either end is drawn whole.
        axes.set_ylim(low - 0.015 * (high - low), high + 0.03 * (high - low))
        first = math.ceil(low / step - 1e-9)
        last = math.floor(high / step + 1e-9)
        axes.yaxis.set_major_locator(FixedLocator([at * step for at in range(first, last + 1)]))
    if custom["thresholdsStyle"]["mode"] == "dashed":
        steps = defaults["thresholds"]["steps"]
        for at, step in enumerate(steps[1:]):
            if low <= step["value"] <= high:
                # The worse of the colours on both sides; the last one says which is worse.
                worse = step["color"] if steps[-1]["color"] == "red" else steps[at]["color"]
                axes.axhline(
                    step["value"], color=colour_of(worse), linewidth=1, linestyle=(0, (2, 3))
                )
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: shown(value, unit, 0 if least == 1.0 else None))
    )
    axes.tick_params(axis="y", labelsize=7.5, length=0, labelcolor=GREY)
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.7)
    axes.set_axisbelow(True)


def tick_step(span: float, unit: str, most: int, *, whole: bool = False) -> float:
    """The distance of marks on an axis that is round in its unit, Grafana's id.

    There are at most so many marks; ``whole`` says that values are whole numbers.
    """
    # A span that is a little too long for round marks gets them nevertheless.
    wanted = span / (most + 0.5)
    if unit == "s" and wanted > 1:
        return next((one for one in _STEPS_S if one >= wanted), _round_up(wanted / 86400) * 86400)
    if unit == "bytes" and wanted > 1:
        scale = 1024.0 ** math.floor(math.log(wanted, 1024))
        return scale * _round_up(wanted / scale)
    return max(1.0, _round_up(wanted)) if whole else _round_up(wanted)


def _round_up(wanted: float) -> float:
    """The next of 1, 2, 5 and their multiples by powers of ten."""
    power = 10.0 ** math.floor(math.log10(wanted))
    return power * next(one for one in (1.0, 2.0, 5.0, 10.0) if one * power >= wanted * (1 - 1e-9))


def _time_axis(axes: Any, of: DashboardReading) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter

    window = of.window
    width = axes.get_position().width * axes.figure.get_size_inches()[0] * axes.figure.dpi
    step_s = tick_step(window.span_s, "s", max(2, int(width // _TIME_PX)))
    first = math.ceil(window.start_unix_s / step_s)
    ticks = range(first, math.floor(window.end_unix_s / step_s) + 1)
    form = "%H:%M:%S" if step_s < 60 else "%H:%M" if step_s < 43200 else "%m-%d"
    axes.xaxis.set_major_locator(FixedLocator([at * step_s for at in ticks]))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda at, _: datetime.fromtimestamp(at, tz=UTC).strftime(form))
    )
    axes.set_xlim(window.start_unix_s, window.end_unix_s)
    axes.tick_params(axis="x", labelsize=7.5, length=2, color=GREY, labelcolor=GREY)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#c5cad1")


def draw_timeline(card: Card, reading: PanelReading, of: DashboardReading) -> None:
    """A row for each series, filled where its state has a colour.

    Where there is no room for all, those that are marked longest are drawn, in their order.
    """
    defaults = reading.panel["fieldConfig"]["defaults"]
    states = [_states(line, defaults, of) for line in reading.lines]
    fits = max(2, int((card.height - _AXIS_PX) // _ROW_PX))
    kept = list(range(len(states)))
    if len(kept) > fits:
        longest = sorted(kept, key=lambda at: -sum(width for _, width, _ in _marked(states[at])))
        kept = sorted(longest[: fits - 1])
    names = [reading.lines[at].name for at in kept]
    # Timelines with names of usual length stand one above the other, at the same times.
    left = min(220.0, max(140.0, *(card.measure(name) + 12 for name in names)))
    axes = card.axes(left, 2, card.width - left - 20, card.height - _AXIS_PX - 4)
    for row, at in enumerate(kept):
        axes.axhspan(row - 0.4, row + 0.4, color="#eef0f3", linewidth=0)
        for start, width, colour in _marked(states[at]):
            axes.broken_barh([(start, width)], (row - 0.4, 0.8), color=colour, linewidth=0)
    for at_unix_s, _, colour in of.marks:
        axes.axvline(at_unix_s, color=colour_of(colour), linewidth=0.9, alpha=0.7)
    labels = [card.cut(name, left - 10) for name in names]
    if len(kept) < len(states):
        labels.append(f"{len(states) - len(kept)} more")
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(axis="y", labelsize=8, length=0, labelcolor=INK)
    _time_axis(axes, of)


def _marked(states: Sequence[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    return [state for state in states if state[2] != "none"]


def _states(
    line: Line, defaults: Mapping[str, Any], of: DashboardReading
) -> list[tuple[float, float, str]]:
    """Begin, length in seconds, and colour of each stretch of one state."""
    step_s = of.window.step_s
    stretches: list[list[Any]] = []
    for at, value in zip(line.series.times_unix_s, line.series.values, strict=True):
        colour = _mapped_colour(value, defaults)
        if stretches and stretches[-1][2] == colour and at - stretches[-1][1] <= 1.5 * step_s:
            stretches[-1][1] = at
        else:
            if stretches and at - stretches[-1][1] <= 1.5 * step_s:
                stretches[-1][1] = at
            stretches.append([at, at, colour])
    if stretches:
        stretches[-1][1] = min(stretches[-1][1] + step_s, of.window.end_unix_s)
    return [(begin, max(end - begin, step_s), colour) for begin, end, colour in stretches]


def _mapped_colour(value: float, defaults: Mapping[str, Any]) -> str:
    for mapping in defaults["mappings"]:
        options = mapping["options"]
        high = math.inf if options["to"] is None else options["to"]
        if options["from"] <= value <= high:
            return colour_of(options["result"]["color"])
    return GREY
