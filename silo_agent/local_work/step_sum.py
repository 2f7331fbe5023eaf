"""One sum of unit gradients, computed for one attempt, and what stands in where it cannot be.

Invariants:

1. The future always ends: with the sum, with a sum without units, or with an error. It ends no
   sooner than ``hold`` lets it, whatever it ends with: how long a sum takes depends on how many of
   the sampled units have something to learn from.
2. A unit whose gradient fails is null inside the sum (``dp.steps.sgd``) and costs no other its
   place. So a sum without units is made only where nothing of any unit decides it: the model cannot
   be loaded, the memory holds not even one row, the store of what was explored cannot be opened.
   That depends on configuration and machine, and outside it looks like any sum: full noise goes up.
3. A sample of more units than may be summed is told as such; it ends the attempt. So does a sum
   that took longer than it may (``LateWorkError``): nothing of it leaves.

Covered: ``record_distributed``. Not covered: noise, masks and the attempt (``silo_agent/attempt``).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from dp.config import PrivacySpec
from dp.errors import TooManyUnitsError
from dp.noise.grid import Grid
from dp.noise.unit_sum import UnitSum
from ops.logs.logger import get_logger

__all__ = ["empty_sum", "fulfil"]

log = get_logger(__name__)


def fulfil(
    future: Future[UnitSum],
    compute: Callable[[], UnitSum],
    *,
    empty: Callable[[], UnitSum],
    on_failure: Callable[[], None],
    hold: Callable[[], None],
) -> None:
    """Compute the sum into its future, which is running and nobody else's to end.

    ``empty`` makes the sum without units; ``on_failure`` counts a sum that could not be made.
    ``hold`` waits until it may be shown, and raises where it may not.
    """
    made: UnitSum | Exception
    try:
        made = compute()
    except TooManyUnitsError as error:
        made = error
    except Exception:
        on_failure()
        log.exception("gradients_failed", contributes="zeros")
        try:
            made = empty()
        except Exception as error:
            # Not even the layout is known: there is no vector, and the attempt goes on without us.
            log.exception("no_sum", contributes="nothing")
            made = error
    try:
        hold()
    except Exception as error:  # noqa: BLE001  # it is the session's to act on
        made = error
    if isinstance(made, Exception):
        future.set_exception(made)
    else:
        future.set_result(made)


def empty_sum(spec: PrivacySpec, dimension: int) -> UnitSum:
    """A sum without units, of the plan's privacy and the shared vector's dimension."""
    release = spec.release
    grid = Grid(clip_l2=release.clip_l2, steps=release.grid, dimension=dimension)
    return UnitSum(grid, max_units=release.max_units)
