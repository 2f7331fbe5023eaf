"""Attempts that are open and driven by nobody: one goes on, the others end.

Invariants: at most one goes on, that of the release which the active run is at; of every other the
secrets and the files are deleted, and it is skipped where survivors had been declared, aborted
otherwise.

Covered: a coordinator that starts again, runs that stop. Not covered: an attempt that is driven
(``server/run/attempts.py``).
"""

from __future__ import annotations

import structlog

from federation.errors import FederationError
from server.attempt.accumulator import clear_scratch
from server.context import RunContext
from server.errors import CoordinatorError
from server.run.attempts import end_unfinished
from server.run.driver import RunDriver
from server.store.aggregations import AggregationRow

__all__ = ["clear", "clear_if_possible", "reopen"]

log = structlog.get_logger(__name__)


def reopen(context: RunContext, driver: RunDriver) -> None:
    """Let a run go on with the attempt that was open, and clear away all others.

    Args:
        context: What the coordinator works with.
        driver: Not driven yet.
    """
    place = (driver.row.run_id, *driver.next_place)
    mine = [
        row
        for row in context.store.aggregations.unfinished()
        if (row.identity.run_id, row.identity.round, row.identity.step) == place
    ]
    keep = mine[-1] if mine else None
    clear(context, keep=keep)
    if keep is not None:
        driver.reopen(keep)


def clear(context: RunContext, *, keep: AggregationRow | None) -> None:
    """End what nobody continues, and delete its secrets and files.

    Args:
        context: What the coordinator works with.
        keep: The one that goes on.
    """
    end_unfinished(context, keep=None if keep is None else keep.identity)
    if keep is None:
        clear_scratch(context.scratch, keep=None)


def clear_if_possible(context: RunContext, run_id: str) -> None:
    """End the attempts of a run that stopped; what fails is left to the next start.

    Args:
        context: What the coordinator works with.
        run_id: For the log.
    """
    try:
        clear(context, keep=None)
    except (CoordinatorError, FederationError, OSError) as error:
        log.warning("attempt_not_cleared", run=run_id, reason=error)
