"""How often each setting succeeds: per environment, micro and macro, and against another setting.

A *row* is one setting and one kind of adapter. Its tasks are those judged for all (silo -1); a row
without such lines takes every silo's adapter on that silo's own tasks, pooled. Micro pools all
tasks; macro is the mean over environments, each counting the same. Environments of which no silo
owns a task (plugged in for judging only) are shown but stay out of both averages.

Covered: any number of seeds, environments and temperatures. Not covered: silo by silo (`silos.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lab.report.by_task import ByTask, TaskInterval
from lab.report.errors import UnpairedError
from lab.report.interval import SeedSpread, Stratum, combined, over_seeds
from lab.report.lines import EvalLine
from lab.report.paired import Difference, Discordance, mcnemar, paired_difference
from lab.report.results import Experiment
from lab.wilson import Interval, wilson

__all__ = [
    "Comparison",
    "Rate",
    "Row",
    "Score",
    "compare",
    "counted_environments",
    "rows_of",
    "score",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One setting and one kind of adapter."""

    name: str
    """Unique in the experiment: the setting, with the scope where it is not its global adapter."""
    setting: str
    """The row of the experiment file."""
    method: str
    """What it runs."""
    scope: str
    """global, personal, chosen or alone."""
    lines: tuple[EvalLine, ...]
    """The tasks it is judged on, of every judged round."""

    @property
    def rounds(self) -> tuple[int, ...]:
        """The judged rounds, ascending."""
        return tuple(sorted({line.round for line in self.lines}))

    def final(self) -> tuple[EvalLine, ...]:
        """The lines of each seed's last judged round."""
        last: dict[int, int] = {}
        for line in self.lines:
            last[line.seed] = max(last.get(line.seed, 0), line.round)
        return tuple(line for line in self.lines if line.round == last[line.seed])

    def at(self, round_number: int) -> tuple[EvalLine, ...]:
        """The lines of one round."""
        return tuple(line for line in self.lines if line.round == round_number)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """A success rate with both kinds of uncertainty."""

    interval: Interval
    """Over tasks, a task at each seed counted as another one: Wilson, or `interval.combined` for a
    macro average."""
    spread: SeedSpread
    """Over seeds."""
    by_task: TaskInterval | None = None
    """Over tasks, each counted once (`by_task.py`): of a mean over environments or silos."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """One row at one temperature."""

    temperature: float
    """Of sampling."""
    environments: Mapping[str, Rate]
    """By environment."""
    micro: Rate | None
    """All counted tasks pooled; None if a counted environment was not judged at every seed."""
    macro: Rate | None
    """The mean over counted environments; None as for micro."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One row against another on the same tasks at equal seeds."""

    first: str
    second: str
    counts: Discordance
    """Pooled over environments and seeds."""
    p_value: float
    """Exact McNemar."""
    macro: Difference
    """First minus second, mean over environments, at the seeds that both have."""


def rows_of(experiment: Experiment) -> tuple[Row, ...]:
    """The rows of an experiment, in the order of its settings."""
    rows = []
    for setting in experiment.settings:
        lines = [line for line in experiment.evals if line.setting == setting]
        scopes = dict.fromkeys(line.scope for line in lines)
        for scope in scopes:
            of_scope = [line for line in lines if line.scope == scope]
            common = [line for line in of_scope if line.silo < 0]
            tasks = common or [line for line in of_scope if line.own]
            whole = len(scopes) == 1 or scope == "global"
            if tasks:
                rows.append(
                    Row(
                        name=setting if whole else f"{setting} ({scope})",
                        setting=setting,
                        method=experiment.method_of(setting),
                        scope=scope,
                        lines=tuple(tasks),
                    )
                )
    return tuple(rows)


def counted_environments(experiment: Experiment) -> tuple[str, ...]:
    """The environments that count in the averages, by name.

    Those of which some silo owns tasks; all of them if no line says who owns what.
    """
    owned = {line.environment for line in experiment.evals if line.own}
    return tuple(sorted(owned or {line.environment for line in experiment.evals}))


def score(lines: Sequence[EvalLine], temperature: float, counted: Sequence[str]) -> Score:
    """Rates at one temperature, from the lines of one row and one round for each seed.

    ``counted`` are the environments that count in the averages.
    """
    taken = [line for line in lines if line.temperature == temperature]
    by_environment = {
        name: _by_seed(line for line in taken if line.environment == name)
        for name in sorted({line.environment for line in taken})
    }
    seeds = sorted({line.seed for line in taken})
    complete = bool(seeds) and all(
        set(by_environment.get(name, ())) == set(seeds) for name in counted
    )
    micro = macro = None
    if complete:
        micro = _pooled(_by_seed(line for line in taken if line.environment in counted))
        macro = Rate(
            interval=combined(
                [_stratum(1 / len(counted), by_environment[name].values()) for name in counted]
            ),
            spread=over_seeds(
                [
                    sum(_ratio(by_environment[name][seed]) for name in counted) / len(counted)
                    for seed in seeds
                ]
            ),
            by_task=_by_task(line for line in taken if line.environment in counted),
        )
    return Score(
        temperature=temperature,
        environments={name: _pooled(cell) for name, cell in by_environment.items()},
        micro=micro,
        macro=macro,
    )


def compare(first: Row, second: Row, temperature: float, counted: Sequence[str]) -> Comparison:
    """Two rows on the tasks that both were judged on, at their last rounds.

    Raises:
        UnpairedError: They share no task of a counted environment at a seed, or not in the same
            number.
    """
    empty = Discordance(tasks=0, only_first=0, only_second=0)
    by_seed: dict[int, dict[str, Discordance]] = defaultdict(dict)
    one, other = _tasks(first, temperature), _tasks(second, temperature)
    by_task = ByTask()
    for key in sorted(one.keys() & other.keys()):
        seed, environment, label = key
        for a, b in _partners(one[key], other[key]):
            if len(a) != len(b):
                raise UnpairedError(
                    f"{first.name} and {second.name} have {len(a)} and {len(b)} tasks in "
                    f"{environment} at seed {seed}"
                )
            if environment in counted:
                by_task.add_pair(environment, environment, label, a, b)
            found = by_seed[seed]
            found[environment] = found.get(environment, empty) + Discordance.of(a, b)
    shared = [set(found) for found in by_seed.values()] or [set[str]()]
    missing = [name for name in counted if not all(name in found for found in shared)]
    if missing:
        raise UnpairedError(f"{first.name} and {second.name} share no task in {', '.join(missing)}")
    parts = {seed: [found[name] for name in counted] for seed, found in by_seed.items()}
    counts = sum((part for strata in parts.values() for part in strata), empty)
    return Comparison(
        first=first.name,
        second=second.name,
        counts=counts,
        p_value=mcnemar(counts),
        macro=paired_difference(parts, by_task.difference()),
    )


_Task = tuple[int, str, str]


def _tasks(row: Row, temperature: float) -> dict[_Task, dict[int, str]]:
    found: dict[_Task, dict[int, str]] = defaultdict(dict)
    for line in row.final():
        if line.temperature == temperature:
            found[line.seed, line.environment, line.label][line.silo] = line.outcomes
    return found


def _partners(one: Mapping[int, str], other: Mapping[int, str]) -> list[tuple[str, str]]:
    """An adapter of all meets every silo's; silos' adapters meet those of the same silo."""
    if -1 in one:
        return [(one[-1], outcomes) for outcomes in other.values()]
    if -1 in other:
        return [(outcomes, other[-1]) for outcomes in one.values()]
    return [(one[silo], other[silo]) for silo in one.keys() & other.keys()]


def _by_task(lines: Iterable[EvalLine]) -> TaskInterval | None:
    """The mean over environments, tasks counted once."""
    found = ByTask()
    for line in lines:
        found.add(line.environment, line.environment, line.label, line.outcomes)
    return found.rate()


def _by_seed(lines: Iterable[EvalLine]) -> dict[int, tuple[int, int]]:
    """Successes and tasks of each seed, ascending."""
    found: dict[int, tuple[int, int]] = {}
    for line in lines:
        successes, tasks = found.get(line.seed, (0, 0))
        found[line.seed] = (
            successes + line.outcomes.count("1"),
            tasks + len(line.outcomes),
        )
    return dict(sorted(found.items()))


def _ratio(counts: tuple[int, int]) -> float:
    return counts[0] / counts[1]


def _stratum(weight: float, counts: Iterable[tuple[int, int]]) -> Stratum:
    pairs = list(counts)
    return Stratum(
        weight=weight, successes=sum(s for s, _ in pairs), tasks=sum(n for _, n in pairs)
    )


def _pooled(by_seed: Mapping[int, tuple[int, int]]) -> Rate:
    whole = _stratum(1.0, by_seed.values())
    return Rate(
        interval=wilson(whole.successes, whole.tasks),
        spread=over_seeds([_ratio(counts) for counts in by_seed.values()]),
    )
