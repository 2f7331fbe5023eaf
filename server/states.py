"""Where a run is, and where a silo is on its way into rounds: the words of both.

They are those of the store, of metrics, of messages to the admin and of the status page.

Covered: the words alone, for who reads them without a store. Not covered: which changes there are
(``server/store``), who makes them (``server/conductor``, ``server/members``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = ["ACTIVE", "OVER", "RunState", "SiloState"]


class RunState(StrEnum):
    """Where a run is."""

    QUEUED = "queued"
    """It waits for the runs before it."""
    RUNNING = "running"
    PAUSING = "pausing"
    """It is paused as soon as the release that silos have agreed on is closed."""
    PAUSED = "paused"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


ACTIVE: Final = frozenset({RunState.RUNNING, RunState.PAUSING})
"""Driven; at most one run is."""
OVER: Final = frozenset({RunState.FINISHED, RunState.ABORTED, RunState.FAILED})


class SiloState(StrEnum):
    """Where a silo is on its way into rounds."""

    INVITED = "invited"
    ENROLLED = "enrolled"
    ROSTERED = "rostered"
    SITTING_OUT = "sitting_out"
    """In the roster, and not asked for some rounds of the run that is driven."""
    SUSPENDED = "suspended"
    LEFT = "left"
    REVOKED = "revoked"
