"""Where a command's log lines go: stdout belongs to the envelope."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["logs_on_stderr"]


@contextmanager
def logs_on_stderr() -> Iterator[None]:
    """One JSON object per line on stderr for as long as a command runs.

    Yields:
        Nothing.
    """
    # Imported only in a command that runs: --help must not wait for it.
    import structlog

    before = structlog.get_config() if structlog.is_configured() else None
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    try:
        yield
    finally:
        structlog.reset_defaults()
        if before is not None:
            structlog.configure(**before)
