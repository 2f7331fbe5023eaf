"""What the sums say, round by round: success by environment, agreement, spread, who stayed.

Invariants:

1. A figure is shown with its standard error; one that is below noise or not reported is an em dash
   with that reason.
2. Every figure is of a masked sum; none is one silo's.

Covered: figures that are missing, below noise, or not defined for the plan's mode. Not covered:
how they are drawn (``curve.py``, ``templates/charts.html``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dp.config import Mode
from dp.noise.estimate import Estimate
from dp.noise.figures import NOT_REPORTED, percent_parts, why_hidden
from server.status_page import words
from server.status_page.curve import Bar, Curve, Point, columns, curve
from server.status_page.picture import Figure, Release, RunView

__all__ = ["FAMILIES", "Chart", "cohort_chart", "families", "figure_words", "place"]
__all__ += ["success_charts", "update_charts"]

FAMILIES: Final = 16
"""More environments than that are named and not drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """One drawing with its words."""

    name: str
    value: str
    """The newest figure; its error and unit follow it."""
    error: str = ""
    unit: str = ""
    top: str
    """What the scale ends with; empty where there is none."""
    bottom: str
    first: str
    """The places at the ends of the axis."""
    last: str
    hint: str
    description: str
    """In words, what it shows."""
    curve: Curve | None = None
    bars: tuple[Bar, ...] = ()


def place(release: Release, steps: int) -> str:
    """Where a release stands, for people: steps count from 1, named where there are several."""
    return f"{release.round}, step {release.step + 1}" if steps > 1 else str(release.round)


def figure_words(figure: Figure, *, ratio: bool) -> str:
    """A figure and its standard error, a ratio in per cent, or why there is none."""
    hidden = why_hidden(figure.value, figure.error)
    return f"{words.UNKNOWN} {hidden}" if hidden else "".join(_parts(figure, ratio=ratio))


def families(run: RunView) -> list[str]:
    """The environment families that a sum tells of, in order."""
    return sorted({family for release in run.releases for family in release.success})


def success_charts(run: RunView) -> tuple[Chart, ...]:
    """A curve for each of the first environment families."""
    return tuple(
        _chart(family, [one.success.get(family) for one in run.releases], run, high=1.0, ratio=True)
        for family in families(run)[:FAMILIES]
    )


def update_charts(run: RunView) -> tuple[Chart, ...]:
    """κ and ζ̂² over the rounds; of sums of gradients neither is defined."""
    if run.mode == Mode.RECORD_DISTRIBUTED.value:
        return ()
    summed = [one if one.outcome == "aggregated" else None for one in run.releases]
    spread = max([0.0, *(_reach(one.heterogeneity) for one in summed if one)])
    return (
        _chart(
            "Agreement κ",
            [one.agreement if one else None for one in summed],
            run,
            high=1.0,
            hint="1: every silo pulls the same way; near 0: they cancel out",
        ),
        _chart(
            "Spread ζ̂²",
            [one.heterogeneity if one else None for one in summed],
            run,
            high=_ceiling(spread),
            hint="how far the silos' updates lie apart",
        ),
    )


def cohort_chart(run: RunView) -> Chart | None:
    """Who began and who stayed, round by round; None before the first sum."""
    closed = [release for release in run.releases if release.cohort]
    if not closed:
        return None
    lost = sum(len(release.lost) for release in closed)
    without = sum(not release.survivors for release in closed)
    newest = closed[-1]
    dropouts = f"{lost} dropout{'' if lost == 1 else 's'} in {len(closed)} rounds"
    said = [f"round {place(one, run.steps)}: {one.survivors} of {one.cohort}" for one in closed]
    return Chart(
        name="In the sum",
        value=f"{newest.survivors} of {newest.cohort}",
        top=str(max(release.cohort for release in closed)),
        bottom="0",
        first=place(closed[0], run.steps),
        last=place(newest, run.steps),
        hint=(dropouts if lost else "nobody dropped out")
        + (f", {without} without a sum" if without else ""),
        description=f"{dropouts}, {without} without a sum; in the newest {newest.survivors} of "
        f"{newest.cohort} silos are in the sum.",
        bars=columns(closed, said),
    )


def _chart(
    name: str,
    found: Sequence[Figure | None],
    run: RunView,
    *,
    high: float,
    ratio: bool = False,
    hint: str = "",
) -> Chart:
    """One figure of each release, None where it has none, on a scale from 0 to ``high``."""
    points, measured = [], []
    for release, figure in zip(run.releases, found, strict=True):
        said = "nothing measured" if figure is None else figure_words(figure, ratio=ratio)
        marked = release.outcome == "rollback"
        where = place(release, run.steps)
        points.append(
            Point(
                said=f"round {where}: {'rolled back' if marked else said}",
                figure=figure,
                marked=marked,
            )
        )
        if figure is not None:
            measured.append((where, figure))
    known = [(where, figure) for where, figure in measured if not math.isnan(figure.value)]
    value, error, unit, note = words.UNKNOWN, "", "", "nothing was summed yet"
    if measured:
        note = _why_unknown(measured, known, ratio=ratio)
        if not note:
            value, error, unit = _parts(measured[-1][1], ratio=ratio)
    return Chart(
        name=name,
        value=value,
        error=error,
        unit=unit,
        # Where nothing was ever above the noise there is no scale.
        top=(words.percent(high) if ratio else words.short(high)) if high > 0 else "",
        bottom=("0 %" if ratio else "0") if high > 0 else "",
        first=place(run.releases[0], run.steps) if run.releases else "",
        last=place(run.releases[-1], run.steps) if run.releases else "",
        hint=note or hint,
        description=_description(known, ratio=ratio),
        curve=curve(points, high=high),
    )


def _why_unknown(
    measured: Sequence[tuple[str, Figure]], known: Sequence[tuple[str, Figure]], *, ratio: bool
) -> str:
    """Why the newest figure is not shown, and the last one that was; empty if it is."""
    newest = measured[-1][1]
    if not math.isnan(newest.value):
        return ""
    hidden = why_hidden(newest.value, newest.error)
    if not known:
        why = "no sum tells it" if hidden == NOT_REPORTED else "the noise hides the figure"
        return f"{hidden}: {why}"
    where, figure = known[-1]
    return f"{hidden} now; {figure_words(figure, ratio=ratio)} in round {where}"


def _description(known: Sequence[tuple[str, Figure]], *, ratio: bool) -> str:
    if not known:
        return "There is no figure to show."
    by_value = sorted((figure for _, figure in known), key=lambda figure: figure.value)
    low, high, newest = (
        figure_words(figure, ratio=ratio) for figure in (by_value[0], by_value[-1], known[-1][1])
    )
    return (
        f"From round {known[0][0]} to {known[-1][0]}: lowest {low}, highest {high}, "
        f"newest {newest}."
    )


def _parts(figure: Figure, *, ratio: bool) -> tuple[str, str, str]:
    """Value, standard error and unit, as they follow each other."""
    if ratio:
        return percent_parts(Estimate(figure.value, figure.error))
    error = f" ± {words.number(figure.error, digits=2)}" if math.isfinite(figure.error) else ""
    return words.number(figure.value, digits=3), error, ""


def _ceiling(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten, so that the top of a scale is a short number."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 2, 5, 10) if step * unit >= value * (1 - 1e-9))


def _reach(figure: Figure) -> float:
    """The top of a figure's band; 0 below noise."""
    if not math.isfinite(figure.value):
        return 0.0
    return figure.value + (figure.error if math.isfinite(figure.error) else 0.0)
