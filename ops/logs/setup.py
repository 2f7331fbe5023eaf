"""The log of every process: lines on stderr that hold what ``ops/logs/events.py`` allows.

On a terminal a line is for people; otherwise it is one JSON object. ``CHORALE_LOG_FORMAT``
(``auto``, ``json``, ``console``) and ``CHORALE_LOG_LEVEL`` (``debug``, ``info``, ``warning``,
``error``) say otherwise, the same for both daemons and every command.

Invariants:

1. Redaction is by allow-list. A field that its event does not carry, or whose value is not of the
   field's form, reads ``[redacted]``, and ``redacted`` names it; an event that is not in the table
   becomes ``unlisted_event`` without a single value.
2. An error is told by ``ops/logs/errors.py`` alone: no line of a traceback quotes a value.
3. What libraries log, warn of, or raise where nobody catches it comes out in a daemon in the same
   form (``ops/logs/foreign.py``), without its text.
4. stdout is never written to. Times are UTC.
5. A field that is None is left out.
6. A line that cannot be written, because its disk is full or nobody reads it any more, is counted
   (``failed_writes``) and costs whoever logged it nothing: no run and no daemon ends of it.

Covered: structlog, which all our packages log with. Not covered: what a library prints to stderr
itself; rotation, which belongs to whoever collects stderr.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TextIO, cast

from federation.errors import LogSettingError
from ops.logs.logger import configured, make_ready

if TYPE_CHECKING:
    from structlog.typing import Processor

__all__ = ["REDACTED", "LogFormat", "daemon_logs", "failed_writes", "logs_on_stderr", "redact"]

REDACTED: Final = "[redacted]"
UNLISTED: Final = "unlisted_event"
FORMAT_VARIABLE: Final = "CHORALE_LOG_FORMAT"
LEVEL_VARIABLE: Final = "CHORALE_LOG_LEVEL"
MAX_FIELDS: Final = 32
_LEVELS: Final = MappingProxyType(
    {
        "debug": logging.DEBUG,
        "info": logging.INFO,
        "warning": logging.WARNING,
        "error": logging.ERROR,
    }
)
_CAUGHT: Final = "exc_info"


class LogFormat(StrEnum):
    """What a line looks like."""

    AUTO = "auto"
    """For people on a terminal, JSON elsewhere."""
    JSON = "json"
    CONSOLE = "console"


class _Sink:
    """The stream of the lines, as structlog's writer needs it; nothing here raises."""

    failed: ClassVar[int] = 0
    """Of the process, as its stderr is."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, line: str) -> None:
        """Write a line, or count that it could not be."""
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError):
            # The latter is what a stream that was closed says. There is no other place to say it.
            type(self).failed += 1

    def flush(self) -> None:
        """Do nothing: a line has gone out."""


def failed_writes() -> int:
    """How many lines of this process's log could not be written."""
    return _Sink.failed


@contextmanager
def logs_on_stderr(
    environment: Mapping[str, str] | None = None, *, stream: TextIO | None = None
) -> Iterator[None]:
    """Write this process's log for as long as a command runs.

    Format and level are named in the environment, by default the process's own.

    Raises:
        LogSettingError: A variable has a value that it cannot have.
    """
    given = os.environ if environment is None else environment
    form = _choice(given, FORMAT_VARIABLE, tuple(LogFormat), LogFormat.AUTO)
    level = _LEVELS[_choice(given, LEVEL_VARIABLE, tuple(_LEVELS), "info")]
    sink = sys.stderr if stream is None else stream

    def configure() -> None:
        # Imported only where something is logged: a command must not wait for it.
        import structlog

        structlog.configure(
            processors=_processors(LogFormat(form), sink),
            wrapper_class=structlog.make_filtering_bound_logger(level),
            logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Sink(sink))),
            cache_logger_on_first_use=False,
        )

    with configured(configure):
        yield


@contextmanager
def daemon_logs() -> Iterator[None]:
    """Take in what libraries say, too, for as long as a daemon runs; inside ``logs_on_stderr``."""
    # At the leaf, as structlog is: only a daemon needs it.
    from ops.logs.foreign import foreign_logs

    # A daemon that cannot log does not start; and a line may come from where nothing can be loaded.
    make_ready()
    with foreign_logs():
        yield


def redact(
    _logger: object, _method: str, line: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Make a line of what a call gave, with what may be rendered: structlog's first processor."""
    from ops.logs.errors import traceback_of
    from ops.logs.events import EVENTS, FIELDS
    from ops.logs.values import Unfit, shown

    given = dict(line)
    error = _caught(given.pop(_CAUGHT, None))
    event = given.pop("event", None)
    allowed = EVENTS.get(event) if isinstance(event, str) else None
    made: dict[str, Any] = {"event": UNLISTED if allowed is None else event}
    kept_out = []
    for name, value in list(given.items())[:MAX_FIELDS]:
        if value is None:
            continue
        try:
            made[name] = shown(FIELDS[name] if name in (allowed or ()) else None, value)
        except Unfit:
            # A name that is no field of ours may itself be made of data.
            made[name if name in FIELDS else "field"] = REDACTED
            kept_out.append(name if name in FIELDS else "unlisted")
    if allowed is None:
        kept_out.append("event")
    if kept_out:
        made["redacted"] = sorted(set(kept_out))
    if error is not None:
        made["exception"] = traceback_of(error)
    return made


def _caught(given: Any) -> BaseException | None:
    """The error that a call came with: an instance, what ``sys.exc_info`` says, or neither."""
    if isinstance(given, BaseException):
        return given
    if isinstance(given, tuple) and len(given) == 3:  # as sys.exc_info gives it
        return given[1] if isinstance(given[1], BaseException) else None
    return sys.exc_info()[1] if given else None


def _choice(
    environment: Mapping[str, str], variable: str, choices: tuple[str, ...], default: str
) -> str:
    found = environment.get(variable, "").strip().lower() or default
    if found not in choices:
        raise LogSettingError(f"{variable} is one of {', '.join(choices)}")
    return found


def _processors(form: LogFormat, sink: TextIO) -> list[Processor]:
    import structlog

    terminal = sink.isatty()
    common: list[Processor] = [
        redact,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if form is LogFormat.CONSOLE or (form is LogFormat.AUTO and terminal):
        return [*common, structlog.dev.ConsoleRenderer(colors=terminal)]
    return [*common, _in_order, structlog.processors.JSONRenderer()]


def _in_order(
    _logger: object, _method: str, line: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """When and how grave first, what and its fields next."""
    first = {name: line.pop(name) for name in ("timestamp", "level") if name in line}
    return {**first, **line}
