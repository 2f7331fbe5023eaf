"""One sum of unit gradients, computed for one attempt, and what stands in where it cannot be.

Invariants:

1. The future always ends: with the sum, with a sum without units, or with an error.
2. A unit whose gradient fails is null inside the sum (``dp.steps.sgd``) and costs no other its
   place. So a sum without units is made only where nothing of any unit decides it: the model cannot
   be loaded, the memory holds not even one row, the store of what was explored cannot be opened.
   That depends on configuration and machine, and outside it looks like any sum: full noise goes up.
3. A sample of more units than may be summed is told as such; it ends the attempt.

Covered: ``record_distributed``. Not covered: noise, masks and the attempt (``silo_agent/attempt``).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import structlog

from dp.config import PrivacySpec
from dp.errors import TooManyUnitsError
from dp.noise.grid import Grid
from dp.noise.unit_sum import UnitSum

__all__ = ["empty_sum", "fulfil"]

log = structlog.get_logger(__name__)


def fulfil(
    future: Future[UnitSum],
    compute: Callable[[], UnitSum],
    *,
    empty: Callable[[], UnitSum],
    on_failure: Callable[[], None],
) -> None:
    """Compute the sum into its future, which is running and nobody else's to end.

    ``empty`` makes the sum without units; ``on_failure`` counts a sum that could not be made.
    """
    try:
        made = compute()
    except TooManyUnitsError as error:
        future.set_exception(error)
        return
    except Exception:
        on_failure()
        log.exception("gradients_failed", contributes="zeros")
    else:
        future.set_result(made)
        return
    try:
        future.set_result(empty())
    except Exception as error:
        # Not even the layout is known: there is no vector, and the attempt goes on without us.
        log.exception("no_sum", contributes="nothing")
        future.set_exception(error)


def empty_sum(spec: PrivacySpec, dimension: int) -> UnitSum:
    """A sum without units, of the plan's privacy and the shared vector's dimension."""
    release = spec.release
    grid = Grid(clip_l2=release.clip_l2, steps=release.grid, dimension=dimension)
    return UnitSum(grid, max_units=release.max_units)
