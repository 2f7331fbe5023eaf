"""Sums of groups instead of one sum of all, combined as a release of several sums is.

The groups of a sum are those of ``federation.chain.groups``, dealt out anew for each sum; a group's
sum is a ``RingMean`` of its own, with the noise that its size asks for; and the means of the groups
are combined by ``federation.aggregate.groups``.

Invariants:
    1. Each silo is in one group of a sum, and sizes differ by at most one.
    2. Groups depend on the key and the number of the sum, on nothing else: with an attacker and
       without, the same silos are beside each other.

Covered: as many silos in each sum. Not covered: that a coordinator leaves out a group's sum that
honest silos cannot have made (``server/run/aggregation.py``), and ends a release with fewer than
2f + 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from federation.aggregate.groups import RobustMean
from federation.chain.groups import groups_of
from lab.aggregation.method import MeanOf
from lab.experiment.masked import MaskedSum
from lab.experiment.sums import PlainSum, checked_counts
from lab.experiment.tables import GroupsTable, NoiseTable

__all__ = ["GroupedSum"]

_ROSTER_SHA256: Final = hashlib.sha256(b"chorale/lab/groups").digest()


class GroupedSum:
    """A ``lab.aggregation.MeanOf``; see the module."""

    def __init__(
        self,
        kind: type[PlainSum | MaskedSum],
        noise: NoiseTable,
        groups: GroupsTable,
        *,
        silos: int,
        key: Sequence[str | int],
    ) -> None:
        """Set up the sums of one federation, each of a kind; as ``RingMean``."""
        self._groups = groups
        self._names = tuple(f"silo-{number:03d}" for number in range(silos))
        self._run_id = "-".join(("lab", *map(str, key)))
        self._parts = tuple(
            kind(noise, silos=len(self._names[part :: groups.count]), key=(*key, "part", part))
            for part in range(groups.count)
        )
        self._sums = 0

    def __call__(self, vectors: Sequence[np.ndarray], *, clip_l2: float, what: str) -> np.ndarray:
        """The combined mean, float64, of one vector for each silo.

        Raises:
            SumError: The vectors cannot be encoded, or a sum could wrap.
        """
        return self.mean_of(vectors, clip_l2=clip_l2, what=what, copies=(1,) * len(vectors))

    def mean_of(
        self, vectors: Sequence[np.ndarray], *, clip_l2: float, what: str, copies: Sequence[int]
    ) -> np.ndarray:
        """As ``RingMean.mean_of``."""
        self._sums += 1
        means = [
            part.mean_of(
                [vectors[place] for place in places],
                clip_l2=clip_l2,
                what=what,
                copies=[copies[place] for place in places],
            )
            for part, places in zip(self._parts, self._dealt(), strict=True)
        ]
        robust = RobustMean(means, rule=self._groups.rule, byzantine=self._groups.byzantine)
        return robust[:]

    def among(self, places: Sequence[int]) -> MeanOf:
        """As ``RingMean.among``."""
        del places
        return self

    @property
    def counted(self) -> tuple[int, ...]:
        """How many sums there were, of all and then of each group."""
        return (self._sums, *(count for part in self._parts for count in part.counted))

    def go_on_after(self, counted: Sequence[int]) -> None:
        """As ``RingMean.go_on_after``."""
        self._sums, *parts = checked_counts(counted, 1 + len(self._parts))
        for part, count in zip(self._parts, parts, strict=True):
            part.go_on_after((count,))

    def _dealt(self) -> list[list[int]]:
        """Places of the silos in each group of this sum."""
        dealt = groups_of(
            self._names,
            self._groups.count,
            run_id=self._run_id,
            round_number=self._sums,
            roster_sha256=_ROSTER_SHA256,
        )
        return [[self._names.index(name) for name in group] for group in dealt]
