"""An interval over tasks that counts a task once, at however many seeds and tries it was judged.

All seeds of a report are judged on the same tasks, so outcomes hang together by task: the task is a
cluster. The *cluster bootstrap* draws whole tasks with replacement, each with all of its outcomes,
and works the figure out anew (A. C. Davison, D. V. Hinkley, Bootstrap Methods and their
Application, 1997, sec. 3.8; C. A. Field, A. H. Welsh, "Bootstrapping clustered data", J. R. Stat.
Soc. B 69 (2007)). The interval is the percentile one of ``DRAWS`` draws: the 2.5 % and 97.5 %
quantiles (B. Efron, R. Tibshirani, An Introduction to the Bootstrap, 1993, sec. 13.3).

A figure is a mean of ratios over *cells*, such as environments or silos,

    θ = Σ_c w_c · (Σ_t x_ct) / (Σ_t n_ct),

with x_ct the successes, or the difference of two settings' successes, of task t in cell c, and n_ct
how often it was judged there. Tasks are drawn within strata, as many as there are: tasks of one
environment that are in the same cells (ibid., sec. 3.2, stratified resampling).

It speaks of *these adapters* on other tasks of the same kind, and not of another training: that is
``interval.over_seeds``, which in turn knows these tasks alone. Neither speaks of both.

Invariants:
    1. Equal outcomes give equal intervals, on every machine: the draws have fixed seeds, and sums
       are of whole numbers.
    2. Where the outcomes of each stratum are alike a bootstrap sees nothing, and has no width. For
       rates the Wilson limits of that many tasks stand in, combined by ``interval.combined``.

Covered: any number of seeds, silos and environments, tasks that were not judged equally often. Not
covered: differences that are all alike (the interval has no width, and says nothing); a few tasks
only: with n in a stratum the variance is (n − 1)/n of what it should be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from lab.report.interval import Stratum, combined

__all__ = ["DRAWS", "ByTask", "TaskInterval"]

DRAWS: Final = 4000
_SEED: Final = 0x7A5C
_MOST_HELD: Final = 1 << 21
"""Numbers in one block of draws: 8 MiB."""
_ENDS: Final = (0.025, 0.975)
_Place = tuple[str, str]
_Array = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskInterval:
    """A figure with its 95 % interval over tasks."""

    value: float
    low: float
    high: float
    tasks: int
    """Each counted once, however often it was judged."""


class ByTask:
    """Outcomes of tasks by cell; see the module."""

    def __init__(self) -> None:
        self._found: dict[Hashable, dict[_Place, tuple[_Array, _Array]]] = defaultdict(dict)

    def add(self, cell: Hashable, environment: str, label: str, outcomes: str) -> None:
        """Add what one adapter did on the first tasks of a label, in the order of the panel."""
        self._add(cell, (environment, label), _numbers(outcomes))

    def add_pair(
        self, cell: Hashable, environment: str, label: str, first: str, second: str
    ) -> None:
        """Add what two adapters did on the same tasks, as first minus second.

        Raises:
            ValueError: They are not of the same length.
        """
        if len(first) != len(second):
            raise ValueError("a pair of outcomes is of the same tasks")
        self._add(cell, (environment, label), _numbers(first) - _numbers(second))

    def rate(self, weights: Mapping[Hashable, float] | None = None) -> TaskInterval | None:
        """The interval of a rate; each cell weighs the same, or as ``weights`` says.

        None where nothing was added.
        """
        found = self.difference(weights)
        if found is None or found.low < found.high:
            return found
        strata = [
            Stratum(
                weight=self._weight(cell, weights),
                successes=round(float(sum((x / n).sum() for x, n in by_place.values()))),
                tasks=sum(len(x) for x, _ in by_place.values()),
            )
            for cell, by_place in self._found.items()
        ]
        limits = combined(strata)
        return TaskInterval(
            value=found.value,
            low=max(0.0, limits.low),
            high=min(1.0, limits.high),
            tasks=found.tasks,
        )

    def difference(self, weights: Mapping[Hashable, float] | None = None) -> TaskInterval | None:
        """The same of a paired difference; without width where all differences are alike."""
        if not self._found:
            return None
        cells = list(self._found)
        weight = np.array([self._weight(cell, weights) for cell in cells])
        x, n, strata = self._clusters(cells)
        value = float(weight @ (x.sum(1, dtype=np.float64) / n.sum(1, dtype=np.float64)))
        over, under = np.zeros((2, len(cells), DRAWS))
        for number, places in enumerate(strata):
            for start in range(0, DRAWS, rows := _rows(len(places))):
                drawn = _drawn(len(places), number, start)
                at = slice(start, start + rows)
                for cell in np.flatnonzero(n[:, places[0]]):
                    over[cell, at] += drawn @ x[cell, places]
                    counts = n[cell, places]
                    # As many tasks are drawn as there are: alike counts add up to the same.
                    alike = (counts == counts[0]).all()
                    under[cell, at] += counts.sum() if alike else drawn @ counts
        low, high = np.quantile(weight @ (over / under), _ENDS)
        return TaskInterval(value=value, low=float(low), high=float(high), tasks=x.shape[1])

    def _add(self, cell: Hashable, place: _Place, values: _Array) -> None:
        x, n = self._found[cell].get(place, (_EMPTY, _EMPTY))
        size = max(len(x), len(values))
        x, n = _padded(x, size), _padded(n, size)
        x[: len(values)] += values
        n[: len(values)] += 1
        self._found[cell][place] = x, n

    def _weight(self, cell: Hashable, weights: Mapping[Hashable, float] | None) -> float:
        return 1 / len(self._found) if weights is None else weights[cell]

    def _clusters(
        self, cells: list[Hashable]
    ) -> tuple[_Array, _Array, tuple[npt.NDArray[np.intp], ...]]:
        """Values and counts by cell and task, and the places of each stratum's tasks."""
        sizes: dict[_Place, int] = {}
        for by_place in self._found.values():
            for place, (values, _) in by_place.items():
                sizes[place] = max(sizes.get(place, 0), len(values))
        starts, total = {}, 0
        for place, size in sizes.items():
            starts[place] = total
            total += size
        x = np.zeros((len(cells), total), dtype=np.float32)
        n = np.zeros((len(cells), total), dtype=np.float32)
        for row, cell in enumerate(cells):
            for place, (values, counts) in self._found[cell].items():
                at = slice(starts[place], starts[place] + len(values))
                x[row, at], n[row, at] = values, counts
        strata: dict[tuple[str, bytes], list[int]] = defaultdict(list)
        for place, size in sizes.items():
            for task in range(starts[place], starts[place] + size):
                strata[place[0], (n[:, task] > 0).tobytes()].append(task)
        return x, n, tuple(np.array(places, dtype=np.intp) for places in strata.values())


_EMPTY: Final = np.zeros(0, dtype=np.float32)


def _rows(tasks: int) -> int:
    """How many draws of so many tasks are held at once."""
    return max(1, min(DRAWS, _MOST_HELD // tasks))


@lru_cache(maxsize=16)
def _drawn(tasks: int, number: int, start: int) -> _Array:
    """How often each of some tasks is drawn, in some draws; ``number`` keeps strata apart."""
    rng = np.random.default_rng([_SEED, number, tasks, start])
    rows = min(_rows(tasks), DRAWS - start)
    places = rng.integers(tasks, size=(rows, tasks)) + np.arange(rows)[:, None] * tasks
    counts = np.bincount(places.ravel(), minlength=rows * tasks)
    return counts.reshape(rows, tasks).astype(np.float32)


def _numbers(outcomes: str) -> _Array:
    solved: npt.NDArray[np.bool_] = np.frombuffer(outcomes.encode(), dtype=np.uint8) == ord("1")
    return solved.astype(np.float32)


def _padded(values: _Array, size: int) -> _Array:
    return np.concatenate([values, np.zeros(size - len(values), dtype=np.float32)])
