"""The daemon's log: one JSON object a line on stderr, UTC, from level info on.

Covered: structlog events with their tracebacks. Not covered: rotation, which belongs to whoever
collects stderr.
"""

from __future__ import annotations

import logging
import sys

import structlog
import structlog.tracebacks

__all__ = ["configure_logs"]


def configure_logs(level: int = logging.INFO) -> None:
    """Set the process's log up.

    Args:
        level: The least level that is written.
    """
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Without locals: a frame's variables may hold an invite's secret or a key.
            structlog.processors.ExceptionRenderer(
                structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
            ),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
