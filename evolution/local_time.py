"""The wall time that one round's local work may take as a whole.

Work that runs longer is ended between two of its steps. In the modes ``silo`` and ``none`` the time
is the site's ``max_local_hours_per_round``, and what was ended is work that failed: zeros with full
noise, as ADR 5 has it. The guardian accepts only plans whose ``ready_deadline_s`` fits into that
time (``silo_agent/policy/limits.py``), so the round is over for this silo by then, and whether work
was cut shows nowhere.

In the record-level modes noise hides one unit, not the absence of all: there the time is the plan's
``ready_after_s``, no part of the work takes what this raises for a unit's failure, and what was
ended leaves the silo in no form (``silo_agent/local_work/work.py``). One slow unit never comes to
that: its tries have clocks of their own (``evolution/rollout/own_time.py``).

Work that nobody wants any more ends at the same places, and is no failure: a run that is over
releases nothing, and a silo that is stopped does not get to the end of exploring. Whoever asks for
the work says what "wanted" means, and the work only asks.

Covered: exploring, training and judging; trainers in processes of their own, which are ended. Not
covered: sums of unit gradients, which end by themselves; one single step of the model in this
process, however long it takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from evolution.errors import LocalTimeError, NotWantedError

__all__ = ["local_time", "require_time", "require_wanted", "while_wanted"]

_ends_at: ContextVar[float | None] = ContextVar("chorale_local_work_ends_at", default=None)


@contextmanager
def local_time(hours: float | None) -> Iterator[Callable[[], None]]:
    """Within this, ``require_time`` counts; without a limit it does not.

    What it gives has the time begin anew: for work whose preparation is not counted.
    """

    def ends_at() -> float | None:
        return None if hours is None else time.monotonic() + hours * 3600.0

    def begin() -> None:
        _ends_at.set(ends_at())

    token = _ends_at.set(ends_at())
    try:
        yield begin
    finally:
        _ends_at.reset(token)


def require_time() -> None:
    """Called between the steps of local work.

    Raises:
        LocalTimeError: The time for it is over.
    """
    ends_at = _ends_at.get()
    if ends_at is not None and time.monotonic() > ends_at:
        raise LocalTimeError(
            "the time for local work is over, and it is ended: limits.max_local_hours_per_round of "
            "the policy, or in a record mode ready_after_s of the plan"
        )


_wanted: ContextVar[Callable[[], bool] | None] = ContextVar("chorale_work_wanted", default=None)


@contextmanager
def while_wanted(wanted: Callable[[], bool]) -> Iterator[None]:
    """Within this, ``require_wanted`` asks; it may be asked often, and answers at once."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


def require_wanted() -> None:
    """Called between the steps of local work.

    Raises:
        NotWantedError: Nobody wants it any more.
    """
    wanted = _wanted.get()
    if wanted is not None and not wanted():
        raise NotWantedError("nobody wants this work any more: it is ended")
