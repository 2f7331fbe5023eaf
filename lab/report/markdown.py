"""A report as Markdown: tables, tests, silos, pictures, and the summary's line.

Names come from results files; what Markdown or HTML would read as markup is escaped. Equal reports
give equal text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from federation.text import escaped
from lab.report.by_task import DRAWS, TaskInterval
from lab.report.interval import LEAST_SEEDS, SeedSpread
from lab.report.paired import Difference
from lab.report.pooled import Pooled
from lab.report.report import ExperimentReport, Family, GuardedRun, Report, SilosReport
from lab.report.scores import Rate
from lab.report.silos import GROUPS

__all__ = ["render"]

_LEGEND: Final = (
    "Success in percent. `[low, high]` beside a rate is a 95 % interval over tasks, seeds pooled: "
    "Wilson for an environment and for micro (all tasks pooled); for macro (mean over "
    "environments) the Wilson limits combined by MOVER (Zou, Huang, Zhang 2009). It counts a task "
    "once for each seed, as if it were another: all seeds are judged on the same tasks, so it is "
    "too narrow. *Macro over tasks* counts a task once: the 95 % percentile interval of a "
    f"bootstrap of whole tasks, each with its outcomes at all seeds ({DRAWS:,} draws; where all "
    "outcomes are alike, Wilson of that many tasks). It speaks of these trained adapters on other "
    "tasks of the same kind, and not of another training. `s` is the standard deviation over "
    "seeds. *Macro over seeds* is the 95 % t interval of the mean over seeds (from "
    f"{LEAST_SEEDS} seeds; otherwise the seeds' range): it speaks of another run of the same "
    "setting on these tasks, and not of other tasks. Neither speaks of both at once."
)
_TESTS: Final = (
    "Exact McNemar tests on the same tasks at equal seeds. *b*: only the reference solves the "
    "task; *c*: only the other. *Difference* is the reference minus the other, macro, in points, "
    "with the 95 % interval from the discordant pairs. That interval and *p* count a task once for "
    "each seed, as if it were another, and are too sure. *Over tasks* is the 95 % interval of the "
    "bootstrap of whole tasks, each counted once: these adapters on other tasks. *Over seeds* is "
    f"the 95 % t interval over the seeds (from {LEAST_SEEDS} seeds; otherwise their range), which "
    "alone knows that two trainings of one setting differ: other trainings on these tasks. *p "
    "(Holm)* is adjusted over the rows of its table."
)
_SILOS: Final = (
    "*Own*: tasks of the silo's shard. *Unseen*: tasks of its family outside the shard. *Other*: "
    "tasks of other families. Wilson intervals over tasks, seeds pooled. *To alone* is the paired "
    "difference in points, of all silos together its mean, with the 95 % interval over tasks and, "
    "as above, *over tasks* (each counted once) and *over seeds*; of a single silo it is on own "
    "tasks. Single silos are shown alone and with the options that a silo may choose from."
)
_CHOSEN: Final = (
    "*(chosen)* is what each silo took, of the shared adapter, its own, what lies between and the "
    "base, by own tasks that are not among these."
)
_POOLED: Final = (
    "Experiments that differ only in their seeds and in what was judged: the difference in points "
    "with its 95 % t interval over all of their seeds, each counted once and alike. For silos it "
    "is the mean over silos on own tasks; beside it the silo where it is least."
)
_GUARDED: Final = (
    "Runs whose honest silos had guards: which part of the silos vetoed the adapter that a round "
    "began with, noise included, and which rounds a rollback took, with the round whose adapter it "
    "brought back. A setting's row with *personal* is what each silo serves at the end: what its "
    "guard passed last, or the base."
)
_DASH: Final = "–"


def render(
    report: Report, figures: Mapping[str, Any], over_experiments: Sequence[Pooled], *, plots: str
) -> str:
    """The whole fragment.

    ``over_experiments`` are differences over the seeds of several experiments; ``plots`` is where
    pictures lie, as the text should link them.
    """
    parts: list[str] = []
    for experiment in report.experiments:
        parts += _experiment(experiment, plots)
    if over_experiments:
        parts += ["## Seeds of several experiments", _POOLED, _over_experiments(over_experiments)]
    if report.unfinished:
        named = ", ".join(
            f"{escaped(setting)} at seed {seed}" for setting, seed in report.unfinished
        )
        parts.append(f"Not finished, so not in any figure: {named}.")
    if report.replaced:
        parts.append(f"{report.replaced} lines of interrupted runs were written again.")
    parts += ["## Summary", f"```json\n{json.dumps(figures, separators=(',', ':'))}\n```"]
    return "\n\n".join(parts) + "\n"


def _experiment(report: ExperimentReport, plots: str) -> list[str]:
    parts = [
        f"## {escaped(report.name)}",
        _facts(report),
        _LEGEND,
    ]
    temperatures = sorted({s.temperature for row in report.rows for s in row.scores})
    for temperature in temperatures:
        parts += [f"### {_heading(temperature)}", _scores(report, temperature)]
    if any(family.comparisons or family.unpaired for family in report.families):
        parts += ["### Paired tests", _TESTS]
    for family in report.families:
        parts += _family(family)
    if report.silos:
        parts += ["### Silo by silo", _SILOS]
    for silos in report.silos:
        parts += _silos(silos)
    if report.guarded:
        parts += ["### Vetoes", _GUARDED, _guarded(report.guarded)]
    parts += [f"![{escaped(name)}]({plots}/{name})" for name in report.plots]
    return parts


def _guarded(runs: Sequence[GuardedRun]) -> str:
    lines = [
        [
            escaped(run.setting),
            str(run.seed),
            ", ".join(
                f"{number}: {100 * run.vetoes[number]:.0f} %" for number in sorted(run.vetoes)
            ),
            ", ".join(f"{number} → {run.went_back[number]}" for number in sorted(run.went_back))
            or _DASH,
        ]
        for run in runs
    ]
    return _table(["setting", "seed", "vetoes by round", "went back"], lines)


def _facts(report: ExperimentReport) -> str:
    return (
        f"{len(report.rows)} rows; {report.episodes:,} explored episodes and "
        f"{report.wall_s / 60:.1f} minutes of wall time over all runs. "
        f"Environments in the averages: {', '.join(map(escaped, report.counted))}."
        f"{_panels(report)}"
    )


def _panels(report: ExperimentReport) -> str:
    """What was judged on, where the rows say it; they do since panels have digests."""
    if not report.panels:
        return ""
    told = "; ".join(
        f"{escaped(panel.environment)}, {panel.tasks} tasks, SHA-256 `{panel.sha256}`"
        + ("" if not panel.settings else f" ({', '.join(map(escaped, panel.settings))})")
        for panel in report.panels
    )
    return f" Judged on: {told}."


def _scores(report: ExperimentReport, temperature: float) -> str:
    names = sorted(
        {
            name
            for row in report.rows
            for score in row.scores
            if score.temperature == temperature
            for name in score.environments
        }
    )
    lines = []
    for row in report.rows:
        score = next(s for s in row.scores if s.temperature == temperature)
        lines.append(
            [
                escaped(row.row),
                ", ".join(map(str, row.seeds)),
                ", ".join(map(str, row.rounds)),
                *[_rate(score.environments.get(name)) for name in names],
                _rate(score.micro),
                _rate(score.macro),
                _DASH if score.macro is None else _tasks(score.macro.by_task, sign=""),
                _DASH if score.macro is None else _spread(score.macro.spread, sign=""),
            ]
        )
    head = ["setting", "seeds", "rounds", *map(escaped, names), "micro", "macro"]
    return _table([*head, "macro over tasks", "macro over seeds"], lines)


def _family(family: Family) -> list[str]:
    if not family.comparisons and not family.unpaired:
        return []
    lines = [
        [
            escaped(found.second),
            ", ".join(map(str, found.macro.seeds)),
            f"{found.counts.tasks:,}",
            str(found.counts.only_first),
            str(found.counts.only_second),
            _points(found.macro),
            _tasks(found.macro.by_task),
            _spread(found.macro.spread),
            _p(found.p_value),
            _p(adjusted),
        ]
        for found, adjusted in zip(family.comparisons, family.adjusted, strict=True)
    ]
    head = ["against", "seeds", "tasks", "b", "c", "difference", "over tasks", "over seeds"]
    head += ["p", "p (Holm)"]
    parts = [f"Reference {escaped(family.reference)}, {_heading(family.temperature).lower()}:"]
    if lines:
        parts.append(_table(head, lines))
    return parts + [f"Not compared: {escaped(reason)}." for reason in family.unpaired]


def _silos(report: SilosReport) -> list[str]:
    parts = [f"{_heading(report.temperature)}, alone is {escaped(report.alone.setting)}:"]
    means = [
        [
            escaped(found.option.name),
            *[_rate(found.means[group]) for group in GROUPS],
            *[text for gain in found.gains.values() for text in _difference(gain)],
            *_difference(min(found.differences, key=lambda one: one.value, default=None)),
        ]
        for found in report.options
    ]
    parts.append(
        _table(
            [
                *["mean over silos", "own", "unseen", "other"],
                *["own, to alone", "over tasks", "over seeds"],
                *["unseen, to alone", "over tasks", "over seeds"],
                *["worst silo, own, to alone", "over tasks", "over seeds"],
            ],
            means,
        )
    )
    if report.worst is not None:
        parts.append(
            f"`worst_silo_vs_alone`: {escaped(report.worst.option.name)}, the option whose worst "
            f"silo fares best (chosen after looking), silo {report.worst.silo}: "
            f"{_points(report.worst.difference)} points."
        )
    if any(found.option.scope == "chosen" for found in report.options):
        parts.append(_CHOSEN)
    lines = [
        [
            str(silo),
            escaped(report.families[at]),
            escaped(found.option.name),
            *[_rate(found.rates[group][at]) for group in GROUPS],
            *_difference(found.differences[at] if found.differences else None),
        ]
        for at, silo in enumerate(report.silos)
        for found in report.options
        if found.candidate or found.option == report.alone
    ]
    head = ["silo", "family", "option", "own", "unseen", "other", "to alone", "over tasks"]
    head += ["over seeds"]
    return [*parts, _table(head, lines)]


def _over_experiments(found: Sequence[Pooled]) -> str:
    lines = [
        [
            escaped(one.first),
            escaped(one.second),
            _heading(one.temperature).lower(),
            ", ".join(map(escaped, one.experiments)),
            ", ".join(map(str, one.seeds)),
            _spread(one.spread),
            _DASH if one.worst is None else f"silo {one.worst[0]}: {_spread(one.worst[1])}",
        ]
        for one in found
    ]
    head = ["first", "minus", "at", "experiments", "seeds", "difference", "worst silo"]
    return _table(head, lines)


def _heading(temperature: float) -> str:
    return "Greedy" if temperature == 0 else f"Temperature {temperature:g}"


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return _DASH
    interval, deviation = rate.interval, rate.spread.deviation
    text = f"{100 * interval.rate:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
    return text if math.isnan(deviation) else f"{text} s {100 * deviation:.1f}"


def _spread(spread: SeedSpread, sign: str = "+") -> str:
    def points(rate: float) -> str:
        return f"{100 * rate:{sign}.1f}"

    if not math.isnan(spread.low):
        return f"{points(spread.mean)} [{points(spread.low)}, {points(spread.high)}] t"
    if len(spread.rates) == 1:
        return "one seed"
    return f"{points(min(spread.rates))} to {points(max(spread.rates))}"


def _tasks(interval: TaskInterval | None, sign: str = "+") -> str:
    if interval is None:
        return _DASH
    return f"[{100 * interval.low:{sign}.1f}, {100 * interval.high:{sign}.1f}]"


def _difference(difference: Difference | None) -> tuple[str, str, str]:
    if difference is None:
        return _DASH, _DASH, _DASH
    return _points(difference), _tasks(difference.by_task), _spread(difference.spread)


def _points(difference: Difference) -> str:
    return (
        f"{100 * difference.value:+.1f} [{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"
    )


def _p(value: float) -> str:
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
