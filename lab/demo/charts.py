"""What the report draws: bars with their intervals, success by round, seconds by phase.

A drawing is 1000 wide and is stretched to whatever width there is; words stay outside, in HTML, so
that they are read at their own size on a phone. The picture for a document is matplotlib's.

Covered: figures below noise, which are gaps; whole rounds on the axis. Not covered: the markup
(``report.html.jinja``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dp.noise.estimate import Estimate
from dp.noise.figures import readable_ratio, success_words
from evolution.envs.catalogue import make
from lab.demo.outcome import Cell, Outcome, explored
from lab.demo.scenario import SILOS
from lab.wilson import Interval

__all__ = [
    "WHO",
    "Bar",
    "Chart",
    "Curve",
    "Group",
    "cells_of",
    "charts",
    "curves",
    "explored_by_round",
    "heat",
    "label",
    "phase_means",
    "write_picture",
]

WHO: Final = {
    "base": "base model",
    "alone": "each silo alone (mean)",
    "together": "together",
}
_SHORT: Final = {"base": "base model", "alone": "alone (mean)", "together": "together"}
_COLOURS: Final = {"base": "#8a8f98", "alone": "#d98e32", "together": "#2f7d62"}
_WIDTH: Final = 1000.0
_HEIGHT: Final = 100.0
_FEW: Final = 2
_LEVEL: Final = 6
"""So many labels of an axis stand level beside each other."""
_LABELS: Final = 10
"""So many rounds of an axis are numbered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One rate with its interval; places are thousandths of the width."""

    who: str
    name: str
    rate: float
    low: float
    high: float
    percent: str
    interval: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Everybody on the same tasks."""

    label: str
    episodes: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """All tasks at one temperature."""

    title: str
    groups: tuple[Group, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Success of one family while exploring, round by round."""

    family: str
    newest: str
    """In words."""
    line: str
    """A path; empty where noise hides every round."""
    dots: str
    errors: str
    """One standard error to either side, where there is noise."""
    labels: tuple[str, ...]
    """Of each whole round, from the first; empty where there is no room for one."""
    words: Mapping[int, str]
    """The figure of each round that told one."""


def cells_of(outcome: Outcome) -> list[Cell]:
    """What was judged."""
    return sorted(outcome.rates.get("base", {}))


def heat(temperature: float) -> str:
    """A temperature in words."""
    return f"{temperature:g}" if temperature else "greedy"


def label(cell: Cell) -> str:
    """A cell in words."""
    return f"{_where(cell)}, {'T=' if cell.temperature else ''}{heat(cell.temperature)}"


def _where(cell: Cell) -> str:
    return cell.environment if cell.shard < 0 else f"{cell.environment}, {_shard(cell)}"


def _shard(cell: Cell) -> str:
    """The labels of a silo's part, where they are few."""
    labels = make(cell.environment).labels[cell.shard :: len(SILOS)]
    return " and ".join(labels) if len(labels) <= _FEW else f"shard {cell.shard + 1}"


def charts(outcome: Outcome) -> list[Chart]:
    """One for each temperature, the sampled one first."""
    cells = cells_of(outcome)
    return [
        Chart(
            title=f"Temperature {temperature:g}" if temperature else "Greedy",
            groups=tuple(_groups(outcome, cells, temperature)),
        )
        for temperature in sorted({cell.temperature for cell in cells}, reverse=True)
    ]


def _groups(outcome: Outcome, cells: Sequence[Cell], temperature: float) -> Iterator[Group]:
    mine = [cell for cell in cells if cell.temperature == temperature]
    environments = {cell.environment for cell in mine}
    if len(environments) > 1:
        yield _group("all environments", outcome.headline(temperature))
    for cell in mine:
        rates = {who: outcome.rates[who][cell] for who in WHO if cell in outcome.rates.get(who, {})}
        if len(environments) > 1:
            yield _group(_where(cell), rates)
        else:
            yield _group("all tasks" if cell.shard < 0 else _shard(cell), rates)


def _group(label: str, rates: Mapping[str, Interval]) -> Group:
    return Group(
        label=label,
        episodes=rates["base"].episodes,
        bars=tuple(
            Bar(
                who=who,
                name=_SHORT[who],
                rate=_WIDTH * interval.rate,
                low=_WIDTH * interval.low,
                high=_WIDTH * interval.high,
                percent=f"{100 * interval.rate:.1f} %",
                interval=f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]",
            )
            for who, interval in rates.items()
        ),
    )


def explored_by_round(outcome: Outcome) -> list[tuple[int, str, Estimate]]:
    """Round, family and ratio of every figure that a sum told."""
    return [
        (done["round"], family, ratio)
        for done in outcome.rounds
        for family, ratio in sorted(explored(done).items())
        # Only a round's first release has figures.
        if not done.get("step", 0)
    ]


def curves(outcome: Outcome) -> list[Curve]:
    """One for each family."""
    figures = explored_by_round(outcome)
    last = max((number for number, _, _ in figures), default=0)
    return [
        _curve(family, {n: ratio for n, name, ratio in figures if name == family}, last)
        for family in sorted({name for _, name, _ in figures})
    ]


def _curve(family: str, ratios: Mapping[int, Estimate], last: int) -> Curve:
    line, dots, errors = "", "", ""
    pen = "M"
    for number in range(1, last + 1):
        ratio = ratios.get(number)
        value = math.nan if ratio is None else readable_ratio(ratio)
        if ratio is None or math.isnan(value):
            pen = "M"
            continue
        # Each round has a column of its own, and stands in the middle of it.
        x = _WIDTH * (number - 0.5) / last
        line += f"{pen}{x:.1f} {_y(value)}"
        # A line of no length with round ends is a dot, whatever the stretch.
        dots += f"M{x:.1f} {_y(value)}h.01"
        if ratio.standard_error:
            low, high = value - ratio.standard_error, value + ratio.standard_error
            errors += f"M{x:.1f} {_y(low)}V{_y(high)}"
        pen = "L"
    every = math.ceil(last / _LABELS)
    return Curve(
        family=family,
        newest=success_words({family: ratios[max(ratios)]}),
        line=line,
        dots=dots,
        errors=errors,
        labels=tuple(
            str(number) if (number - 1) % every == 0 else "" for number in range(1, last + 1)
        ),
        words={number: success_words({family: ratio}) for number, ratio in ratios.items()},
    )


def _y(ratio: float) -> str:
    """Nothing lies beyond 0 and 1, and so no interval does."""
    return f"{_HEIGHT * (1 - min(1.0, max(0.0, ratio))):.1f}"


def phase_means(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds that a round spends in each phase, on average."""
    sums: dict[str, float] = {}
    for done in rounds:
        for item in done.get("timings", ()):
            sums[item["phase"]] = sums.get(item["phase"], 0.0) + float(item["duration_s"])
    # A round may have several releases.
    count = len({done["round"] for done in rounds})
    return {phase: total / count for phase, total in sums.items()} if rounds else {}


def write_picture(outcome: Outcome, path: Path) -> None:
    """The success of base, alone and together, at each temperature, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 5.6), layout="constrained")
    temperatures = sorted({cell.temperature for cell in cells_of(outcome)}, reverse=True)
    panels = figure.subplots(len(temperatures), squeeze=False)
    for (axes,), temperature in zip(panels, temperatures, strict=True):
        cells = [cell for cell in cells_of(outcome) if cell.temperature == temperature]
        _draw_bars(axes, outcome, cells)
        axes.set_ylabel(f"success, {'temperature ' if temperature else ''}{heat(temperature)}")
        axes.spines[["top", "right"]].set_visible(False)
    for (axes,) in panels[1:]:
        axes.get_legend().remove()
    figure.savefig(path, dpi=120)


def _draw_bars(axes: Any, outcome: Outcome, cells: Sequence[Cell]) -> None:
    for offset, who in enumerate(WHO):
        rates = outcome.rates.get(who, {})
        for index, cell in enumerate(cells):
            interval = rates.get(cell)
            if interval is None:
                continue
            axes.bar(
                index + 0.27 * (offset - 1),
                interval.rate,
                0.25,
                color=_COLOURS[who],
                label=WHO[who] if index == 0 else None,
                yerr=[
                    [max(0.0, interval.rate - interval.low)],
                    [max(0.0, interval.high - interval.rate)],
                ],
                capsize=2,
            )
    names = [_where(cell).replace(", ", "\n").replace(" and ", "\nand ") for cell in cells]
    axes.set_xticks(range(len(cells)), names)
    axes.tick_params(axis="x", labelrotation=20 if len(cells) > _LEVEL else 0)
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, ncols=len(WHO), loc="lower center", bbox_to_anchor=(0.5, 1.0))
