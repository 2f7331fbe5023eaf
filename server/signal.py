"""Something changed: wakes every coroutine that waits for it.

Covered: any number of waiters on one event loop. Not covered: threads.
"""

from __future__ import annotations

import asyncio

__all__ = ["Signal"]


class Signal:
    """A repeatable event without state to miss: waiters re-check what they care about."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake everyone who waits now."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Return at the next notification or after ``timeout_s``, whichever is first."""
        try:
            async with asyncio.timeout(max(timeout_s, 0.0)):
                await self._event.wait()
        except TimeoutError:
            return
