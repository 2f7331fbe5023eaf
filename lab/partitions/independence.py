"""Whether a task's type says anything about whether the base solves it.

That the preference dial leaves hardness alone, and the hardness dial types, rests on threshold
independence: among the tasks of a type the base solves the same share. FedAgent's paper assumes it
and does not test it; where it fails, each dial moves the other measure by as much as it fails.

Covered: Pearson's χ² on the table of types by flags. Not covered: how large a deviation matters;
with many tasks a small one is found. ``deviation`` says how large it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2_contingency

from lab.partitions.errors import PoolError

__all__ = ["Independence", "independence"]

LEAST_EXPECTED: Final = 5.0
"""Tasks that the rarest cell is expected to have, for the statistic to be χ² (Cochran's rule)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Independence:
    """What the test says."""

    chi2: float
    """Pearson's statistic."""
    degrees: int
    """Of freedom: types − 1."""
    p_value: float
    """How likely at least this statistic is where type and flag are independent."""
    deviation: float
    """The largest distance of a type's share of solved tasks from that of the pool."""
    is_reliable: bool
    """Whether every cell is expected to have enough tasks for the p value to mean anything."""


def independence(
    types: Sequence[int] | npt.NDArray[np.int64], solved: Sequence[bool] | npt.NDArray[np.bool_]
) -> Independence:
    """Test type against flag.

    Raises:
        PoolError: There is one type, or all tasks have one flag: nothing can depend on it.
    """
    flags = np.asarray(solved, dtype=bool)
    _, which = np.unique(np.asarray(types), return_inverse=True)
    if len(which) != len(flags):
        raise PoolError(f"{len(which)} types and {len(flags)} flags are not of the same tasks")
    total = np.bincount(which)
    easy = np.bincount(which, weights=flags).astype(np.int64)
    if len(total) < 2 or not 0 < easy.sum() < len(flags):  # a table has two rows
        raise PoolError(
            "independence is tested between types and flags, and needs two of each: here are "
            f"{len(total)} types and {int(easy.sum())} solved of {len(flags)} tasks"
        )
    found = chi2_contingency(np.stack([easy, total - easy], axis=1), correction=False)
    return Independence(
        chi2=float(found.statistic),
        degrees=int(found.dof),
        p_value=float(found.pvalue),
        deviation=float(np.abs(easy / total - flags.mean()).max()),
        is_reliable=bool(found.expected_freq.min() >= LEAST_EXPECTED),
    )
