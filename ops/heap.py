"""What the C library keeps of memory that the program has freed.

glibc gives threads heaps of their own, up to eight for each core, and keeps in each what was freed
there. A process that handles many messages on many threads ends up with several heaps full of
holes.

Covered: glibc. Not covered: other C libraries, where all of this does nothing.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Final

__all__ = ["share_heaps", "trim"]

_M_ARENA_MAX: Final = -8
"""Of glibc's ``mallopt(3)``."""


def share_heaps(heaps: int) -> None:
    """Let all threads share this many heaps.

    To be called before there are threads: a heap that exists stays.
    """
    if (mallopt := _of_glibc("mallopt")) is not None:
        mallopt(_M_ARENA_MAX, heaps)


def trim() -> None:
    """Return freed memory to the machine.

    Takes a few milliseconds for each hundred megabytes that go, and as long again to come back.
    """
    if (malloc_trim := _of_glibc("malloc_trim")) is not None:
        malloc_trim(0)


@cache
def _of_glibc(name: str) -> Any:
    """A function of the C library; None where it is another one that has none of the kind."""
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except OSError:
        return None
