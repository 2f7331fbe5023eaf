"""Spans of what a process does, for operators who run OpenTelemetry; nothing at all otherwise.

Tracing is on if a standard variable names a collector (``OTEL_EXPORTER_OTLP_ENDPOINT``, or the one
for traces) and the extra ``chorale[otel]`` is installed. Without the variable nothing is imported,
nothing is measured, and every function here returns at once.

Invariants:

1. A span holds metadata: its name, its times, how it ended, and the attributes that ``model.py``
   allows.
2. A process's spans go to that process's own collector. What crosses between processes is one W3C
   ``traceparent`` beside a call: two random numbers and a flag. There is no ``tracestate`` and no
   baggage.
3. A ``traceparent`` from a peer decides which trace a span belongs to, and nothing else.
4. Ids come from the operating system: a silo's generators are seeded from a secret, and what a peer
   sees of an id must say nothing about them, nor may tracing change what they draw next.
5. A collector that is slow or away costs spans, never a call.

Covered: threads (``carry``), asyncio. Not covered: metrics and logs by OpenTelemetry; a peer that
puts its calls into a trace of another, which only confuses the reader of traces.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Final, ParamSpec, Protocol, TypeVar

from federation.errors import TracingError
from ops.tracing.model import NO_SPAN, Span, Traceparent

__all__ = [
    "Backend",
    "begin",
    "carry",
    "follow",
    "is_on",
    "spanned",
    "tracing",
    "use",
]

P = ParamSpec("P")
R = TypeVar("R")

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class Backend(Protocol):
    """Makes the spans of a process where tracing is on."""

    def begin(self, name: str, *, kind: str, parent: Span | Traceparent | None) -> Span:
        """Begin a span; without a parent, a trace."""

    def close(self) -> None:
        """Export what has ended; nothing can begin after it."""


_backend: Backend | None = None
_CURRENT: ContextVar[Span | None] = ContextVar("chorale_span", default=None)
_FOLLOWED: ContextVar[Traceparent | None] = ContextVar("chorale_followed_span", default=None)


def is_on() -> bool:
    """Whether spans are measured."""
    return _backend is not None


def use(backend: Backend | None) -> None:
    """Measure spans with a backend from now on, or no more."""
    global _backend  # noqa: PLW0603  # one process has one collector
    _backend = backend


@contextmanager
def tracing(service: str, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Measure spans for as long as a process works, if its environment asks for it.

    Args:
        service: The process's name, unless ``OTEL_SERVICE_NAME`` gives another.
        environment: Where the variables are; the process's own when absent.

    Yields:
        Nothing.

    Raises:
        TracingError: It is asked for and cannot be had.
    """
    given = os.environ if environment is None else environment
    if is_on() or not _asked(given):
        yield
        return
    try:
        from ops.tracing.otel import open_backend
    except ImportError as error:
        raise TracingError(
            f"{_endpoint(given)} is set, and OpenTelemetry is not installed: "
            "pip install 'chorale[otel]', or unset it"
        ) from error
    backend = open_backend(service)
    use(backend)
    try:
        yield
    finally:
        use(None)
        backend.close()


def begin(
    name: str,
    *,
    kind: str = "internal",
    parent: Span | Traceparent | None = None,
    root: bool = False,
    **attributes: int | str,
) -> Span:
    """Begin a span.

    Args:
        name: What is done.
        kind: ``internal``, ``client`` or ``server``.
        parent: What it is a part of; by default what this context is in, or follows.
        root: Whether it begins a trace instead.
        attributes: See ``ATTRIBUTES``.

    Returns:
        The span, for the caller to end.
    """
    if _backend is None:
        return NO_SPAN
    if parent is None and not root:
        parent = _CURRENT.get() or _FOLLOWED.get()
    span = _backend.begin(name, kind=kind, parent=parent)
    span.note(**attributes)
    return span


def spanned(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Measure a function: each call is a span, and what it calls belongs to it.

    Args:
        name: The span's.
    """

    def around(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            if _backend is None:
                return function(*args, **kwargs)
            span = begin(name)
            before = _CURRENT.set(span)
            error = ""
            try:
                return function(*args, **kwargs)
            except BaseException as raised:
                error = type(raised).__name__
                raise
            finally:
                _CURRENT.reset(before)
                span.end(error)

        return measured

    return around


def carry(job: Callable[[], R]) -> Callable[[], R]:
    """Let a job that another thread will do belong to what this one is in.

    Args:
        job: What is to be done.

    Returns:
        The same, in this context.
    """
    if _backend is None:
        return job
    return functools.partial(copy_context().run, job)


def follow(traceparent: Traceparent | None) -> None:
    """Let what this context begins belong to a peer's span; to none with None."""
    _FOLLOWED.set(traceparent)


def _endpoint(environment: Mapping[str, str]) -> str:
    return next((name for name in ENDPOINTS if environment.get(name, "").strip()), "")


def _asked(environment: Mapping[str, str]) -> bool:
    """Whether the standard variables ask for traces over OTLP."""
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if off or exporter == "none" or not _endpoint(environment):
        return False
    if exporter not in {"", "otlp"}:
        raise TracingError("OTEL_TRACES_EXPORTER is otlp or none")
    for name in PROTOCOLS:
        if environment.get(name, "").strip().lower() not in {"", "http/protobuf"}:
            raise TracingError(f"{name} is http/protobuf: spans are sent in no other way")
    return True
