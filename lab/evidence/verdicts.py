"""What became of a registration: each hypothesis, and everything that departs from it.

    reached   all registered seeds ran; the mean over seeds lies beyond the target, on the
              registered side; its p-value, adjusted by Holm over all registered hypotheses, is at
              most 5 %; and the interval over tasks lies beyond the target too
    missed    all registered seeds ran, and one of these does not hold
    not run   a registered seed of one of its settings is missing

p is that of Student's two-sided t over the seeds' paired differences against the target,
t = (x̄ − target)/(s/√S) with S − 1 degrees (Student, Biometrika 6, 1908). So a target has to be
reached for other trainings on these tasks and for these trainings on other tasks; no interval here
speaks of both at once.

Invariants:
    1. Only runs that were registered, with the registered digest and on the registered panels,
       count for a hypothesis. What is left out is named.
    2. A hypothesis that did not run keeps its place in the correction, with p = 1.
    3. Fewer seeds than were registered are never a verdict, however they look.
    4. Differences that are equal at all seeds have no t test: p is 1, and never 0.

Covered: results of one experiment in any number of directories. Not covered: whether the runs were
made after the registration was committed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from scipy.special import stdtr

from federation.text import escaped
from lab.evidence.errors import FigureError
from lab.evidence.figure import difference_of
from lab.evidence.registration import Hypothesis, Registration
from lab.report.interval import SeedSpread
from lab.report.lines import RunLine
from lab.report.paired import Difference, holm
from lab.report.results import Experiment, Results

__all__ = ["Found", "Judgement", "Verdict", "judged_by", "render_judgement"]

_LEVEL: Final = 0.05
_DASH: Final = "–"


class Verdict(StrEnum):
    """What became of a hypothesis."""

    REACHED = "reached"
    MISSED = "missed"
    NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One hypothesis with what was found."""

    name: str
    setting: str
    reference: str
    figure: str
    """Where success is read, in words."""
    direction: str
    target: float
    """A rate."""
    difference: Difference | None
    """Of the registered runs that are finished; None where there is none."""
    p_value: float
    """Against the target; 1 where it did not run."""
    adjusted: float
    """By Holm, over all registered hypotheses."""
    verdict: Verdict
    reason: str
    """Why it did not run; else empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Results beside what was registered of them."""

    name: str
    digest: str
    purpose: str
    """What the panels are for; empty for the first tasks of the split."""
    panels: Mapping[str, Mapping[str, Any]]
    """By environment: how many tasks, and their digest."""
    rule: str
    """The stopping rule."""
    planned: int
    """Runs of settings that hypotheses name."""
    counted: int
    """Of those, finished as they were registered."""
    found: tuple[Found, ...]
    """In the order of the registration."""
    deviations: tuple[str, ...]
    """One line each."""


def judged_by(registration: Registration, results: Results) -> Judgement:
    """Hold results to a registration."""
    experiment = next(
        (one for one in results.experiments if one.name == registration.experiment), None
    )
    runs = () if experiment is None else experiment.runs
    counted = {(run.setting, run.seed) for run in runs if not _other(registration, run)}
    held = None if experiment is None else _only(experiment, counted)
    found = [_found(one, registration, held) for one in registration.hypothesis]
    adjusted = holm([one.p_value for one in found])
    return Judgement(
        name=registration.name,
        digest=registration.digest,
        purpose=registration.purpose or "",
        panels={name: panel.model_dump() for name, panel in registration.panels.items()},
        rule=registration.stopping.rule,
        planned=registration.stopping.runs,
        counted=sum(setting in registration.primary for setting, _ in counted),
        found=tuple(_with_verdict(one, p) for one, p in zip(found, adjusted, strict=True)),
        deviations=tuple(_deviations(registration, results, runs, counted)),
    )


def render_judgement(judgement: Judgement) -> list[str]:
    """The parts of the Markdown that come first in a report."""
    lines = [
        [
            escaped(one.name),
            f"{escaped(one.setting)} − {escaped(one.reference)}",
            one.figure,
            f"{one.direction} {100 * one.target:+.1f}",
            *_shown(one.difference),
            _DASH if one.verdict is Verdict.NOT_RUN else f"{one.p_value:.4f}",
            _DASH if one.verdict is Verdict.NOT_RUN else f"{one.adjusted:.4f}",
            f"**{one.verdict.value}**" + (f": {escaped(one.reason)}" if one.reason else ""),
        ]
        for one in judgement.found
    ]
    head = ["hypothesis", "difference", "figure", "target", "mean", "over tasks", "over seeds"]
    head += ["p", "p (Holm)", "verdict"]
    told = [f"* {escaped(line)}" for line in judgement.deviations] or ["* None."]
    panels = "; ".join(
        f"{escaped(name)}, {panel['tasks']} tasks, SHA-256 `{panel['sha256']}`"
        for name, panel in judgement.panels.items()
    )
    return [
        f"## Registered: {escaped(judgement.name)}",
        (
            f"Digest `{judgement.digest}`. {judgement.counted} of {judgement.planned} registered "
            f"runs are finished as they were registered. Stopping rule: {escaped(judgement.rule)}"
        ),
        f"Panels{_purpose(judgement.purpose)}: {panels}.",
        _WORDS,
        "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *lines]),
        "Departs from what was registered:",
        "\n".join(told),
    ]


_WORDS: Final = (
    "Points. *Mean* is over the registered seeds; *over tasks* is the 95 % interval of the "
    "bootstrap of whole tasks (these trainings, other tasks); *over seeds* is Student's t at 95 % "
    "(other trainings, these tasks). *p* is Student's two-sided t over seeds against the target, "
    "adjusted by Holm over all registered hypotheses. **Reached**: all registered seeds ran, the "
    "mean lies beyond the target on the registered side, the adjusted p is at most 0.05, and the "
    "interval over tasks lies beyond the target. Fewer seeds are no verdict."
)


def _purpose(purpose: str) -> str:
    if purpose:
        return f" of the purpose *{purpose}*"
    return " without a purpose, on which settings may have been chosen"


def _other(registration: Registration, run: RunLine) -> str:
    """How a finished run is not one that was registered; empty where it is."""
    registered = registration.sha256_of(run.setting, run.seed)
    if registered is None:
        return "was not registered"
    if run.config_sha256 != registered:
        return "has other values than were registered"
    for name, panel in registration.panels.items():
        found = run.panels.get(name)
        if found is None:
            return f"does not say which tasks of {name} it was judged on"
        if (found.tasks, found.sha256) != (panel.tasks, panel.sha256):
            return f"was judged on another panel of {name} than was registered"
    return ""


def _only(experiment: Experiment, counted: set[tuple[str, int]]) -> Experiment:
    return replace(
        experiment,
        runs=tuple(one for one in experiment.runs if (one.setting, one.seed) in counted),
        rounds=tuple(one for one in experiment.rounds if (one.setting, one.seed) in counted),
        evals=tuple(one for one in experiment.evals if (one.setting, one.seed) in counted),
    )


def _found(hypothesis: Hypothesis, registration: Registration, held: Experiment | None) -> Found:
    difference, reason, p_value = None, "no registered run is finished", 1.0
    if held is not None and held.runs:
        try:
            difference = difference_of(
                held, hypothesis.setting, hypothesis.reference, hypothesis.figure
            )
            reason = ""
        except FigureError as error:
            reason = str(error)
    if difference is not None:
        missing = sorted({*registration.seeds} - {*difference.seeds})
        if missing:
            reason = f"seeds {', '.join(map(str, missing))} are missing"
        else:
            p_value = _p_value(difference.spread, hypothesis.target)
    return Found(
        name=hypothesis.name,
        setting=hypothesis.setting,
        reference=hypothesis.reference,
        figure=hypothesis.figure.words,
        direction=hypothesis.direction,
        target=hypothesis.target,
        difference=difference,
        p_value=p_value,
        adjusted=1.0,
        verdict=Verdict.NOT_RUN if reason else Verdict.MISSED,
        reason=reason,
    )


def _with_verdict(found: Found, adjusted: float) -> Found:
    """The same with its adjusted p, and reached where everything holds."""
    difference = found.difference
    if found.verdict is Verdict.NOT_RUN or difference is None or difference.by_task is None:
        return replace(found, adjusted=adjusted)
    sign = 1 if found.direction == "above" else -1
    nearest = min(
        sign * (end - found.target)
        for end in (difference.spread.mean, difference.by_task.low, difference.by_task.high)
    )
    reached = nearest > 0 and adjusted <= _LEVEL
    return replace(found, adjusted=adjusted, verdict=Verdict.REACHED if reached else Verdict.MISSED)


def _p_value(spread: SeedSpread, target: float) -> float:
    deviation = spread.deviation
    if math.isnan(deviation) or deviation <= 0:
        return 1.0
    seeds = len(spread.rates)
    t = (spread.mean - target) / (deviation / math.sqrt(seeds))
    return min(1.0, 2 * float(stdtr(seeds - 1, -abs(t))))


def _deviations(
    registration: Registration,
    results: Results,
    runs: Sequence[RunLine],
    counted: set[tuple[str, int]],
) -> Iterator[str]:
    for setting in registration.primary:
        finished = {run.seed for run in runs if run.setting == setting}
        if missing := [seed for seed in registration.seeds if seed not in finished]:
            yield f"not run: {setting} at seeds {', '.join(map(str, missing))}"
    named = {*registration.primary, *registration.secondary}
    for run in runs:
        if (run.setting, run.seed) in counted:
            continue
        where = f"{run.setting} at seed {run.seed}"
        if run.setting not in named:
            yield f"another setting: {where} is in no hypothesis and not secondary"
        elif run.seed not in registration.seeds:
            yield f"another seed: {where} counts for no hypothesis"
        else:
            yield f"left out: {where} {_other(registration, run)}"
    for experiment in results.experiments:
        if experiment.name != registration.experiment:
            yield f"another experiment: nothing was registered of {experiment.name}"


def _shown(difference: Difference | None) -> tuple[str, str, str]:
    if difference is None:
        return _DASH, _DASH, _DASH
    spread, tasks = difference.spread, difference.by_task
    seeds = "no interval below three seeds"
    if not math.isnan(spread.low):
        seeds = _interval(spread.low, spread.high)
    return (
        f"{100 * spread.mean:+.1f}",
        _DASH if tasks is None else _interval(tasks.low, tasks.high),
        seeds,
    )


def _interval(low: float, high: float) -> str:
    return f"[{100 * low:+.1f}, {100 * high:+.1f}]"
