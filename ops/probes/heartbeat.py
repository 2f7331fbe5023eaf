"""Whether a daemon's event loop still turns: what ``/livez`` and systemd's watchdog ask.

A process whose loop hangs answers its probe port from other threads as if nothing were wrong, and
no call any more. So the loop itself says that it lives: once a second, with how late it came to it.

Invariants:

1. Only the loop's own turn counts. Who asks reads a number and waits for nothing.
2. Slow is not dead: a loop that is held up by one wait for a database comes back within its
   timeout, and ``LIVE_WITHIN_S`` is longer than any of them; a restart would mend nothing there.
3. Without ``NOTIFY_SOCKET``, which systemd sets, nothing is sent anywhere.

Source of the messages: sd_notify(3). Covered: Linux sockets by path and in the abstract namespace.
Not covered: threads that hang while the loop turns; many waits one after the other without a turn
between them, as when many silos write in a round while somebody holds the database.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import Final

from federation.errors import ProbeError
from ops.logs.logger import get_logger

__all__ = ["LIVE_WITHIN_S", "Heartbeat", "tell_service_manager"]

log = get_logger(__name__)

BEAT_S: Final = 1.0
LIVE_WITHIN_S: Final = 60.0


class Heartbeat:
    """The beat of one event loop."""

    def __init__(
        self,
        late: Callable[[float], object] = lambda _seconds: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``late`` is told at each beat by how many seconds it came too late."""
        self._late = late
        self._clock = clock
        self._last = clock()

    async def keep_beating(self) -> None:
        """Beat until cancelled."""
        while True:
            began = self._clock()
            await asyncio.sleep(BEAT_S)
            self._last = self._clock()
            self._late(max(0.0, self._last - began - BEAT_S))
            tell_service_manager("WATCHDOG=1")

    def require_beating(self) -> None:
        """Say whether the loop turned lately; called from threads of the probe port.

        Raises:
            ProbeError: It did not.
        """
        silent_s = self._clock() - self._last
        if silent_s > LIVE_WITHIN_S:
            raise ProbeError(f"the event loop has not turned for {silent_s:.0f} s")


def tell_service_manager(state: str) -> None:
    """Send systemd a line such as ``READY=1``, if it started this process and listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    target = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), target)
    except OSError as error:
        log.warning("service_manager_not_told", reason=error)
