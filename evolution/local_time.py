"""The wall time that a site gives to one round's local work.

Work that runs longer than ``max_local_hours_per_round`` is ended between two of its steps, and is
then work that failed: zeros with full noise, as ADR 5 has it. The guardian accepts only plans whose
``ready_deadline_s`` fits into that time (``silo_agent/policy/limits.py``), so the round is over for
this silo by then, and whether work was cut shows nowhere.

Covered: exploring, training and judging; trainers in processes of their own, which are ended. Not
covered: sums of unit gradients, which the plan's phase deadline bounds; one single step of the
model in this process, however long it takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from evolution.errors import LocalTimeError

__all__ = ["local_time", "require_time"]

_ends_at: ContextVar[float | None] = ContextVar("chorale_local_work_ends_at", default=None)


@contextmanager
def local_time(hours: float | None) -> Iterator[None]:
    """Within this, ``require_time`` counts; without a limit it does not."""
    token = _ends_at.set(None if hours is None else time.monotonic() + hours * 3600.0)
    try:
        yield
    finally:
        _ends_at.reset(token)


def require_time() -> None:
    """Called between the steps of local work.

    Raises:
        LocalTimeError: The site's time for it is over.
    """
    ends_at = _ends_at.get()
    if ends_at is not None and time.monotonic() > ends_at:
        raise LocalTimeError("limits.max_local_hours_per_round is over: the work is ended")
