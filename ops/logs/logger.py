"""Loggers that load structlog with the first line they write: most commands write none.

Invariants:

1. A line is written by structlog as ``ops/logs/setup.py`` configures it, so what is put off here is
   in force before the first line is made, in whichever thread that is.
2. A configuration ends with its block: what was put off and never needed is dropped, and what stood
   before stands again.

Covered: processes with and without a configuration of ours; blocks inside blocks. Not covered: who
uses structlog without a logger from here; none of our packages does (``tests/arch``).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["Logger", "configured", "get_logger", "make_ready"]


@dataclass(slots=True)
class _PutOff:
    """What has yet to be done before a line is made."""

    configure: Callable[[], None] | None = None


_put_off = _PutOff()
_lock = threading.RLock()


class Logger:
    """What a module logs with; the event's name comes first, its fields are named."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, event: str, **fields: Any) -> None:
        """Log what only its developers look for."""
        self._ready().debug(event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log what happened."""
        self._ready().info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log what somebody should look at."""
        self._ready().warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log what failed."""
        self._ready().error(event, **fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log what failed, with the error that is handled."""
        self._ready().exception(event, **fields)

    def log(self, level: int, event: str, **fields: Any) -> None:
        """Log at a level of the standard library's ``logging``."""
        self._ready().log(level, event, **fields)

    def _ready(self) -> Any:
        make_ready()
        import structlog

        return structlog.get_logger(self._name)


def get_logger(name: str) -> Logger:
    """The logger of a module."""
    return Logger(name)


def make_ready() -> None:
    """Bring into force what was put off, for what writes lines by itself or cannot wait."""
    with _lock:
        if _put_off.configure is not None:
            _put_off.configure()
            _put_off.configure = None


@contextmanager
def configured(configure: Callable[[], None]) -> Iterator[None]:
    """Have structlog configured by ``configure`` inside the block, once somebody needs it.

    Where structlog is loaded already, it is configured at once.
    """
    with _lock:
        loaded = "structlog" in sys.modules
        before = _configuration() if loaded else None
        outer, _put_off.configure = _put_off.configure, configure
        if loaded:
            make_ready()
    try:
        yield
    finally:
        with _lock:
            _put_off.configure = outer
            if "structlog" in sys.modules:
                import structlog

                structlog.reset_defaults()
                if before is not None:
                    structlog.configure(**before)


def _configuration() -> dict[str, Any] | None:
    import structlog

    return structlog.get_config() if structlog.is_configured() else None
