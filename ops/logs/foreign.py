"""What libraries log, warn of, or let fall: taken into a daemon's log without its text.

Invariants:

1. A record of the standard library's ``logging`` is made without its text, arguments and traceback,
   so that it does not matter which handlers a library sets up for itself.
2. Each record of at least level warning and each warning becomes one line: who, where, of which
   type; each error that nobody caught as well, with its frames.
3. Everything is as it was before once the daemon is over.

Covered: every thread, errors in finalizers, asyncio's and gRPC's Python layers. Not covered: what
is printed by C code (gRPC's core), or with ``print``.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from types import TracebackType
from typing import Any, Final, TextIO

from ops.logs.errors import is_ours
from ops.logs.logger import get_logger

__all__ = ["foreign_logs"]

WITHHELD: Final = "message withheld: see the line foreign_log"
UNHANDLED: Final = frozenset({"asyncio", "concurrent.futures"})
"""Loggers that speak of errors which nobody caught; what others log, they have dealt with."""
_ERROR: Final = "chorale_error"

log = get_logger(__name__)


@contextmanager
def foreign_logs() -> Iterator[None]:
    """Take them in for as long as a daemon runs."""
    make, root, handler = logging.getLogRecordFactory(), logging.getLogger(), _Handler()
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning

    def without_text(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        error = record.exc_info[1] if record.exc_info else None
        record.msg, record.args = WITHHELD, ()
        record.exc_info = record.exc_text = record.stack_info = None
        setattr(record, _ERROR, error)
        return record

    logging.setLogRecordFactory(without_text)
    root.addHandler(handler)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_a_thread
    sys.unraisablehook = _unraisable
    warnings.showwarning = _warned
    try:
        yield
    except Exception as error:
        # Whoever called the daemon says it to people; here it is a line like the others. Only a
        # defect needs its frames.
        known = is_ours(error) or isinstance(error, OSError)
        shown = None if known else error
        log.error("daemon_failed", reason=error, exc_info=shown)  # noqa: TRY400
        raise
    finally:
        sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning = hooks
        root.removeHandler(handler)
        logging.setLogRecordFactory(make)


class _Handler(logging.Handler):
    """Hands records on to our own log."""

    def __init__(self) -> None:
        super().__init__(level=logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        error = getattr(record, _ERROR, None)
        log.log(
            min(record.levelno, logging.ERROR),
            "foreign_log",
            library=record.name,
            place=f"{record.module}:{record.lineno}",
            error=None if error is None else type(error).__name__,
            exc_info=error if record.name in UNHANDLED else None,
        )


def _warned(  # noqa: PLR0917  # the hook's signature
    message: Warning | str,  # noqa: ARG001  # its text is not ours
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    log.warning(
        "foreign_log",
        library="warnings",
        place=f"{PurePath(filename).stem}:{lineno}",
        error=category.__name__,
    )


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    log.error("uncaught", where="main", exc_info=error)


def _uncaught_in_a_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None or isinstance(args.exc_value, SystemExit):
        return
    name = args.thread.name if args.thread is not None else "a thread"
    log.error("uncaught", where=name, exc_info=args.exc_value)


def _unraisable(args: sys.UnraisableHookArgs) -> None:
    if args.exc_value is not None:
        log.error("uncaught", where="finalizer", exc_info=args.exc_value)
