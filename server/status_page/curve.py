"""Curves and columns over the rounds: where each line, band and bar of a drawing is.

A drawing is 1000 wide and 100 high; ``templates/charts.html`` stretches it to whatever width there
is.

Invariants:

1. A figure below noise is a gap, never a zero and never a line drawn over it.
2. The band is one standard error to either side.

Covered: gaps, single points, figures that noise carried beyond their range, rollbacks. Not covered:
choosing what to draw, and its words (``figures.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from server.status_page.picture import Figure, Release

__all__ = ["Bar", "Curve", "Point", "columns", "coordinate", "curve"]

WIDTH: Final = 1000.0
HEIGHT: Final = 100.0
SLICES: Final = 120
"""More points than that have no title each: nobody could aim at one."""
_Stretch = list[tuple[float, Figure]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One round of a curve."""

    said: str
    """For people: the round, and its figure or why there is none."""
    figure: Figure | None
    """None where there is none, as in a round without a sum."""
    marked: bool
    """A rollback stands here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A rectangle with its title."""

    said: str
    x: float
    width: float
    y: float = 0.0
    height: float = HEIGHT
    lost: float = 0.0
    """How high the part above it is that is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """The paths of one curve, in the language of SVG; empty where there is nothing to draw."""

    marks: str
    band: str
    line: str
    dot: str
    slices: tuple[Bar, ...]
    """An invisible strip for each point, whose title a pointer finds."""


def curve(points: Sequence[Point], *, high: float) -> Curve:
    """Draw a line with its band, from 0 at the bottom to ``high`` at the top."""
    reach = high if high > 0 else 1.0

    def y(value: float) -> float:
        return HEIGHT * (1 - min(1.0, max(0.0, value / reach)))

    count = len(points)
    xs = [WIDTH * index / (count - 1) for index in range(count)] if count > 1 else [WIDTH / 2]
    placed = list(zip(xs, points, strict=False))
    band, line, dot = "", "", ""
    for stretch in _stretches(placed):
        drawn = _path((x, y(figure.value)) for x, figure in stretch)
        # A line of no length with round ends is a dot, whatever the stretch.
        line += f"{drawn}h.01" if len(stretch) == 1 else drawn
        wide = [(x, figure) for x, figure in stretch if math.isfinite(figure.error)]
        above = [(x, y(figure.value + figure.error)) for x, figure in wide]
        below = [(x, y(figure.value - figure.error)) for x, figure in wide]
        if wide:
            band += _path([*above, *reversed(below)]) + ("Z" if len(wide) > 1 else "")
        x, newest = stretch[-1]
        dot = f"{_path([(x, y(newest.value))])}h.01"
    wide_px = WIDTH / max(count, 1)
    return Curve(
        marks="".join(f"M{coordinate(x)} 0V100" for x, point in placed if point.marked),
        band=band,
        line=line,
        dot=dot,
        slices=tuple(
            Bar(said=point.said, x=max(0.0, x - wide_px / 2), width=wide_px) for x, point in placed
        )
        if count <= SLICES
        else (),
    )


def columns(releases: Sequence[Release], said: Iterable[str]) -> tuple[Bar, ...]:
    """A column for each cohort, of which whoever is not in the sum is missing."""
    most = max((release.cohort for release in releases), default=0) or 1
    wide = WIDTH / max(len(releases), 1)
    bars = []
    for index, (release, words) in enumerate(zip(releases, said, strict=True)):
        height = HEIGHT * min(release.survivors, release.cohort) / most
        bars.append(
            Bar(
                said=words,
                x=(index + 0.11) * wide,
                width=0.78 * wide,
                y=HEIGHT - height,
                height=height,
                lost=max(0.0, HEIGHT * release.cohort / most - height),
            )
        )
    return tuple(bars)


def coordinate(value: float) -> str:
    """A number in units of a drawing, no longer than the eye can tell."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _stretches(placed: Iterable[tuple[float, Point]]) -> Iterator[_Stretch]:
    """The parts between gaps; what was not measured in a round is bridged, noise is not."""
    stretch: _Stretch = []
    for x, point in placed:
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


def _path(places: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{coordinate(x)} {coordinate(y)}" for x, y in places)
