"""One silo that breaks its clip: what it does to the mean of a sum.

Its vector is k·C long, in a direction of four kinds::

    reverse    against the sum of what the others' clips leave of their vectors: more than it can
               know, so no silo on its own does worse to one sum
    random     one direction for a run and a length of vectors, the same in each sum, so that it
               adds up; it says nothing of what the silo knows. With k = 1 it stays inside the
               clip: a slow drift, round by round
    flip       against its own vector: what it learned is to be unlearned
    own        its own vector, which with ``poisons`` is learned from what does not solve a label's
               tasks (``tasks/own_tasks.py``): a backdoor on that label

Invariants: the others' vectors are handed on as they are; the silo's is C long and counted k times
(``RingMean.mean_of``), so everything else of the sum, its noise too, is as without an attack. Where
the others' vectors are all zero there is nothing to work against, and its own is zero. In a round
that it does not take part in, the sum is that of the others and nothing happens.

Covered: the above. Not covered: several silos, false figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from lab.aggregation.method import MeanOf
from lab.experiment.seeded import SeededWords
from lab.experiment.sums import RoundMean
from lab.experiment.tables import AttackTable

__all__ = ["AttackedMean", "CopiesMean"]


class CopiesMean(RoundMean, Protocol):
    """A mean in which silos count several times."""

    def mean_of(
        self, vectors: Sequence[np.ndarray], *, clip_l2: float, what: str, copies: Sequence[int]
    ) -> np.ndarray:
        """As ``lab.experiment.sums.RingMean.mean_of``."""


class AttackedMean:
    """A ``lab.aggregation.MeanOf``; see the module."""

    def __init__(
        self, mean: CopiesMean, attack: AttackTable, *, place: int, key: Sequence[str | int]
    ) -> None:
        """Put the attacker at a place among the silos; the key decides its random direction."""
        self._mean = mean
        self._attack = attack
        self._place = place
        self._key = tuple(key)

    def __call__(self, vectors: Sequence[np.ndarray], *, clip_l2: float, what: str) -> np.ndarray:
        """The mean, float64, with the attacker's vector in the place of its own.

        Raises:
            SumError: The vectors cannot be encoded, or the sum could wrap.
        """
        given = [np.asarray(vector, dtype=np.float64) for vector in vectors]
        copies = [1] * len(given)
        given[self._place] = self._vector(given, clip_l2)
        copies[self._place] = self._attack.clips
        return self._mean.mean_of(given, clip_l2=clip_l2, what=what, copies=copies)

    def among(self, places: Sequence[int]) -> MeanOf:
        """The mean for a round with these silos; the attacker may not be among them."""
        if self._place not in places:
            return self._mean.among(places)
        place = places.index(self._place)
        return AttackedMean(self._mean, self._attack, place=place, key=self._key)

    @property
    def counted(self) -> tuple[int, ...]:
        """How many sums there were."""
        return self._mean.counted

    def go_on_after(self, counted: Sequence[int]) -> None:
        """As ``RingMean.go_on_after``."""
        self._mean.go_on_after(counted)

    def _vector(self, vectors: Sequence[np.ndarray], clip_l2: float) -> np.ndarray:
        """C long, or zero."""
        own = vectors[self._place]
        match self._attack.direction:
            case "reverse":
                others = [vector for k, vector in enumerate(vectors) if k != self._place]
                direction = -np.sum([_clipped(vector, clip_l2) for vector in others], axis=0)
            case "random":
                direction = _gaussian((*self._key, "attack"), own.size)
            case "flip":
                direction = -own
            case "own":
                direction = own
        norm = float(np.linalg.norm(direction))
        return np.asarray(direction * (clip_l2 / norm) if norm else direction, dtype=np.float64)


def _clipped(vector: np.ndarray, clip_l2: float) -> np.ndarray:
    norm = float(np.linalg.norm(vector))
    return vector * (clip_l2 / norm) if norm > clip_l2 else vector


def _gaussian(key: Sequence[str | int], count: int) -> np.ndarray:
    """Standard normal values by Box and Muller."""
    words = np.empty(2 * count, dtype=np.uint64)
    SeededWords(*key).fill_uint64(words)
    first, second = (words.reshape(2, count) + 0.5) / 2.0**64
    return np.asarray(np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second))
