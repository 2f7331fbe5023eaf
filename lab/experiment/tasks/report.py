"""How unlike the silos of a run are: what its partition comes to beside what it should.

Covered: the dealing of the table's own seed, and the mean of as many further seeds as one likes.
Not covered: what the dispersion does to learning; that is what a run is for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lab.experiment.config import Run
from lab.experiment.tasks.dealing import Pool, deal, dealing_of
from lab.experiment.tasks.partition import PartitionTable
from lab.partitions.dealing import Dealt
from lab.partitions.dispersion import (
    Expected,
    coverage_dispersion,
    expected_preference,
    expected_quota,
    hardness_dispersion,
    omega_of,
    preference_dispersion,
    sampling_floor,
    type_spread,
    xi_of,
)
from lab.partitions.errors import DialError, PoolError
from lab.partitions.independence import Independence, independence
from lab.partitions.quotas import Bounds

__all__ = ["Measure", "PartitionReport", "report_partition"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """One of Δ²_pref, Δ²_cov, Δ²_hard."""

    name: str
    """Which."""
    formula: float
    """The paper's expectation; 0 where no dial sets the measure."""
    expected: float
    """With the floor and for this number of silos."""
    measured: float
    """Of the table's own seed."""
    mean: float
    """Over the seeds that follow it, itself among them."""
    standard_error: float | None
    """Of that mean; None for a single seed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionReport:
    """One environment of one partition."""

    environment: str
    """Where."""
    table: PartitionTable
    """How."""
    sizes: tuple[int, ...]
    """Tasks of each silo."""
    union: int
    """Tasks of the pool that any silo has."""
    moved: int
    """Tasks of another type than was drawn, because that one had run out."""
    measures: tuple[Measure, ...]
    """Δ²_hard only where there are flags."""
    independence: Independence | None
    """Of types and flags; None where there are no flags, or none of one kind."""
    dials: Mapping[str, float]
    """For each measure that was asked for, the dial that has the dispersion."""


def report_partition(
    run: Run, table: PartitionTable, *, seeds: int, targets: Mapping[str, float] | None = None
) -> list[PartitionReport]:
    """Report on every environment that silos of the run explore.

    ``targets`` are dispersions, by measure, for which the dial is wanted.

    Raises:
        PartitionError: It cannot be dealt so, or no dial has such a dispersion.
    """
    explorers = Counter(name for silo in run.silos for name in silo.environments)
    return [
        _report(run, table, name, silos=silos, seeds=seeds, targets=targets or {})
        for name, silos in explorers.items()
    ]


def _report(
    run: Run,
    table: PartitionTable,
    name: str,
    *,
    silos: int,
    seeds: int,
    targets: Mapping[str, float],
) -> PartitionReport:
    own = dealing_of(run, table, name, silos=silos)
    drawn = [own.dealt] + [
        deal(own.pool, table, name, silos=silos, seed=table.seed + k) for k in range(1, seeds)
    ]
    tested = None
    if own.pool.solved is not None:
        try:
            tested = independence(own.pool.types, own.pool.solved)
        except PoolError:
            # One type, or all flags alike: nothing can depend on anything.
            tested = None
    measured = [_measured(dealt, own.pool) for dealt in drawn]
    return PartitionReport(
        environment=name,
        table=table,
        sizes=tuple(int(size) for size in own.dealt.sizes),
        union=own.dealt.union,
        moved=own.dealt.moved,
        measures=tuple(
            _measure(key, expected, [of_seed[key] for of_seed in measured])
            for key, expected in _expected(table, own.pool, own.dealt).items()
        ),
        independence=tested,
        dials={
            key: _dial(table, own.pool, own.dealt, key, target) for key, target in targets.items()
        },
    )


def _measure(name: str, expected: Expected, values: list[float]) -> Measure:
    error = None if len(values) == 1 else float(np.std(values, ddof=1) / len(values) ** 0.5)
    return Measure(
        name=name,
        formula=expected.formula,
        expected=expected.value,
        measured=values[0],
        mean=float(np.mean(values)),
        standard_error=error,
    )


def _measured(dealt: Dealt, pool: Pool) -> dict[str, float]:
    found = {
        "preference": preference_dispersion(dealt, pool.types),
        "coverage": coverage_dispersion(dealt),
    }
    if pool.solved is not None:
        found["hardness"] = hardness_dispersion(dealt, pool.solved)
    return found


def _dial(table: PartitionTable, pool: Pool, dealt: Dealt, name: str, target: float) -> float:
    """The value of the dial that sets a measure, at which this is expected of it."""
    silos = len(dealt.silos)
    if name == "preference" and table.omega is not None:
        shares = np.bincount(pool.types) / len(pool.types)
        return omega_of(target, shares, _length(dealt), silos)
    if name == "coverage" and table.xi is not None:
        return xi_of(target, table.size_bounds, table.size_bounds.average, silos)
    if name == "hardness" and table.xi_hard is not None:
        return xi_of(target, *_hard_bounds(table), silos)
    raise DialError(f"kind {table.kind!r} has no dial that sets {name!r}")


def _length(dealt: Dealt) -> float:
    """The harmonic mean of sizes: what the floor of a preference depends on."""
    return float(1 / np.mean(1 / dealt.sizes))


def _hard_bounds(table: PartitionTable) -> tuple[Bounds, float]:
    """Bounds of solved tasks, and their unit."""
    if table.kind == "hardness":
        return Bounds(*table.solved_counts), float(table.length or 0)
    return table.share_bounds, 1.0


def _expected(table: PartitionTable, pool: Pool, dealt: Dealt) -> dict[str, Expected]:
    sizes, silos, size = dealt.sizes, len(dealt.silos), len(pool.types)
    shares = np.bincount(pool.types) / size
    types = sampling_floor(type_spread(shares), sizes, size)
    if table.omega is not None:
        types = expected_preference(shares, table.omega, _length(dealt), silos)
    amounts = Expected(formula=0.0, floor=0.0, silos=silos)
    if table.xi is not None:
        bounds = table.size_bounds
        amounts = expected_quota(bounds, bounds.average, table.xi, silos)
    found = {"preference": types, "coverage": amounts}
    if pool.solved is not None and table.xi_hard is not None:
        found["hardness"] = expected_quota(*_hard_bounds(table), table.xi_hard, silos)
    return found
