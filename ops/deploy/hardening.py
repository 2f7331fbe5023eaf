"""What both daemons ask of the kernel before anything else.

1. No core dump, of a crash or at anybody's request, and no debugger of the same account: the memory
   holds keys, masks and trajectories. Linux's "dumpable" flag does all of it, and makes
   ``/proc/PID`` root's; the limit on core files says the same where there is no such flag.
2. What it creates is its own account's alone, whatever umask it was started with.
3. As many open files as the administrator allows: the usual soft limit of 1,024 is fewer than one
   stranger can hold connections.

Covered: Linux; the limits elsewhere. Not covered: root, who reads any memory; swap; processes that
a daemon starts, which keep the limits and not the flag.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from typing import Final

__all__ = ["harden_process"]

MOST_FILES: Final = 65536
"""Some hosts allow a thousand million, which programs that close every number in turn never end."""
_PR_SET_DUMPABLE: Final = 4
"""Of linux/prctl.h."""


def harden_process() -> int:
    """Ask for all of it; again is allowed. Returns how many files this process may have open.

    Raises:
        OSError: The kernel refused to keep this process's memory to itself.
    """
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"prctl(PR_SET_DUMPABLE): {os.strerror(number)}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return MOST_FILES if soft == resource.RLIM_INFINITY else soft
