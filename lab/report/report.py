"""Everything that a report says, as data: the Markdown and the JSON are made from this.

Covered: scores, comparisons, silos, the summary. Not covered: pictures (`plots.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lab.report.errors import ReportError, UnpairedError
from lab.report.lines import PanelLine
from lab.report.paired import Difference, holm
from lab.report.results import Experiment, Results
from lab.report.roles import setting_for
from lab.report.scores import (
    Comparison,
    Rate,
    Row,
    Score,
    compare,
    counted_environments,
    rows_of,
    score,
)
from lab.report.silos import GROUPS, Option, Silos, Worst

__all__ = [
    "Choices",
    "ExperimentReport",
    "Family",
    "GuardedRun",
    "OptionReport",
    "PanelReport",
    "Report",
    "SettingRow",
    "SilosReport",
    "build_report",
]

_PERSONAL: Final = ("fedse_personal", "fedsa", "clustered")
"""Methods that end with something of the silo's own, or of its family's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """What whoever asks for a report may decide."""

    roles: Mapping[str, str] = field(default_factory=dict)
    """Role to setting, where names do not say it (`roles.py`)."""
    reference: str = ""
    """The setting, or the row, that the others are tested against, in experiments that have it;
    else the role fedse, or the first row."""
    options: tuple[str, ...] = ()
    """Settings among which a silo's best option is chosen; if empty, the role fedse and every one
    whose method is a personal or a clustered one (`_PERSONAL`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingRow:
    """One line of the tables."""

    row: str
    setting: str
    method: str
    seeds: tuple[int, ...]
    rounds: tuple[int, ...]
    """The judged rounds at the end; more than one value if seeds differ."""
    scores: tuple[Score, ...]
    """By temperature, ascending."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Comparisons that are corrected together: one experiment at one temperature."""

    temperature: float
    reference: str
    comparisons: tuple[Comparison, ...]
    adjusted: tuple[float, ...]
    """Holm-adjusted p-values, in the same order."""
    unpaired: tuple[str, ...]
    """Why a row could not be compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardedRun:
    """A run whose silos had guards."""

    setting: str
    seed: int
    vetoes: Mapping[int, float]
    """The mean over silos, noise included, by round; a round that a rollback took has none."""
    went_back: Mapping[int, int]
    """Rounds that a rollback took, with the round whose adapter came back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PanelReport:
    """Tasks of one environment that runs were judged on."""

    environment: str
    tasks: int
    sha256: str
    """Of ids and openings (``lab/experiment/tasks/panels.py``)."""
    settings: tuple[str, ...]
    """Those that were, where not all were; else empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionReport:
    """One option over all silos."""

    option: Option
    rates: Mapping[str, tuple[Rate | None, ...]]
    """Own, unseen, other: one rate for each silo."""
    means: Mapping[str, Rate | None]
    """Own, unseen, other: mean over silos."""
    differences: tuple[Difference, ...]
    """To alone on own tasks, one for each silo; empty for alone and where tasks differ."""
    gains: Mapping[str, Difference | None]
    """Own, unseen: to alone, the mean over silos; None for alone and where tasks differ."""
    candidate: bool
    """Whether it is among those that a silo may choose from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SilosReport:
    """The silos at one temperature."""

    temperature: float
    silos: tuple[int, ...]
    families: tuple[str, ...]
    """Of each silo."""
    alone: Option
    """What the others are compared with."""
    options: tuple[OptionReport, ...]
    worst: Worst | None
    """Of the candidate whose worst silo fares best."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentReport:
    """One experiment."""

    name: str
    counted: tuple[str, ...]
    """Environments in the averages."""
    rows: tuple[SettingRow, ...]
    families: tuple[Family, ...]
    silos: tuple[SilosReport, ...]
    """By temperature; empty if no silo was judged alone."""
    sharded: bool
    """Whether some silo's family has tasks that the silo never saw."""
    wall_s: float
    """Of all runs together."""
    episodes: int
    """Of all runs together."""
    guarded: tuple[GuardedRun, ...] = ()
    """In the order of settings and seeds; empty where no silo had a guard."""
    panels: tuple[PanelReport, ...] = ()
    """Empty where the rows do not say what was judged on."""
    plots: tuple[str, ...] = ()
    """File names below the plots' directory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All experiments."""

    experiments: tuple[ExperimentReport, ...]
    unfinished: tuple[tuple[str, int], ...]
    replaced: int


def build_report(results: Results, choices: Choices) -> Report:
    """Work everything out.

    Raises:
        ReportError: Lines contradict each other, or a choice names nothing.
    """
    settings = {name for found in results.experiments for name in found.settings}
    rows = {row.name for found in results.experiments for row in rows_of(found)}
    for name in (*choices.options, *choices.roles.values()):
        if name and name not in settings:
            raise ReportError(f"no finished run has the setting {name!r}")
    if choices.reference and choices.reference not in settings | rows:
        raise ReportError(f"no finished run has the setting {choices.reference!r}")
    return Report(
        experiments=tuple(_experiment(found, choices) for found in results.experiments),
        unfinished=results.unfinished,
        replaced=results.replaced,
    )


def _experiment(experiment: Experiment, choices: Choices) -> ExperimentReport:
    rows, counted = rows_of(experiment), counted_environments(experiment)
    temperatures = sorted({line.temperature for line in experiment.evals})
    sharded, silos = _silos(experiment, temperatures, choices)
    return ExperimentReport(
        name=experiment.name,
        counted=counted,
        rows=tuple(_row(row, temperatures, counted) for row in rows),
        families=tuple(
            _family(experiment, rows, temperature, counted, choices)
            for temperature in temperatures
            if len(rows) > 1
        ),
        silos=silos,
        sharded=sharded,
        wall_s=sum(run.wall_s for run in experiment.runs),
        episodes=sum(run.episodes for run in experiment.runs),
        guarded=tuple(_guarded(experiment)),
        panels=_panels(experiment),
    )


def _panels(experiment: Experiment) -> tuple[PanelReport, ...]:
    runs: dict[tuple[str, PanelLine], list[str]] = {}
    for run in experiment.runs:
        for name, panel in run.panels.items():
            runs.setdefault((name, panel), []).append(run.setting)
    return tuple(
        PanelReport(
            environment=name,
            tasks=panel.tasks,
            sha256=panel.sha256,
            settings=() if len(who) == len(experiment.runs) else tuple(dict.fromkeys(who)),
        )
        for (name, panel), who in runs.items()
    )


def _guarded(experiment: Experiment) -> Iterator[GuardedRun]:
    for setting in experiment.settings:
        for seed in experiment.seeds_of(setting):
            lines = [
                line for line in experiment.rounds if (line.setting, line.seed) == (setting, seed)
            ]
            vetoes = {line.round: line.vetoes for line in lines if line.vetoes is not None}
            back = {
                line.round: line.restored_round for line in lines if line.restored_round is not None
            }
            if vetoes or back:
                yield GuardedRun(setting=setting, seed=seed, vetoes=vetoes, went_back=back)


def _row(row: Row, temperatures: Sequence[float], counted: Sequence[str]) -> SettingRow:
    final = row.final()
    return SettingRow(
        row=row.name,
        setting=row.setting,
        method=row.method,
        seeds=tuple(sorted({line.seed for line in final})),
        rounds=tuple(sorted({line.round for line in final})),
        scores=tuple(score(final, temperature, counted) for temperature in temperatures),
    )


def _family(
    experiment: Experiment,
    rows: Sequence[Row],
    temperature: float,
    counted: Sequence[str],
    choices: Choices,
) -> Family:
    wanted = choices.reference
    if wanted not in {*experiment.settings, *(row.name for row in rows)}:
        wanted = setting_for("fedse", experiment, choices.roles) or ""
    reference = next((row for row in rows if wanted in (row.name, row.setting)), rows[0])
    comparisons, unpaired = [], []
    for row in rows:
        if row is not reference:
            try:
                comparisons.append(compare(reference, row, temperature, counted))
            except UnpairedError as error:
                unpaired.append(str(error))
    return Family(
        temperature=temperature,
        reference=reference.name,
        comparisons=tuple(comparisons),
        adjusted=tuple(holm([found.p_value for found in comparisons])),
        unpaired=tuple(unpaired),
    )


def _silos(
    experiment: Experiment, temperatures: Sequence[float], choices: Choices
) -> tuple[bool, tuple[SilosReport, ...]]:
    setting = setting_for("local_evolution", experiment, choices.roles)
    reports, sharded = [], False
    for temperature in temperatures:
        silos = Silos(experiment, temperature)
        sharded = sharded or silos.sharded
        alone = next(
            (
                option
                for option in silos.options
                if option.setting == setting and option.scope == "alone"
            ),
            None,
        )
        if alone is not None and silos.indices:
            reports.append(_at(experiment, silos, temperature, alone, choices))
    return sharded, tuple(reports)


def _at(
    experiment: Experiment, silos: Silos, temperature: float, alone: Option, choices: Choices
) -> SilosReport:
    options = []
    for option in silos.options:
        differences: tuple[Difference, ...] = ()
        gains: dict[str, Difference | None] = {"own": None, "unseen": None}
        if option != alone:
            with contextlib.suppress(UnpairedError):
                differences = tuple(silos.difference(option, alone, k) for k in silos.indices)
                gains["own"] = silos.gain(option, alone, "own")
                gains["unseen"] = silos.gain(option, alone, "unseen")
        options.append(
            OptionReport(
                option=option,
                rates={
                    group: tuple(silos.rate(option, k, group) for k in silos.indices)
                    for group in GROUPS
                },
                means={group: silos.mean(option, group) for group in GROUPS},
                differences=differences,
                gains=gains,
                candidate=bool(differences) and _may_choose(experiment, option, choices),
            )
        )
    candidates = [found.option for found in options if found.candidate]
    return SilosReport(
        temperature=temperature,
        silos=silos.indices,
        families=tuple(", ".join(sorted(silos.families[k])) for k in silos.indices),
        alone=alone,
        options=tuple(options),
        worst=silos.best(candidates, alone) if candidates else None,
    )


def _may_choose(experiment: Experiment, option: Option, choices: Choices) -> bool:
    if choices.options:
        return option.setting in choices.options
    fedse = setting_for("fedse", experiment, choices.roles)
    method = experiment.method_of(option.setting)
    return option.scope != "alone" and (option.setting == fedse or method in _PERSONAL)
