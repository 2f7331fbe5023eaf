"""Two settings compared task by task.

* `mcnemar`: b tasks only A solves, c only B solves; under H₀ b ~ Binomial(b + c, ½), and the exact
  two-sided p = min(1, 2·P(X ≤ min(b, c))). Q. McNemar, Psychometrika 12 (1947); exact form:
  A. Agresti, Categorical Data Analysis, 3rd ed., §11.1.2.
* `holm`: p-values of a family of comparisons, adjusted step by step so that the chance of one false
  rejection stays below α. S. Holm, Scand. J. Statist. 6 (1979).
* `paired_difference`: the mean of I strata, Σ_i (p_i^A − p_i^B)/I ± 1.96·√(Σ_i v_i/I²), with
  v_i = ((b_i + c_i) − (b_i − c_i)²/n_i)/n_i² (Wald; Agresti §11.1.1) and the seeds pooled; and the
  same mean seed by seed, with `interval.over_seeds`.

Covered: tasks that are independent given the two adapters; another pair of runs of the same two
settings, by the interval over seeds alone: a test over tasks does not know that trainings differ.
Not covered: a task that was judged at several seeds counts as several tasks in `mcnemar` and in the
Wald interval, which are too sure then (`by_task.py` counts it once); the Wald interval is too short
when b + c is small, so read the exact p beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from lab.report.by_task import TaskInterval
from lab.report.interval import SeedSpread, over_seeds
from lab.wilson import Z_95

__all__ = ["Difference", "Discordance", "holm", "mcnemar", "paired_difference"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Discordance:
    """What two adapters did on the same tasks."""

    tasks: int
    """Paired tasks, n."""
    only_first: int
    """Solved by the first only, b."""
    only_second: int
    """Solved by the second only, c."""

    @classmethod
    def of(cls, first: str, second: str) -> Discordance:
        """Count over two outcome strings.

        Raises:
            ValueError: They are not of the same length.
        """
        pairs = list(zip(first, second, strict=True))
        return cls(
            tasks=len(pairs),
            only_first=pairs.count(("1", "0")),
            only_second=pairs.count(("0", "1")),
        )

    def __add__(self, other: Discordance) -> Discordance:
        return Discordance(
            tasks=self.tasks + other.tasks,
            only_first=self.only_first + other.only_first,
            only_second=self.only_second + other.only_second,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """First minus second, as a rate."""

    value: float
    """The seeds pooled."""
    low: float
    """Lower end of the 95 % interval over tasks, a task at each seed counted as another one."""
    high: float
    """Upper end."""
    tasks: int
    """Paired tasks behind it, n over all strata and seeds."""
    seeds: tuple[int, ...]
    """Ascending."""
    spread: SeedSpread
    """Over the seeds, in their order."""
    by_task: TaskInterval | None = None
    """Over tasks, each counted once (`by_task.py`); None where only counts were given."""


def mcnemar(counts: Discordance) -> float:
    """The exact two-sided p-value; 1 when no task is discordant."""
    discordant = counts.only_first + counts.only_second
    fewer = min(counts.only_first, counts.only_second)
    # The sum has whole numbers only, so it is exact for any count.
    tail = sum(math.comb(discordant, k) for k in range(fewer + 1))
    return min(1.0, 2 * tail / (1 << discordant)) if discordant else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def paired_difference(
    by_seed: Mapping[int, Sequence[Discordance]], by_task: TaskInterval | None = None
) -> Difference:
    """The mean difference over strata.

    Each seed has its strata in one order; a stratum has at least one task. ``by_task`` is carried
    along.

    Raises:
        ValueError: No seed, no stratum, one without tasks, or not as many at every seed.
    """
    seeds = tuple(sorted(by_seed))
    strata = list(zip(*(by_seed[seed] for seed in seeds), strict=True))
    if not strata or min(counts.tasks for stratum in strata for counts in stratum) < 1:
        raise ValueError("a difference takes strata with tasks")
    pooled = [sum(stratum[1:], stratum[0]) for stratum in strata]
    variance = 0.0
    for counts in pooled:
        n, b, c = counts.tasks, counts.only_first, counts.only_second
        variance += ((b + c) - (b - c) ** 2 / n) / n**2
    value = _mean_rate(pooled)
    half = Z_95 * math.sqrt(variance) / len(pooled)
    return Difference(
        value=value,
        low=value - half,
        high=value + half,
        tasks=sum(counts.tasks for counts in pooled),
        seeds=seeds,
        spread=over_seeds([_mean_rate(by_seed[seed]) for seed in seeds]),
        by_task=by_task,
    )


def _mean_rate(strata: Sequence[Discordance]) -> float:
    return mean((counts.only_first - counts.only_second) / counts.tasks for counts in strata)
