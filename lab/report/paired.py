"""Two settings compared task by task.

* `mcnemar`: b tasks only A solves, c only B solves; under H₀ b ~ Binomial(b + c, ½), and the exact
  two-sided p = min(1, 2·P(X ≤ min(b, c))). Q. McNemar, Psychometrika 12 (1947); exact form:
  A. Agresti, Categorical Data Analysis, 3rd ed., §11.1.2.
* `holm`: p-values of a family of comparisons, adjusted step by step so that the chance of one false
  rejection stays below α. S. Holm, Scand. J. Statist. 6 (1979).
* `paired_difference`: Σ w_i·(p_i^A − p_i^B) ± 1.96·√Σ w_i² v_i,
  v_i = ((b_i + c_i) − (b_i − c_i)²/n_i)/n_i² (Wald; Agresti §11.1.1).

Covered: tasks that are independent given the two adapters. Not covered: variance between seeds;
the Wald interval is too short when b + c is small, so read the exact p beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
    """First minus second, as a rate, with its 95 % interval."""

    value: float
    low: float
    high: float
    tasks: int
    """Paired tasks behind it, n over all strata."""


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


def paired_difference(parts: Sequence[tuple[float, Discordance]]) -> Difference:
    """The weighted difference over strata.

    Args:
        parts: Weight and counts of each stratum; a stratum has at least one task.

    Raises:
        ValueError: No stratum, or one without tasks.
    """
    if not parts or min(counts.tasks for _, counts in parts) < 1:
        raise ValueError("a difference takes strata with tasks")
    value = variance = 0.0
    for weight, counts in parts:
        n, b, c = counts.tasks, counts.only_first, counts.only_second
        value += weight * (b - c) / n
        variance += weight**2 * ((b + c) - (b - c) ** 2 / n) / n**2
    half = Z_95 * math.sqrt(variance)
    tasks = sum(counts.tasks for _, counts in parts)
    return Difference(value=value, low=value - half, high=value + half, tasks=tasks)
