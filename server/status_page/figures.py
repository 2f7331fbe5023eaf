"""What the sums say, round by round: success by environment, agreement, spread, who stayed.

Invariants:

1. A figure is shown with its standard error; one that is below noise or not reported is an em dash
   with that reason.
2. Every figure is of a masked sum; none is one silo's.

Covered: figures that are missing, below noise, or not defined for the plan's mode. Not covered:
how they are drawn (``curve.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from dp.config import Mode
from dp.noise.figures import NOT_REPORTED, percent_parts, why_hidden
from dp.noise.metrics_block import Estimate
from server.status_page import words
from server.status_page.curve import Column, Point, columns, curve
from server.status_page.markup import Child, Html, brief, element
from server.status_page.picture import Figure, Release, RunView

__all__ = ["cohort_chart", "figure_words", "place", "success_charts", "update_charts"]

FAMILIES: Final = 16
"""More environments than that are named and not drawn."""


def place(release: Release, steps: int) -> str:
    """Where a release stands, for people: steps count from 1, named where there are several."""
    return f"{release.round}, step {release.step + 1}" if steps > 1 else str(release.round)


def figure_words(figure: Figure, *, ratio: bool) -> str:
    """A figure and its standard error, a ratio in per cent, or why there is none."""
    hidden = why_hidden(figure.value, figure.error)
    if hidden:
        return f"{words.UNKNOWN} {hidden}"
    value, error, unit = _parts(figure, ratio=ratio)
    return f"{value}{error}{unit}"


def success_charts(run: RunView) -> tuple[Html, ...]:
    """A curve for each environment family."""
    families = sorted({family for release in run.releases for family in release.success})
    charts = [
        _chart(
            brief(family),
            [(release, release.success.get(family)) for release in run.releases],
            run,
            high=1.0,
            ratio=True,
        )
        for family in families[:FAMILIES]
    ]
    rest = families[FAMILIES:]
    if rest:
        charts.append(element("p", f"Not drawn: {words.named(rest)}.", class_="soft"))
    return tuple(charts)


def update_charts(run: RunView) -> tuple[Html, ...]:
    """κ and ζ̂² over the rounds."""
    if run.mode == Mode.RECORD_DISTRIBUTED.value:
        return (
            element(
                "p",
                f"Agreement and spread are not defined for sums of gradients (mode {run.mode}).",
                class_="soft",
            ),
        )
    summed = [release for release in run.releases if release.outcome == "aggregated"]
    spread = max([0.0, *(_reach(release.heterogeneity) for release in summed)])
    return (
        _chart(
            "Agreement κ",
            [(one, one.agreement if one in summed else None) for one in run.releases],
            run,
            high=1.0,
            ratio=False,
            hint="1: every silo pulls the same way; near 0: they cancel out",
        ),
        _chart(
            "Spread ζ̂²",
            [(one, one.heterogeneity if one in summed else None) for one in run.releases],
            run,
            high=_ceiling(spread),
            ratio=False,
            hint="how far the silos' updates lie apart",
        ),
    )


def cohort_chart(run: RunView) -> Html | None:
    """Who began and who stayed, round by round; None before the first sum."""
    closed = [release for release in run.releases if release.cohort]
    if not closed:
        return None
    lost = sum(len(release.lost) for release in closed)
    without = sum(not release.survivors for release in closed)
    newest = closed[-1]
    drawn = columns(
        [
            Column(
                label=f"round {place(release, run.steps)}",
                whole=release.cohort,
                part=release.survivors,
            )
            for release in closed
        ],
        title="Cohort and survivors",
        description=f"{_dropouts(lost)} in {len(closed)} rounds, {without} without a sum; in the "
        f"newest {newest.survivors} of {newest.cohort} silos are in the sum.",
    )
    return _figure(
        "In the sum",
        f"{newest.survivors} of {newest.cohort}",
        drawn,
        top=str(max(release.cohort for release in closed)),
        bottom="0",
        ends=(closed[0], closed[-1], run.steps),
        hint=(f"{_dropouts(lost)} in {len(closed)} rounds" if lost else "nobody dropped out")
        + (f", {without} without a sum" if without else ""),
    )


def _dropouts(count: int) -> str:
    return f"{count} dropout{'' if count == 1 else 's'}"


def _chart(
    name: str,
    found: Sequence[tuple[Release, Figure | None]],
    run: RunView,
    *,
    high: float,
    ratio: bool,
    hint: str = "",
) -> Html:
    points = [
        Point(
            label=f"round {place(release, run.steps)}",
            figure=figure,
            marked=release.outcome == "rollback",
        )
        for release, figure in found
    ]
    measured = [(release, figure) for release, figure in found if figure is not None]
    headline, note = _headline(measured, run.steps, ratio=ratio)
    shown: Callable[[Figure], str] = lambda figure: figure_words(figure, ratio=ratio)  # noqa: E731
    drawn = curve(
        points,
        high=high,
        title=name,
        description=_description(measured, run.steps, shown),
        shown=shown,
    )
    ends = (found[0][0], found[-1][0], run.steps) if found else None
    top, bottom = words.percent(high) if ratio else words.short(high), "0 %" if ratio else "0"
    if high <= 0:
        # Nothing was ever above the noise, so there is no scale.
        top = bottom = ""
    return _figure(name, headline, drawn, top=top, bottom=bottom, ends=ends, hint=note or hint)


def _headline(
    measured: Sequence[tuple[Release, Figure]], steps: int, *, ratio: bool
) -> tuple[Html | str, str]:
    """The newest figure, and what is to be said of it."""
    if not measured:
        return words.UNKNOWN, "nothing was summed yet"
    newest = measured[-1][1]
    if not math.isnan(newest.value):
        value, error, unit = _parts(newest, ratio=ratio)
        soft = element("span", error, class_="soft") if error else None
        return element("span", value, soft, unit), ""
    hidden = why_hidden(newest.value, newest.error)
    known = [(release, one) for release, one in measured if not math.isnan(one.value)]
    if not known:
        why = "no sum tells it" if hidden == NOT_REPORTED else "the noise hides the figure"
        return words.UNKNOWN, f"{hidden}: {why}"
    release, figure = known[-1]
    return (
        words.UNKNOWN,
        f"{hidden} now; {figure_words(figure, ratio=ratio)} in round {place(release, steps)}",
    )


def _description(
    measured: Sequence[tuple[Release, Figure]], steps: int, shown: Callable[[Figure], str]
) -> str:
    known = [(release, one) for release, one in measured if not math.isnan(one.value)]
    if not known:
        return "There is no figure to show."
    low = min(known, key=lambda pair: pair[1].value)
    high = max(known, key=lambda pair: pair[1].value)
    (first, _), (last, newest) = known[0], known[-1]
    return (
        f"From round {place(first, steps)} to {place(last, steps)}: lowest {shown(low[1])}, "
        f"highest {shown(high[1])}, newest {shown(newest)}."
    )


def _figure(
    name: str,
    headline: Child,
    drawn: Html,
    *,
    top: str,
    bottom: str,
    ends: tuple[Release, Release, int] | None,
    hint: str,
) -> Html:
    axis = None
    if ends is not None:
        first, last, steps = ends
        axis = element(
            "div",
            element("span", f"round {place(first, steps)}"),
            element("span", place(last, steps)) if last is not first else None,
            class_="axis",
            aria_hidden="true",
        )
    return element(
        "figure",
        element(
            "figcaption",
            element("h3", name),
            element("p", headline, class_="newest"),
        ),
        element(
            "div",
            element("span", top, class_="top", aria_hidden="true"),
            element("span", bottom, class_="bottom", aria_hidden="true"),
            drawn,
            class_="plot",
        ),
        axis,
        element("p", hint, class_="hint") if hint else None,
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
