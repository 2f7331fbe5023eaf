"""The panel of orchestration: success, bytes, simulated time and tokens, setting by setting.

    chosen    of a kind of candidates (constants, schedules), the tuning's: those whose mean success
              is within ``MARGIN`` of the kind's best; of them the least simulated time, then the
              fewest bytes up, then the name
    tables    each figure's mean over seeds with Student's t at 95 %, and paired by seed its
              difference to the chosen constant; success also with its interval over tasks
    replay    every decision of every finished run made again (``federation/selection/decided.py``);
              equal where each comes out as it was recorded and each round of each run has one

Success is macro over environments after the last round; the panel's own at temperature 1.

Invariants: only finished runs count; what of the plan did not run is named, in words and in the
line. No setting is compared at seeds that the chosen constant lacks.

Covered: one directory of results and one of tuning. Not covered: tests; with three or five seeds an
interval is all there is.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Final

from federation.errors import AdviceError
from federation.selection.decided import Decided, read_decisions
from lab.report.by_task import ByTask, TaskInterval
from lab.report.errors import ReportError, UnpairedError
from lab.report.interval import SeedSpread, over_seeds
from lab.report.lines import EvalLine
from lab.report.results import Experiment, load_results

__all__ = [
    "BOUND",
    "CANDIDATES",
    "FIGURES",
    "Panel",
    "Replayed",
    "chosen",
    "load_panel",
    "render_panel",
    "replayed",
]

DECISIONS: Final = "decisions.jsonl"
PACKED_DECISIONS: Final = f"{DECISIONS}.gz"
"""Of all runs, beside packed results."""
MARGIN: Final = 2.0
"""Points."""
CANDIDATES: Final = ("constant", "schedule")
"""Kinds of which the tuning chooses one."""
BOUND: Final = "oracle"
"""The kind of the bounds; the one that is run is named as the chosen constant."""
FIVE_SEEDS: Final = ("constant", "schedule", "uniform-k", "advised-count")
"""Kinds that are run at every seed of the file; the others at the first three."""
THREE: Final = 3
FIGURES: Final = (
    "success",
    "greedy",
    "asked",
    "lost",
    "up_mb",
    "total_mb",
    "hours",
    "tokens",
)
"""Of a run, in the order of the tables."""
_WORDS: Final = {
    "success": "success, %",
    "greedy": "greedy, %",
    "asked": "asked a round",
    "lost": "rounds lost",
    "up_mb": "MB up",
    "total_mb": "MB in all",
    "hours": "hours",
    "tokens": "tokens",
}
_DIGITS: Final = {"tokens": 0, "lost": 1, "asked": 1, "up_mb": 2}
_OVER_TASKS: Final = (
    "The 95 % interval of a bootstrap that draws whole tasks, each with its outcomes at all seeds: "
    "these adapters on other tasks. The tables above speak of other seeds on these tasks."
)
_SUCCESSES: Final = ("success", "greedy")
_HOUR_S: Final = 3600
_MB: Final = 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """Decisions made again."""

    equal: int
    other: tuple[str, ...]
    """Places of those that came out otherwise, of files that are none, and of rounds without."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Figures of every finished run: of a setting, of a seed, by name."""

    name: str
    """The experiment's."""
    runs: Mapping[str, Mapping[int, Mapping[str, float]]]
    judged: Mapping[str, Mapping[int, Mapping[str, Sequence[EvalLine]]]]
    """What ``success`` and ``greedy`` are worked out from, of a setting, of a seed."""

    def spread(self, setting: str, figure: str) -> SeedSpread:
        """Over the seeds of a setting."""
        return over_seeds([self.runs[setting][seed][figure] for seed in sorted(self.runs[setting])])

    def difference(self, setting: str, other: str, figure: str) -> SeedSpread | None:
        """Setting minus the other at the seeds that both have; None where there are none."""
        seeds = sorted(self.runs[setting].keys() & self.runs.get(other, {}).keys())
        if not seeds:
            return None
        return over_seeds(
            [self.runs[setting][s][figure] - self.runs[other][s][figure] for s in seeds]
        )

    def over_tasks(self, setting: str, figure: str) -> TaskInterval | None:
        """The interval of a success over tasks, each counted once; as a rate."""
        found = ByTask()
        for lines in self.judged[setting].values():
            for line in lines[figure]:
                found.add(line.environment, line.environment, line.label, line.outcomes)
        return found.rate()

    def difference_over_tasks(self, setting: str, other: str, figure: str) -> TaskInterval | None:
        """The same of setting minus the other, at the seeds that both have; None without."""
        found = ByTask()
        for seed in sorted(self.judged[setting].keys() & self.judged.get(other, {}).keys()):
            second = {
                (line.environment, line.label): line.outcomes
                for line in self.judged[other][seed][figure]
            }
            for line in self.judged[setting][seed][figure]:
                outcomes = second.get((line.environment, line.label), "")
                if len(outcomes) != len(line.outcomes):
                    raise UnpairedError(
                        f"{setting} and {other} were not judged on the same tasks of "
                        f"{line.environment} at seed {seed}"
                    )
                found.add_pair(
                    line.environment, line.environment, line.label, line.outcomes, outcomes
                )
        return found.difference()


def load_panel(directory: Path) -> Panel:
    """Read the finished runs of a directory.

    Raises:
        ReportError: There are none, or they are not of simulated rounds.
    """
    results = load_results([directory])
    if len(results.experiments) != 1:
        raise ReportError(f"{directory} has the runs of {len(results.experiments)} experiments")
    (experiment,) = results.experiments
    runs: dict[str, dict[int, dict[str, float]]] = {}
    judged: dict[str, dict[int, dict[str, Sequence[EvalLine]]]] = {}
    for run in experiment.runs:
        lines: dict[str, Sequence[EvalLine]] = {
            figure: _judged(experiment, run.setting, run.seed, greedy=figure == "greedy")
            for figure in _SUCCESSES
        }
        judged.setdefault(run.setting, {})[run.seed] = lines
        runs.setdefault(run.setting, {})[run.seed] = _figures(
            experiment, run.setting, run.seed, lines
        )
    return Panel(name=experiment.name, runs=runs, judged=judged)


def chosen(panel: Panel, kind: str) -> str:
    """The candidate of a kind that the rule of the module takes.

    Raises:
        ReportError: No candidate of it has run, or they have not run at the same seeds.
    """
    names = [name for name in panel.runs if _kind(name) == kind]
    if not names:
        raise ReportError(f"no {kind} of {panel.name} is finished: nothing can be chosen")
    if len({frozenset(panel.runs[name]) for name in names}) > 1:
        raise ReportError(f"the {kind}s of {panel.name} have other seeds: finish the tuning first")

    def of(name: str, figure: str) -> float:
        return panel.spread(name, figure).mean

    best = max(of(name, "success") for name in names)
    near = [name for name in names if of(name, "success") >= best - MARGIN]
    return min(near, key=lambda name: (of(name, "hours"), of(name, "up_mb"), name))


def replayed(
    directory: Path, experiment: str, panel_rounds: Mapping[tuple[str, int], int]
) -> Replayed:
    """Make every decision of these runs again, each of so many rounds.

    Raises:
        ReportError: The packed decisions cannot be read.
    """
    packed = directory / PACKED_DECISIONS
    kept = _by_run(packed) if packed.exists() else None
    equal, other = 0, []
    for (setting, seed), rounds in sorted(panel_rounds.items()):
        seen = []
        try:
            if kept is not None:
                recorded = kept.get(f"{experiment}-{setting}-{seed}", [])
            else:
                path = directory / "runs" / f"{setting}-{seed}" / DECISIONS
                recorded = list(read_decisions(path.read_bytes().splitlines()))
            for decided in recorded:
                seen.append(decided.round)
                if asyncio.run(decided.again()) == decided.choice:
                    equal += 1
                else:
                    other.append(f"{setting} seed {seed} round {decided.round}")
        except (OSError, AdviceError) as error:
            other.append(f"{setting} seed {seed}: {error}")
            continue
        if seen != list(range(1, rounds + 1)):
            other.append(f"{setting} seed {seed}: decisions of rounds {seen} of {rounds}")
    return Replayed(equal=equal, other=tuple(other))


def render_panel(
    directory: Path, tuning: Path, *, planned: Mapping[str, Sequence[int]] | None = None
) -> str:
    """The tables, what did not run, and as the last line the figures as JSON.

    ``planned`` are the settings of the experiment's file with its seeds.

    Raises:
        ReportError: The results cannot be read, or nothing was chosen.
    """
    searched, panel = load_panel(tuning), load_panel(directory)
    constant, schedule = (chosen(searched, kind) for kind in CANDIDATES)
    rounds = {
        (run.setting, run.seed): run.rounds for run in load_results([directory]).experiments[0].runs
    }
    again = replayed(directory, panel.name, rounds)
    missing = _missing(panel, planned or {}, constant=constant, schedule=schedule)
    lines = [
        f"## {panel.name}",
        "",
        f"{len(rounds)} runs. The tuning chose `{constant}` and `{schedule}`.",
        "",
        "### Tuning",
        "",
        *_table(searched, FIGURES),
        "",
        "### Panel",
        "",
        "Means over seeds; `[low, high]` is Student's t at 95 % over seeds, from three on.",
        "",
        *_table(panel, FIGURES),
        "",
        f"### Difference to `{constant}`, paired by seed",
        "",
        *_differences(panel, constant),
        "",
        "### Success over tasks",
        "",
        _OVER_TASKS,
        "",
        *_over_tasks(panel, constant),
        "",
        "### What did not run",
        "",
        *([f"* {line}" for line in missing] or ["Nothing of what was planned."]),
        "",
        "### Decisions made again",
        "",
        f"{again.equal} equal, {len(again.other)} not.",
        *(f"* {line}" for line in again.other),
        "",
    ]
    figures = {
        "best_constant": constant,
        "tuned_schedule": schedule,
        "settings": {name: _means(panel, name) for name in panel.runs},
        "differences": {
            name: {
                figure: _interval(found)
                for figure in FIGURES
                if (found := panel.difference(name, constant, figure)) is not None
            }
            for name in panel.runs
            if name != constant
        },
        "not_run": missing,
        "decisions": again.equal + len(again.other),
        "replay_equal": not again.other and again.equal > 0,
    }
    lines += ["```", json.dumps(figures, sort_keys=True, allow_nan=False), "```", ""]
    return "\n".join(lines)


def _by_run(path: Path) -> dict[str, list[Decided]]:
    found: dict[str, list[Decided]] = {}
    try:
        with gzip.open(path) as lines:
            for decided in read_decisions(lines):
                found.setdefault(decided.run_id, []).append(decided)
    except (OSError, EOFError, zlib.error, AdviceError) as error:
        raise ReportError(f"{path}: {error}") from error
    return found


def _figures(
    experiment: Experiment, setting: str, seed: int, judged: Mapping[str, Sequence[EvalLine]]
) -> dict[str, float]:
    told = [
        line.simulated for line in experiment.rounds if (line.setting, line.seed) == (setting, seed)
    ]
    rounds = [one for one in told if one is not None]
    if not rounds or len(rounds) < len(told):
        raise ReportError(f"{setting}, seed {seed}: its rounds were not in simulated time")
    up = sum(one.upload_bytes for one in rounds)
    return {
        **{figure: _success(lines) for figure, lines in judged.items()},
        "asked": mean(one.asked for one in rounds),
        "lost": sum(one.lost for one in rounds),
        "up_mb": up / _MB,
        "total_mb": (up + sum(one.download_bytes for one in rounds)) / _MB,
        "hours": sum(one.seconds for one in rounds) / _HOUR_S,
        "tokens": sum(one.tokens for one in rounds),
    }


def _judged(
    experiment: Experiment, setting: str, seed: int, *, greedy: bool
) -> tuple[EvalLine, ...]:
    """What was judged last."""
    lines = [
        line
        for line in experiment.evals
        if (line.setting, line.seed, line.silo) == (setting, seed, -1)
        and (line.temperature == 0) is greedy
    ]
    if not lines:
        raise ReportError(f"{setting}, seed {seed}: it was not judged at both temperatures")
    last = max(line.round for line in lines)
    return tuple(line for line in lines if line.round == last)


def _success(lines: Sequence[EvalLine]) -> float:
    """In points."""
    outcomes: dict[str, str] = {}
    for line in lines:
        outcomes[line.environment] = outcomes.get(line.environment, "") + line.outcomes
    return 100 * mean(found.count("1") / len(found) for found in outcomes.values())


def _kind(name: str) -> str:
    first = name.split("-", maxsplit=1)[0]
    return first if first in (*CANDIDATES, BOUND) else name


def _missing(
    panel: Panel, planned: Mapping[str, Sequence[int]], *, constant: str, schedule: str
) -> list[str]:
    bound = f"{BOUND}{constant.removeprefix(CANDIDATES[0])}"
    lines = []
    for name, seeds in planned.items():
        kind = _kind(name)
        if kind in (*CANDIDATES, BOUND) and name not in (constant, schedule, bound):
            continue
        wanted = seeds if kind in FIVE_SEEDS else seeds[:THREE]
        if absent := [seed for seed in wanted if seed not in panel.runs.get(name, {})]:
            lines.append(f"{name}: seeds {', '.join(map(str, absent))}")
    return lines


def _table(panel: Panel, figures: Iterable[str]) -> list[str]:
    figures = tuple(figures)
    rows = [
        f"| {name} | {', '.join(str(seed) for seed in sorted(seeds))} | "
        + " | ".join(_shown(panel.spread(name, figure), figure) for figure in figures)
        + " |"
        for name, seeds in panel.runs.items()
    ]
    return [*_head(("setting", "seeds", *(_WORDS[figure] for figure in figures))), *rows]


def _differences(panel: Panel, constant: str) -> list[str]:
    rows = []
    for name in panel.runs:
        if name == constant:
            continue
        found = [panel.difference(name, constant, figure) for figure in FIGURES]
        shown = [
            "–" if one is None else _shown(one, figure, sign="+")
            for one, figure in zip(found, FIGURES, strict=True)
        ]
        both = len(panel.runs[name].keys() & panel.runs.get(constant, {}).keys())
        rows.append(f"| {name} | {both} | " + " | ".join(shown) + " |")
    return [*_head(("setting", "seeds", *(_WORDS[figure] for figure in FIGURES))), *rows]


def _over_tasks(panel: Panel, constant: str) -> list[str]:
    names = [name for figure in _SUCCESSES for name in (_WORDS[figure], f"− `{constant}`")]
    rows = []
    for name in panel.runs:
        cells = []
        for figure in _SUCCESSES:
            cells.append(_tasks(panel.over_tasks(name, figure)))
            other = None
            if name != constant:
                other = panel.difference_over_tasks(name, constant, figure)
            cells.append(_tasks(other, sign="+"))
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*_head(("setting", *names)), *rows]


def _tasks(found: TaskInterval | None, *, sign: str = "") -> str:
    if found is None:
        return "–"
    value, low, high = (f"{100 * end:{sign}.1f}" for end in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"


def _head(names: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]


def _shown(spread: SeedSpread, figure: str, *, sign: str = "") -> str:
    form = f"{sign},.{_DIGITS.get(figure, 1)}f"
    text = format(spread.mean, form)
    if math.isnan(spread.low):
        return text
    return f"{text} [{format(spread.low, form)}, {format(spread.high, form)}]"


def _means(panel: Panel, name: str) -> dict[str, Any]:
    return {
        "seeds": sorted(panel.runs[name]),
        **{figure: _interval(panel.spread(name, figure)) for figure in FIGURES},
    }


def _interval(spread: SeedSpread) -> list[float | None]:
    """Mean, low, high; null where three seeds are not there."""
    return [
        None if math.isnan(value) else round(value, 4)
        for value in (spread.mean, spread.low, spread.high)
    ]
