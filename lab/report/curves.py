"""What the pictures show: success over rounds, means over seeds with their range.

Covered: exploration by family, macro evaluation by temperature. Not covered: drawing (`plots.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.report.results import Experiment
from lab.report.scores import counted_environments, rows_of, score

__all__ = ["Curve", "evaluation_curves", "exploration_curves"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One setting in one panel, in percent."""

    name: str
    """In the legend."""
    rounds: tuple[int, ...]
    """Ascending."""
    mean: tuple[float, ...]
    """Over seeds."""
    low: tuple[float, ...]
    """The lowest seed."""
    high: tuple[float, ...]
    """The highest seed."""


def exploration_curves(experiment: Experiment) -> dict[str, list[Curve]]:
    """Success of exploration, by family; each panel has the settings in their order.

    A round without an episode in a family has no point there.
    """
    panels: dict[str, dict[str, dict[int, list[float]]]] = defaultdict(dict)
    for line in experiment.rounds:
        for family, episodes in line.episodes.items():
            if episodes:
                points = panels[family].setdefault(line.setting, defaultdict(list))
                points[line.round].append(100 * line.successes.get(family, 0) / episodes)
    order = {name: at for at, name in enumerate(experiment.settings)}
    return {
        family: [
            _curve(setting, settings[setting])
            for setting in sorted(settings, key=order.__getitem__)
        ]
        for family, settings in sorted(panels.items())
    }


def evaluation_curves(experiment: Experiment) -> dict[float, list[Curve]]:
    """Macro success on held-out tasks, by temperature; rows judged once have one point."""
    counted = counted_environments(experiment)
    rows, panels = rows_of(experiment), dict[float, list[Curve]]()
    for temperature in sorted({line.temperature for line in experiment.evals}):
        curves = []
        for row in rows:
            points: dict[int, Sequence[float]] = {}
            for number in row.rounds:
                macro = score(row.at(number), temperature, counted).macro
                if macro is not None:
                    points[number] = [100 * rate for rate in macro.spread.rates]
            if points:
                curves.append(_curve(row.name, points))
        panels[temperature] = curves
    return panels


def _curve(name: str, points: Mapping[int, Sequence[float]]) -> Curve:
    rounds = sorted(points)
    return Curve(
        name=name,
        rounds=tuple(rounds),
        mean=tuple(sum(points[r]) / len(points[r]) for r in rounds),
        low=tuple(min(points[r]) for r in rounds),
        high=tuple(max(points[r]) for r in rounds),
    )
