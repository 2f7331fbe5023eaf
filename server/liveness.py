"""Which silos are there: every call of a silo counts as a sign of life.

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

    def touch(self, silo_id: str) -> None:
        """Note a call."""
        self._seen[silo_id] = self._clock()

    def last_seen(self, silo_id: str) -> float:
        """Unix time of the last call, 0 if there was none since the coordinator started."""
        return self._seen.get(silo_id, 0.0)

    def alive(self, silo_id: str) -> bool:
        """Heard of recently; everyone gets that long to show up after a restart."""
        last = max(self.last_seen(silo_id), self._started)
        return self._clock() - last < SILENT_AFTER_S
