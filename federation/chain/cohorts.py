"""What the cohorts of a run's sums give away together: sums of different cohorts can be subtracted.

Each sum is a row of the incidence matrix M over the run's silos: 1 where the silo is in the sum's
survivors U3, 0 elsewhere. If every silo contributed the same to all of them, whoever holds the sums
could work out exactly the combinations in the row space of M over the rationals, r = rank M
independent ones. r = 1 is one cohort throughout; where r is the number of silos every single
contribution is among them. Contributions differ from round to round, so each combination holds that
drift as well; only noise hides it.

    ranks   M is brought to reduced row echelon form modulo a prime P above every minor of a 0/1
            matrix of its size, |det| ≤ (k+1)^((k+1)/2) / 2^k (Hadamard). So no minor but zero is a
            multiple of P, and rank, pivots and zeros are those over the rationals: no chance in it.
    alone   a silo's unit vector is in the row space exactly if it is a row of that form

Covered: any number of sums of up to 200 silos. Not covered: what a colluder knows besides, its own
contribution above all; sums of other runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from federation.errors import ChainError
from secagg.bounds import MAX_COHORT

PRIME: Final = 2**607 - 1
"""P, a Mersenne prime: more than any minor of a 0/1 matrix with ``MAX_COHORT`` columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CohortsOfSums:
    """What the cohorts of some sums come to."""

    sums: int
    """How many."""
    distinct: int
    """Of different cohorts."""
    silos: tuple[str, ...]
    """In any of them, in ascending order."""
    rank: int
    """r: independent combinations, at most one a silo."""
    alone: tuple[str, ...]
    """Silos that a combination of the sums shows on their own, in ascending order."""

    def sentence(self) -> str:
        """What the rank means, for people."""
        if not self.sums:
            return "no sum yet"
        if self.rank == 1:
            return (
                f"{_sums(self.sums)}, all of one cohort of {len(self.silos)} silos: rank 1, no "
                "combination shows more than their sum"
            )
        shown = (
            f"; combinations show {', '.join(self.alone)} alone"
            if self.alone
            else "; no combination shows one silo alone"
        )
        return (
            f"{_sums(self.sums)} of {self.distinct} different cohorts among {len(self.silos)} "
            f"silos: rank {self.rank}, their combinations open {self.rank} independent sums"
            f"{shown}, up to what contributions changed between the sums; only noise hides a "
            "difference"
        )


def cohorts_of_sums(survivors: Iterable[Iterable[str]]) -> CohortsOfSums:
    """The rank of the cohorts of these sums, exactly.

    Args:
        survivors: U3 of each sum that somebody outside the cohort may hold.

    Raises:
        ChainError: If they name more than ``MAX_COHORT`` silos.
    """
    cohorts = [frozenset(each) for each in survivors]
    silos = tuple(sorted(frozenset[str]().union(*cohorts)))
    if len(silos) > MAX_COHORT:
        raise ChainError(f"the sums name {len(silos)} silos, more than {MAX_COHORT}")
    # Ordered, so that equal input costs equal time.
    distinct = sorted(frozenset(cohorts), key=sorted)
    form = _Echelon(len(silos))
    for cohort in distinct:
        form.add([int(silo in cohort) for silo in silos])
        if form.rank == len(silos):
            break
    return CohortsOfSums(
        sums=len(cohorts),
        distinct=len(distinct),
        silos=silos,
        rank=form.rank,
        alone=tuple(silos[column] for column in form.unit_columns()),
    )


class _Echelon:
    """A reduced row echelon form modulo P that 0/1 rows are added to."""

    def __init__(self, columns: int) -> None:
        self._rows: dict[int, list[int]] = {}
        self._columns = columns

    @property
    def rank(self) -> int:
        return len(self._rows)

    def add(self, row: list[int]) -> None:
        left = row
        for pivot, reduced in self._rows.items():
            # A pivot column is zero in every other row, so the entry is still the one it was.
            if row[pivot]:
                left = [a - b for a, b in zip(left, reduced, strict=True)]
        left = [value % PRIME for value in left]
        found = next((column for column in range(self._columns) if left[column]), None)
        if found is None:
            return
        scale = pow(left[found], -1, PRIME)
        left = [value * scale % PRIME for value in left]
        for pivot, reduced in self._rows.items():
            factor = reduced[found]
            if factor:
                self._rows[pivot] = [
                    (a - factor * b) % PRIME for a, b in zip(reduced, left, strict=True)
                ]
        self._rows[found] = left

    def unit_columns(self) -> list[int]:
        """Columns whose unit vector is in the row space."""
        return sorted(
            pivot for pivot, row in self._rows.items() if sum(1 for value in row if value) == 1
        )


def _sums(count: int) -> str:
    return "1 sum" if count == 1 else f"{count} sums"
