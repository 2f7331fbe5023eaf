"""Silo by silo: own tasks, unseen tasks of its family, other families; alone and together.

An *option* is what a silo may use: a row of the experiment (`scores.Row`). It is judged for silo k
by lines of silo k, or, where it belongs to all and was judged once (silo -1), by the labels that
other lines call own, unseen or foreign to silo k at the same seed: those of its own setting, for
settings may deal tasks unlike, or, where it has none, of the others, which must agree then.

    own      the label is in the silo's shard
    unseen   of the silo's family, not in its shard
    other    of another family

Differences to alone are in rates, with the intervals of `paired.paired_difference`: `difference`
of one silo on own tasks, `worst` the least of them, `gain` the mean over silos. The minimum over
silos lies below the typical silo even where all are equal, so read it with its intervals.

Covered: shards that differ between seeds. Not covered: a silo with no own task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from lab.report.by_task import ByTask
from lab.report.errors import ReportError, UnpairedError
from lab.report.interval import SeedSpread, Stratum, combined, over_seeds
from lab.report.lines import EvalLine
from lab.report.paired import Difference, Discordance, paired_difference
from lab.report.results import Experiment
from lab.report.scores import Rate
from lab.wilson import wilson

__all__ = ["GROUPS", "Group", "Option", "Silos", "Worst"]

Group = Literal["own", "unseen", "other"]
GROUPS: Final[tuple[Group, ...]] = ("own", "unseen", "other")
_Label = tuple[str, str]


@dataclass(frozen=True, order=True, kw_only=True, slots=True)
class Option:
    """What a silo may use."""

    setting: str
    scope: str

    @property
    def name(self) -> str:
        """As the tables print it."""
        return f"{self.setting} ({self.scope})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Worst:
    """The silo that an option serves least, against alone."""

    option: Option
    silo: int
    difference: Difference
    """On own tasks, as a rate."""


class Silos:
    """The silos of one experiment at one temperature."""

    def __init__(self, experiment: Experiment, temperature: float) -> None:
        self._lines: dict[tuple[Option, int, int], list[EvalLine]] = defaultdict(list)
        self._groups: dict[tuple[str, int, int], dict[_Label, Group]] = defaultdict(dict)
        self.families: dict[int, set[str]] = defaultdict(set)
        """Of each silo."""
        last: dict[tuple[str, str, int], int] = {}
        for line in experiment.evals:
            run = (line.setting, line.scope, line.seed)
            last[run] = max(last.get(run, 0), line.round)
        for line in experiment.evals:
            if line.silo >= 0:
                self._place(line)
            final = line.round == last[line.setting, line.scope, line.seed]
            if final and line.temperature == temperature:
                option = Option(setting=line.setting, scope=line.scope)
                self._lines[option, line.seed, line.silo].append(line)
        settings = {name: at for at, name in enumerate(experiment.settings)}
        self.options = tuple(
            sorted(
                {option for option, _, _ in self._lines},
                key=lambda option: (settings[option.setting], option.scope),
            )
        )
        """In the order of the settings."""
        self.indices = tuple(sorted(self.families))
        """The silos, ascending."""

    @property
    def sharded(self) -> bool:
        """Whether some silo's family has tasks that the silo never saw."""
        return any("unseen" in groups.values() for groups in self._groups.values())

    def rate(self, option: Option, silo: int, group: Group) -> Rate | None:
        """One silo under one option; None if it was not judged there at every seed."""
        by_seed = [
            [_counts(line) for line in self._judged(option, seed, silo, group)]
            for seed in self._seeds(option)
        ]
        if not by_seed or not all(by_seed):
            return None
        totals = [(sum(s for s, _ in counts), sum(n for _, n in counts)) for counts in by_seed]
        return Rate(
            interval=wilson(sum(s for s, _ in totals), sum(n for _, n in totals)),
            spread=over_seeds([s / n for s, n in totals]),
        )

    def mean(self, option: Option, group: Group) -> Rate | None:
        """The mean over the silos that have such tasks; None if one of them was not judged.

        Tasks that one adapter was judged on for several silos are one stratum with their weights
        added, so that no task counts twice in the interval; seeds are pooled where they count the
        same, for Wilson's limits are skewed in small strata.
        """
        rates: list[float] = []
        strata: dict[tuple[object, ...], Stratum] = {}
        by_task, weights = ByTask(), dict[Hashable, float]()
        seeds = self._seeds(option)
        for seed in seeds:
            silos = [k for k in self.indices if group in self._owned(option, seed, k).values()]
            of_seed = 0.0
            for silo in silos:
                lines = self._judged(option, seed, silo, group)
                tasks = sum(len(line.outcomes) for line in lines)
                if not lines:
                    return None
                weights[seed, silo] = 1 / len(silos) / len(seeds)
                for line in lines:
                    by_task.add((seed, silo), line.environment, line.label, line.outcomes)
                    weight = len(line.outcomes) / tasks / len(silos)
                    of_seed += weight * line.outcomes.count("1") / len(line.outcomes)
                    self._add(strata, line, weight / len(seeds))
            if not silos:
                return None
            rates.append(of_seed)
        if not rates:
            return None
        spread: SeedSpread = over_seeds(rates)
        return Rate(
            interval=combined(_over_seeds(strata)),
            spread=spread,
            by_task=by_task.rate(weights),
        )

    def difference(self, option: Option, alone: Option, silo: int) -> Difference:
        """Option minus alone on the silo's own tasks, paired, over the seeds that both have.

        Raises:
            UnpairedError: They were not judged on the same tasks.
        """
        by_task = ByTask()
        counts = self._paired(option, alone, silo, "own", by_task)
        return paired_difference(
            {seed: [found] for seed, found in counts.items()}, by_task.difference()
        )

    def gain(self, option: Option, alone: Option, group: Group) -> Difference:
        """Option minus alone, paired, the mean over all silos, each counting the same.

        Raises:
            UnpairedError: As for :meth:`difference`.
        """
        by_task = ByTask()
        by_silo = [self._paired(option, alone, silo, group, by_task) for silo in self.indices]
        return paired_difference(
            {seed: [found[seed] for found in by_silo] for seed in by_silo[0]}, by_task.difference()
        )

    def worst(self, option: Option, alone: Option) -> Worst:
        """The silo with the least difference to alone.

        Raises:
            UnpairedError: As for :meth:`difference`.
            ReportError: No silo is known.
        """
        if not self.indices:
            raise ReportError("no line says which tasks a silo owns")
        found = [(self.difference(option, alone, silo), silo) for silo in self.indices]
        difference, silo = min(found, key=lambda item: item[0].value)
        return Worst(option=option, silo=silo, difference=difference)

    def best(self, options: Sequence[Option], alone: Option) -> Worst:
        """Of several options, the one whose worst silo fares best; chosen after looking.

        Raises:
            UnpairedError: As for :meth:`difference`.
            ReportError: There is no option, or no silo.
        """
        if not options:
            raise ReportError("there is no option to compare with alone")
        found = [self.worst(option, alone) for option in options]
        return max(found, key=lambda worst: worst.difference.value)

    def _place(self, line: EvalLine) -> None:
        group: Group = "own" if line.own else "unseen" if line.same_family else "other"
        groups = self._groups[line.setting, line.seed, line.silo]
        _note(groups, (line.environment, line.label), group, silo=line.silo, seed=line.seed)
        if line.own:
            self.families[line.silo].add(line.family)

    def _owned(self, option: Option, seed: int, silo: int) -> Mapping[_Label, Group]:
        """Which labels are own, unseen or foreign to a silo under an option.

        Raises:
            ReportError: The option has no line of the silo, and other settings disagree.
        """
        mine = self._groups.get((option.setting, seed, silo))
        if mine is not None:
            return mine
        found: dict[_Label, Group] = {}
        for (_, at_seed, of), groups in self._groups.items():
            if (at_seed, of) != (seed, silo):
                continue
            for label, group in groups.items():
                _note(found, label, group, silo=silo, seed=seed)
        return found

    def _paired(
        self, option: Option, alone: Option, silo: int, group: Group, by_task: ByTask
    ) -> dict[int, Discordance]:
        """One silo's tasks of a group at each seed that both have; added to ``by_task`` too."""
        found: dict[int, Discordance] = {}
        for seed in sorted(set(self._seeds(option)) & set(self._seeds(alone))):
            mine, base = (
                {(line.environment, line.label): line.outcomes for line in lines}
                for lines in (
                    self._judged(option, seed, silo, group),
                    self._judged(alone, seed, silo, group),
                )
            )
            sizes = [{label: len(text) for label, text in side.items()} for side in (mine, base)]
            if sizes[0] != sizes[1] or not mine:
                raise UnpairedError(
                    f"silo {silo}: {option.name} and {alone.name} were not judged on the same "
                    f"{group} tasks at seed {seed}"
                )
            found[seed] = Discordance.of("".join(mine.values()), "".join(base[at] for at in mine))
            for at, outcomes in mine.items():
                by_task.add_pair(silo, *at, outcomes, base[at])
        if not found:
            raise UnpairedError(f"{option.name} and {alone.name} share no seed")
        return found

    def _seeds(self, option: Option) -> list[int]:
        return sorted({seed for found, seed, _ in self._lines if found == option})

    def _judged(self, option: Option, seed: int, silo: int, group: Group) -> list[EvalLine]:
        lines = self._lines.get((option, seed, silo)) or self._lines.get((option, seed, -1), [])
        groups = self._owned(option, seed, silo)
        return [line for line in lines if groups.get((line.environment, line.label)) == group]

    @staticmethod
    def _add(strata: dict[tuple[object, ...], Stratum], line: EvalLine, weight: float) -> None:
        whose = line.outcomes if line.scope == "global" else line.silo
        key = (line.environment, line.label, whose, line.seed)
        successes, tasks = _counts(line)
        before = strata[key].weight if key in strata else 0.0
        strata[key] = Stratum(weight=before + weight, successes=successes, tasks=tasks)


def _note(
    groups: dict[_Label, Group], label: _Label, group: Group, *, silo: int, seed: int
) -> None:
    if groups.setdefault(label, group) != group:
        raise ReportError(f"silo {silo} at seed {seed}: {' '.join(label)} is of two groups")


def _over_seeds(strata: Mapping[tuple[object, ...], Stratum]) -> list[Stratum]:
    """The same label of the same silo at several seeds as one stratum, where weights agree."""
    found: dict[tuple[object, ...], list[Stratum]] = defaultdict(list)
    for (environment, label, whose, _), stratum in strata.items():
        silo = whose if isinstance(whose, int) else -1
        key = (environment, label, silo, stratum.tasks, round(stratum.weight, 12))
        found[key].append(stratum)
    return [
        Stratum(
            weight=sum(stratum.weight for stratum in same),
            successes=sum(stratum.successes for stratum in same),
            tasks=sum(stratum.tasks for stratum in same),
        )
        for same in found.values()
    ]


def _counts(line: EvalLine) -> tuple[int, int]:
    return line.outcomes.count("1"), len(line.outcomes)
