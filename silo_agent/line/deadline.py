"""How long a call to the coordinator may take before it is given up and tried again.

Covered: single calls and streams of known length. Not covered: how long it is tried again, which is
the patience of ``silo_agent.line.transport``.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CALL_TIMEOUT_S", "stream_timeout_s"]

CALL_TIMEOUT_S: Final = 30.0
_LEAST_RATE_BYTES_PER_S: Final = 1e6
"""Below this a leg of a stream is given up; the next one resumes."""


def stream_timeout_s(length_bytes: int) -> float:
    """The time for one leg of a stream of at most so many bytes."""
    return CALL_TIMEOUT_S + length_bytes / _LEAST_RATE_BYTES_PER_S
