"""A difference over the seeds of several experiments.

Two experiments are *alike* for a setting where its runs have the same values but for the seed and
for what was judged (`judge`). Where they are alike for both settings of a difference, their seeds
are one sample: each seed counts once, in the first experiment that has it, and alike, however many
tasks it was judged on.

Covered: `interval.over_seeds` of the differences. Not covered: an interval over tasks, which differ
between the experiments; seeds that were added after looking at the first ones.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lab.report.interval import SeedSpread, over_seeds
from lab.report.paired import Difference
from lab.report.report import ExperimentReport, Report, SilosReport
from lab.report.results import Experiment, Results

__all__ = ["Pooled", "pooled"]

_NOT_OF_TRAINING = ("experiment", "seed", "judge")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pooled:
    """First minus second over the seeds of several experiments, as a rate."""

    first: str
    second: str
    temperature: float
    experiments: tuple[str, ...]
    """At least two."""
    seeds: tuple[int, ...]
    """Ascending."""
    spread: SeedSpread
    """Of the macro difference or, for silos, of the mean difference on own tasks."""
    worst: tuple[int, SeedSpread] | None
    """For silos: the one with the least mean difference, and that; else None."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """One difference in one experiment."""

    experiment: str
    first: str
    second: str
    temperature: float
    whole: Difference
    silos: Mapping[int, Difference]
    """By silo, if it is one of silos; else empty."""


def pooled(report: Report, results: Results) -> tuple[Pooled, ...]:
    """Every difference that two experiments or more have, in the order of the first."""
    groups: dict[tuple[object, ...], list[_Part]] = defaultdict(list)
    for experiment, found in zip(results.experiments, report.experiments, strict=True):
        for settings, part in _parts(found):
            alike = tuple(_training(experiment, setting) for setting in settings)
            key = (part.first, part.second, part.temperature, tuple(part.silos), alike)
            groups[key].append(part)
    return tuple(_pool(parts) for parts in groups.values() if len(parts) > 1)


def _parts(report: ExperimentReport) -> Iterator[tuple[tuple[str, str], _Part]]:
    """Both settings of each difference, and the difference."""
    setting_of = {row.row: row.setting for row in report.rows}
    for family in report.families:
        for found in family.comparisons:
            yield (
                (setting_of[found.first], setting_of[found.second]),
                _Part(
                    experiment=report.name,
                    first=found.first,
                    second=found.second,
                    temperature=family.temperature,
                    whole=found.macro,
                    silos={},
                ),
            )
    for silos in report.silos:
        yield from _of_silos(report.name, silos)


def _of_silos(name: str, report: SilosReport) -> Iterator[tuple[tuple[str, str], _Part]]:
    for found in report.options:
        gain = found.gains["own"]
        if gain is not None:
            yield (
                (found.option.setting, report.alone.setting),
                _Part(
                    experiment=name,
                    first=found.option.name,
                    second=report.alone.name,
                    temperature=report.temperature,
                    whole=gain,
                    silos=dict(zip(report.silos, found.differences, strict=True)),
                ),
            )


def _training(experiment: Experiment, setting: str) -> str:
    """The values of a setting's runs without what may differ between alike experiments."""
    texts = {
        json.dumps(
            {key: run.config[key] for key in run.config if key not in _NOT_OF_TRAINING},
            sort_keys=True,
        )
        for run in experiment.runs
        if run.setting == setting
    }
    return "\n".join(sorted(texts))


def _pool(parts: Sequence[_Part]) -> Pooled:
    wholes = _by_seed([part.whole for part in parts])
    silos = {
        silo: over_seeds(list(_by_seed([part.silos[silo] for part in parts]).values()))
        for silo in parts[0].silos
    }
    return Pooled(
        first=parts[0].first,
        second=parts[0].second,
        temperature=parts[0].temperature,
        experiments=tuple(part.experiment for part in parts),
        seeds=tuple(wholes),
        spread=over_seeds(list(wholes.values())),
        worst=min(silos.items(), key=lambda found: found[1].mean, default=None),
    )


def _by_seed(differences: Sequence[Difference]) -> dict[int, float]:
    """Seed to difference, ascending; the first that has a seed gives it."""
    found: dict[int, float] = {}
    for difference in differences:
        for seed, rate in zip(difference.seeds, difference.spread.rates, strict=True):
            found.setdefault(seed, rate)
    return dict(sorted(found.items()))
