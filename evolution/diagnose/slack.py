"""Which slack dominates a stable plateau below the baseline (pattern C), by the shape of curves.

::

    t*          a long burn-in: the environment is known late, and the plateau is reached late
    delta_eff   the gap grows in a straight line with how far environments differ
    eta_cls     the gap is not monotone in that, or seeds differ: environments are confused
    eta_ker     the gap grows like H²: what is known of the environment is not exact

Each sign needs inputs that one setting does not have: several values of the divergence dial at
otherwise equal settings, or several horizons. What is missing is said, and the slack is then **not
known**, never guessed. Signs are looked for in this order: eta_ker, eta_cls, delta_eff, t*. The
numbers of the rule are ``SHAPE``.

Covered: gaps by dial and by horizon over seeds; burn-in of curves. Not covered: two slacks that
are equally large, of which the first sign is named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, stdev
from typing import Final, Literal

from evolution.diagnose.patterns import Curve

__all__ = ["SHAPE", "Dominant", "Shape", "SlackName", "burn_in", "dominant_slack"]

SlackName = Literal["t_star", "eta_cls", "eta_ker", "delta_eff"]
Gaps = Mapping[float, Sequence[float]]
"""By the value of a dial: baseline minus plateau, one for each seed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Every number of the rule."""

    least_values: int = 3
    """Values of a dial from which a shape can be told."""
    fit: float = 0.9
    """Least R² of a straight line."""
    exponent: tuple[float, float] = (1.5, 2.5)
    """Of H, by least squares on logarithms, to count as H²."""
    fall: float = 0.02
    """A mean gap that falls by more along the dial is not monotone."""
    seeds: float = 0.5
    """Standard deviation over seeds, in parts of the mean gap, from which it depends on seeds."""
    burn_in: float = 0.5
    """The part of the rounds by which half of the rise is there, or the burn-in is long."""


SHAPE: Final = Shape()


@dataclass(frozen=True, kw_only=True, slots=True)
class Dominant:
    """What the shapes say."""

    slack: SlackName | None
    """None: not known."""
    why: str
    """The sign, or what is missing."""


def burn_in(curve: Curve) -> float | None:
    """By which part of the rounds half of the rise to the plateau is there; None without a rise."""
    start, end = curve.points[0], curve.points[-1]
    plateau = curve.plateau()
    span = end.round - start.round
    rise = plateau - start.rate
    if span == 0 or rise <= 2 * math.sqrt(start.noise + curve.plateau_noise()):
        return None
    halfway = start.rate + rise / 2
    reached = next(point for point in curve.points if point.rate >= halfway)
    return (reached.round - start.round) / span


def dominant_slack(
    curves: Sequence[Curve],
    *,
    by_dial: Gaps | None = None,
    by_horizon: Gaps | None = None,
    shape: Shape = SHAPE,
) -> Dominant:
    """Name the dominant slack of a setting.

    ``by_dial`` are gaps at other values of the divergence dial, ``by_horizon`` at other horizons;
    both with the setting's own among them.
    """
    missing = []
    if by_horizon is None or len(by_horizon) < shape.least_values:
        missing.append(f"runs at {shape.least_values} horizons")
    elif found := _of_horizons(by_horizon, shape):
        return found
    if by_dial is None or len(by_dial) < shape.least_values:
        missing.append(f"runs at {shape.least_values} values of the divergence dial")
    elif found := _of_dial(by_dial, shape):
        return found
    parts = [part for curve in curves if (part := burn_in(curve)) is not None]
    if parts and mean(parts) > shape.burn_in:
        why = f"half of the rise takes {100 * mean(parts):.0f} % of the rounds"
        return Dominant(slack="t_star", why=why)
    why = f"without {' and '.join(missing)}" if missing else ": the gaps have none of the shapes"
    return Dominant(slack=None, why=f"not known {why}".replace(" :", ":"))


def _of_horizons(gaps: Gaps, shape: Shape) -> Dominant | None:
    power = _exponent(gaps)
    if power is None or not shape.exponent[0] <= power <= shape.exponent[1]:
        return None
    return Dominant(slack="eta_ker", why=f"the gap grows like H^{power:.1f}")


def _of_dial(gaps: Gaps, shape: Shape) -> Dominant | None:
    values = sorted(gaps)
    means = [mean(gaps[value]) for value in values]
    falls = max(a - b for a, b in pairwise(means))
    if falls > shape.fall:
        why = f"the gap falls by {100 * falls:.1f} points along the dial"
        return Dominant(slack="eta_cls", why=why)
    spread = _spread(gaps)
    if spread is not None and spread > shape.seeds:
        why = f"seeds differ by {100 * spread:.0f} % of the mean gap"
        return Dominant(slack="eta_cls", why=why)
    fit = _straightness(values, means)
    if fit is None or fit < shape.fit:
        return None
    return Dominant(
        slack="delta_eff", why=f"the gap is a straight line in the dial, R² = {fit:.2f}"
    )


def _exponent(gaps: Gaps) -> float | None:
    """The slope of log gap over log H; None where a gap is not above 0."""
    points = [(value, mean(found)) for value, found in gaps.items()]
    if min(min(point) for point in points) <= 0:
        return None
    slope, _ = _line([math.log(x) for x, _ in points], [math.log(y) for _, y in points])
    return slope


def _straightness(values: Sequence[float], means: Sequence[float]) -> float | None:
    """R² of a rising straight line; None where it does not rise."""
    slope, level = _line(values, means)
    around = mean(means)
    whole = sum((y - around) ** 2 for y in means)
    if slope <= 0 or whole == 0:
        return None
    left = sum((y - slope * x - level) ** 2 for x, y in zip(values, means, strict=True))
    return 1 - left / whole


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Slope and level by least squares."""
    x0, y0 = mean(xs), mean(ys)
    slope = sum((x - x0) * (y - y0) for x, y in zip(xs, ys, strict=True)) / sum(
        (x - x0) ** 2 for x in xs
    )
    return slope, y0 - slope * x0


def _spread(gaps: Gaps) -> float | None:
    """The mean deviation over seeds, in parts of the mean gap."""
    deviations = [stdev(found) for found in gaps.values() if len(found) > 1]
    level = mean(mean(found) for found in gaps.values())
    return mean(deviations) / level if deviations and level > 0 else None
