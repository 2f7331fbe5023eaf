"""Who a row belongs to, and who takes part in a step.

A unit is one task or one user, with everything it gave rise to. The population of a step is the
public set of all units that may be sampled; a unit without rows is a member as well.

Poisson sampling: every member is in the sample with the same probability, independently of all
others. A member's 64-bit word w decides: it is in if w < ⌊q·2⁶⁴⌋. The rate is therefore the largest
multiple of 2⁻⁶⁴ that is not above q, and ε, which grows with the rate, is computed for q itself.

Invariants:
    1. A sample takes its words from a ``NoiseSource``: from the operating system, never from a
       seed, and never the same word twice. A release that is tried again is sampled again.
    2. One word for every member, whatever the others' words were; so a sample tells nothing of the
       next one.
    3. A population names each member once: a double member would be in at a higher rate.

Covered: membership. Not covered: who is in a population, which must not depend on private data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import compress
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dp.errors import NoiseSourceError, SpecError
from dp.noise.source import NoiseSource, WordSource

RowT = TypeVar("RowT")

_WORD_BITS: Final = 64


class UnitId(NamedTuple):
    """Names a unit inside one silo; it never leaves the silo."""

    environment: str
    """Family of tasks it belongs to."""
    key: str
    """The task or the user in that family."""


def poisson_sample(
    population: Sequence[UnitId], q: float, source: WordSource
) -> tuple[UnitId, ...]:
    """Draw one sample, in the order of the population; it may be empty.

    The population is every unit that may be sampled, each once with probability q, in (0, 1]. The
    source is a production source, fresh for this sample.

    Raises:
        NoiseSourceError: If the source is not a production source.
        SpecError: If q is out of range or a unit is named twice.
    """
    if type(source) is not NoiseSource:
        raise NoiseSourceError("a sample takes its words from a NoiseSource only")
    if len(set(population)) != len(population):
        raise SpecError("a population names each unit once")
    words = np.empty(len(population), dtype=np.uint64)
    source.fill_uint64(words)
    return tuple(compress(population, sampled(words, q).tolist()))


def sampled(words: npt.NDArray[np.uint64], q: float) -> npt.NDArray[np.bool_]:
    """Which of the words are below ⌊q·2⁶⁴⌋, in integers; a SpecError if q is not in (0, 1]."""
    if not 0.0 < q <= 1.0:
        raise SpecError(f"the sampling rate must lie in (0, 1], got {q!r}")
    # A float is a rational, so the threshold is exact.
    threshold = math.floor(Fraction(q) * 2**_WORD_BITS)
    if threshold == 2**_WORD_BITS:
        return np.ones(words.shape, dtype=np.bool_)
    return words < np.uint64(threshold)


def group_by_unit(
    rows: Iterable[RowT], unit_of: Callable[[RowT], UnitId]
) -> dict[UnitId, tuple[RowT, ...]]:
    """All rows of each unit, in their order; units in the order of their first rows."""
    groups: dict[UnitId, list[RowT]] = {}
    for row in rows:
        groups.setdefault(unit_of(row), []).append(row)
    return {unit: tuple(members) for unit, members in groups.items()}
