"""Waiting for what other processes and threads do: it ends, and in vain it says for what."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WITHIN_S = 120.0
PAUSE_S = 0.05
TOLD_CHARS = 3000


def until(
    condition: Callable[[], T],
    what: str,
    *,
    told: Callable[[], object] | None = None,
    within_s: float = WITHIN_S,
) -> T:
    """The first true value of a condition; in vain, it fails with ``what`` and ``told``'s end."""
    give_up_at = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() >= give_up_at:
            more = f"\n{str(told())[-TOLD_CHARS:]}" if told else ""
            raise AssertionError(f"waited {within_s:g} s: {what}; last: {value!r:.500}{more}")
        time.sleep(PAUSE_S)
    return value
