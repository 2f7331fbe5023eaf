"""Waiting out a full disk, or a database or object storage that is away: none ends a run.

Invariants:

1. What is tried again is repeatable, because each durable step is one transaction and what is in
   memory follows it; nothing is cleared meanwhile, and the run stays as it is shown.
2. Whoever drives the runs does not end of anything unforeseen: a run that is shown as running, and
   that nobody drives, would wait for ever.

Covered: faults that pass, however long they take; defects of driving itself. Not covered: a fault
that never passes, which an admin sees in the log, in ``chorale_storage_faults_total`` and in
``chorale_driver_failures_total``, and ends with ``chorale run abort``; defects in a round, which
end its run (``server/conductor/conductor.py``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from ops.logs.logger import get_logger
from server.errors import BlobUnavailableError, StorageFullError, StoreError
from server.metrics import CoordinatorMetrics
from server.store import Store

__all__ = ["STORAGE_FAULTS", "keep_proving", "over_defects", "over_storage_faults"]

log = get_logger(__name__)

T = TypeVar("T")

STORAGE_FAULTS: Final = (StoreError, StorageFullError, BlobUnavailableError, OSError)
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
PROVE_EVERY_S: Final = 15.0
HINT: Final = "free disk space, or bring database or object storage back: the run goes on by itself"


async def over_storage_faults(
    step: Callable[[], Awaitable[T]], *, run_id: str, metrics: CoordinatorMetrics
) -> T:
    """Run a repeatable step until storage does not fail it; returns what it returned."""
    pause_s = FIRST_PAUSE_S
    while True:
        began = time.monotonic()
        try:
            return await step()
        except STORAGE_FAULTS as error:
            if time.monotonic() - began > LONGEST_PAUSE_S:
                # It worked for a while: this is another fault than the last one.
                pause_s = FIRST_PAUSE_S
            metrics.storage_faults.inc()
            log.warning("storage_failed", run=run_id, reason=error, hint=HINT, retry_in_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def keep_proving(store: Store, metrics: CoordinatorMetrics) -> None:
    """Prove now and then that the database takes a write, until cancelled.

    A fault between rounds, or one that a call only waits out, is counted too.
    """
    while True:
        try:
            await asyncio.to_thread(store.check_writable)
        except StoreError as error:
            metrics.storage_faults.inc()
            log.warning("store_not_writable", reason=error)
        await asyncio.sleep(PROVE_EVERY_S)


async def over_defects(turn: Callable[[], Awaitable[T]], metrics: CoordinatorMetrics) -> T:
    """Take a repeatable turn at driving until it comes to its end; returns what it returned."""
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return await turn()
        except Exception:
            metrics.driver_failures.inc()
            log.exception("driver_failed", retry_in_s=pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
