"""The one line of figures: macro success in points at temperature 1, means over seeds.

`methods` comes from the experiment that has the most of those settings; `federation2` from the
first one in which a silo's family has tasks that the silo never saw. `..._unseen` is the mean over
silos; `worst_silo_vs_alone` is `silos.Silos.best`. A figure that the results do not hold is null.
"""

from __future__ import annotations

from typing import Final

from lab.report.report import Choices, ExperimentReport, OptionReport, Report
from lab.report.results import Results
from lab.report.roles import setting_for

__all__ = ["METHODS", "TEMPERATURE", "summary"]

METHODS: Final = ("pretrained", "local", "central", "fedit", "fedse")
TEMPERATURE: Final = 1.0
_DIGITS: Final = 2

Figures = dict[str, float | None]


def summary(report: Report, results: Results, choices: Choices) -> dict[str, Figures]:
    """The line, as an object."""
    candidates = [
        _methods(found, results, choices)
        for found in sorted(report.experiments, key=lambda found: found.sharded)
    ]
    sharded = next((found for found in report.experiments if found.sharded), None)
    return {
        "methods": max(
            candidates, key=lambda figures: sum(value is not None for value in figures.values())
        ),
        "federation2": _federation2(sharded, results, choices),
    }


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


def _federation2(report: ExperimentReport | None, results: Results, choices: Choices) -> Figures:
    figures: Figures = dict.fromkeys(
        ("local_evolution_unseen", "fedse_unseen", "worst_silo_vs_alone")
    )
    at = next((s for s in report.silos if s.temperature == TEMPERATURE), None) if report else None
    if report is None or at is None:
        return figures
    experiment = next(found for found in results.experiments if found.name == report.name)
    fedse = setting_for("fedse", experiment, choices.roles)
    for found in at.options:
        if found.option == at.alone:
            figures["local_evolution_unseen"] = _unseen(found)
        if (found.option.setting, found.option.scope) == (fedse, "global"):
            figures["fedse_unseen"] = _unseen(found)
    if at.worst is not None:
        figures["worst_silo_vs_alone"] = _points(at.worst.difference.value)
    return figures


def _unseen(found: OptionReport) -> float | None:
    mean = found.means["unseen"]
    return None if mean is None else _points(mean.spread.mean)


def _points(rate: float) -> float:
    return round(100 * rate, _DIGITS)
