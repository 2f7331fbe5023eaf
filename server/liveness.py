"""Which silos are there: every call of a silo counts as a sign of life.

A silo that is suspended, revoked or gone for good is not there, however lately it called.

Covered: telling a dead silo from a slow one while it polls beside its local work. Not covered: a
silo that polls and never finishes; the round's deadline is for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Liveness"]

SILENT_AFTER_S = 20.0
"""A silo that has not called for this long is not waited for."""


class Liveness:
    """When each silo was last heard of; every call of a silo counts."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._seen: dict[str, float] = {}
        self._started = clock()
        self._barred: set[str] = set()

    def touch(self, silo_id: str) -> None:
        """Note a call."""
        self._seen[silo_id] = self._clock()

    def last_seen(self, silo_id: str) -> float:
        """Unix time of the last call, 0 if there was none since the coordinator started."""
        return self._seen.get(silo_id, 0.0)

    def bar(self, silo_id: str, *, barred: bool) -> None:
        """Count on a silo no more, or again; ``server/standing.py`` decides."""
        (self._barred.add if barred else self._barred.discard)(silo_id)

    def barred(self, silo_id: str) -> bool:
        """Whether this silo may take no part now."""
        return silo_id in self._barred

    def alive(self, silo_id: str) -> bool:
        """Heard of recently; everyone gets that long to show up after a restart."""
        if silo_id in self._barred:
            return False
        last = max(self.last_seen(silo_id), self._started)
        return self._clock() - last < SILENT_AFTER_S
