"""Curves and columns over the rounds, as inline SVG that stretches to whatever width there is.

A drawing is 1000 wide and 100 high and is stretched in both directions: lines keep their width
(``vector-effect``), and words stay outside, in HTML, so that they are read at their own size on a
phone.

Invariants:

1. A figure below noise is a gap, never a zero and never a line drawn over it.
2. The band is one standard error to either side.
3. Each drawing has a title and a description that say in words what it shows.

Covered: gaps, single points, figures that noise carried beyond their range, rollbacks. Not covered:
choosing what to draw (``figures.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from server.status_page.markup import Child, Html, coordinate, element, joined
from server.status_page.picture import Figure

__all__ = ["Column", "Point", "columns", "curve"]

WIDTH: Final = 1000.0
HEIGHT: Final = 100.0
SLICES: Final = 120
"""More points than that have no title each: nobody could aim at one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One round of a curve."""

    label: str
    """For people: ``round 3``."""
    figure: Figure | None
    """None where there is none, as in a round without a sum."""
    marked: bool = False
    """A rollback stands here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One round of a column chart."""

    label: str
    whole: int
    part: int
    """Of ``whole``."""


def curve(
    points: Sequence[Point],
    *,
    high: float,
    title: str,
    description: str,
    shown: Callable[[Figure], str],
) -> Html:
    """Draw a line with its band, from 0 at the bottom to ``high`` at the top.

    ``description`` says in words what it shows; ``shown`` writes a figure.
    """
    reach = high if high > 0 else 1.0

    def y(value: float) -> float:
        return HEIGHT * (1 - min(1.0, max(0.0, value / reach)))

    xs = _places(len(points))
    marks = [x for x, point in zip(xs, points, strict=True) if point.marked]
    bands: list[str] = []
    lines: list[str] = []
    last: tuple[float, float] | None = None
    for stretch in _stretches(xs, points):
        drawn = _line((x, y(figure.value)) for x, figure in stretch)
        # A line of no length with round ends is a dot, whatever the stretch.
        lines.append(f"{drawn}h.01" if len(stretch) == 1 else drawn)
        wide = [(x, figure) for x, figure in stretch if math.isfinite(figure.error)]
        above = [(x, y(figure.value + figure.error)) for x, figure in wide]
        below = [(x, y(figure.value - figure.error)) for x, figure in wide]
        if len(wide) == 1:
            bands.append(_line([above[0], below[0]]))
        elif wide:
            bands.append(f"{_line([*above, *reversed(below)])}Z")
        last = stretch[-1][0], y(stretch[-1][1].value)
    parts: list[Child] = [
        element("path", class_="grid", d=Html("M0 0H1000M0 50H1000M0 100H1000")),
        element("path", class_="mark", d=Html("".join(f"M{coordinate(x)} 0V100" for x in marks)))
        if marks
        else None,
        element("path", class_="band", d=Html("".join(bands))) if bands else None,
        element("path", class_="line", d=Html("".join(lines))) if lines else None,
        element("path", class_="dot", d=Html(f"{_line([last])}h.01")) if last else None,
    ]
    if len(points) <= SLICES:
        parts += _slices(xs, points, shown)
    return _drawing(parts, title=title, description=description)


def columns(values: Sequence[Column], *, title: str, description: str) -> Html:
    """Draw columns of which a part is missing.

    ``description`` says in words what they show.
    """
    most = max((value.whole for value in values), default=0) or 1
    wide = WIDTH / max(len(values), 1)
    bar = wide * 0.78
    parts: list[Child] = []
    for index, value in enumerate(values):
        x, top = index * wide + (wide - bar) / 2, HEIGHT * (1 - value.whole / most)
        height = HEIGHT * min(value.part, value.whole) / most
        lost = value.whole - value.part
        parts.append(
            element(
                "g",
                element("title", f"{value.label}: {value.part} of {value.whole}"),
                element("rect", class_="lost", x=x, y=top, width=bar, height=HEIGHT - top - height)
                if lost > 0
                else None,
                element("rect", class_="kept", x=x, y=HEIGHT - height, width=bar, height=height),
            )
        )
    return _drawing(parts, title=title, description=description)


def _drawing(parts: Sequence[Child], *, title: str, description: str) -> Html:
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        joined(parts),
        class_="chart",
        viewBox="0 0 1000 100",
        preserveAspectRatio="none",
        role="img",
    )


def _places(count: int) -> list[float]:
    if count == 1:
        return [WIDTH / 2]
    return [WIDTH * index / (count - 1) for index in range(count)]


def _stretches(
    xs: Sequence[float], points: Sequence[Point]
) -> Iterator[list[tuple[float, Figure]]]:
    """The parts between gaps; what was not measured in a round is bridged, noise is not."""
    stretch: list[tuple[float, Figure]] = []
    for x, point in zip(xs, points, strict=True):
        if point.figure is None:
            continue
        if math.isfinite(point.figure.value):
            stretch.append((x, point.figure))
            continue
        if stretch:
            yield stretch
        stretch = []
    if stretch:
        yield stretch


def _line(places: Sequence[tuple[float, float]] | Iterator[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{coordinate(x)} {coordinate(y)}" for x, y in places)


def _slices(
    xs: Sequence[float], points: Sequence[Point], shown: Callable[[Figure], str]
) -> list[Child]:
    """An invisible strip for each point, whose title a pointer finds."""
    wide = WIDTH / max(len(xs), 1)
    return [
        element(
            "rect",
            element("title", f"{point.label}: {_said(point, shown)}"),
            class_="slice",
            x=max(0.0, x - wide / 2),
            y=0,
            width=wide,
            height=100,
        )
        for x, point in zip(xs, points, strict=True)
    ]


def _said(point: Point, shown: Callable[[Figure], str]) -> str:
    if point.marked:
        return "rolled back"
    return "nothing measured" if point.figure is None else shown(point.figure)
