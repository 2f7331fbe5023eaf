"""The one line of figures: macro success in points at temperature 1, means over seeds.

`methods` comes from the experiment that has the most of those settings. `federation2` is about
experiments in which a silo's family has tasks that the silo never saw: `..._unseen` is the mean
over silos in the one that has the most of these settings; `worst_silo_vs_alone` is
`silos.Silos.best` where the worst silo was judged on the most own tasks. A figure that the results
do not hold is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lab.report.report import Choices, ExperimentReport, Report, SilosReport
from lab.report.results import Results
from lab.report.roles import setting_for

__all__ = ["METHODS", "TEMPERATURE", "summary"]

METHODS: Final = ("pretrained", "local", "central", "fedit", "fedse")
UNSEEN: Final = ("local_evolution_unseen", "fedse_unseen")
TEMPERATURE: Final = 1.0
_DIGITS: Final = 2

Figures = dict[str, float | None]


def summary(report: Report, results: Results, choices: Choices) -> dict[str, Figures]:
    """The line, as an object."""
    in_order = sorted(report.experiments, key=lambda found: found.sharded)
    sharded = [found for found in in_order if found.sharded]
    return {
        "methods": _fullest([_methods(found, results, choices) for found in in_order]),
        "federation2": {
            **_fullest(
                [dict.fromkeys(UNSEEN), *(_unseen(found, results, choices) for found in sharded)]
            ),
            "worst_silo_vs_alone": _worst_silo_vs_alone(sharded),
        },
    }


def _fullest(candidates: Sequence[Figures]) -> Figures:
    """The first of those that lack the fewest figures."""
    return max(candidates, key=lambda figures: sum(value is not None for value in figures.values()))


def _methods(report: ExperimentReport, results: Results, choices: Choices) -> Figures:
    experiment = next(found for found in results.experiments if found.name == report.name)
    figures: Figures = {}
    for role in METHODS:
        setting = setting_for(role, experiment, choices.roles)
        rows = [row for row in report.rows if row.row == setting]
        macro = next(
            (
                score.macro
                for row in rows
                for score in row.scores
                if score.temperature == TEMPERATURE
            ),
            None,
        )
        figures[role] = None if macro is None else _points(macro.spread.mean)
    return figures


def _unseen(report: ExperimentReport, results: Results, choices: Choices) -> Figures:
    figures: Figures = dict.fromkeys(UNSEEN)
    at = _at_temperature(report)
    if at is None:
        return figures
    experiment = next(found for found in results.experiments if found.name == report.name)
    fedse = setting_for("fedse", experiment, choices.roles)
    for found in at.options:
        mean = found.means["unseen"]
        rate = None if mean is None else _points(mean.spread.mean)
        if found.option == at.alone:
            figures["local_evolution_unseen"] = rate
        if (found.option.setting, found.option.scope) == (fedse, "global"):
            figures["fedse_unseen"] = rate
    return figures


def _worst_silo_vs_alone(reports: Sequence[ExperimentReport]) -> float | None:
    found = [at.worst for report in reports if (at := _at_temperature(report)) and at.worst]
    worst = max(found, key=lambda worst: worst.difference.tasks, default=None)
    return None if worst is None else _points(worst.difference.value)


def _at_temperature(report: ExperimentReport) -> SilosReport | None:
    return next((silos for silos in report.silos if silos.temperature == TEMPERATURE), None)


def _points(rate: float) -> float:
    return round(100 * rate, _DIGITS)
