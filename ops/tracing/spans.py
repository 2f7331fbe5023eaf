"""Spans of what a process does, for operators who run OpenTelemetry; nothing at all otherwise.

Tracing is on if a standard variable names a collector (``OTEL_EXPORTER_OTLP_ENDPOINT``, or the one
for traces) and the extra ``chorale[otel]`` is installed. Otherwise every span is ``INVALID_SPAN``
of OpenTelemetry's API, which measures nothing, and the SDK is not imported.

Invariants:

1. A span holds metadata: its name, its times, how it ended, and the attributes of ``ATTRIBUTES``,
   each of a declared form. No payload, no id, no text, no error's words. So spans are begun, noted
   and ended here only.
2. A process's spans go to that process's own collector. What crosses between processes is one W3C
   ``traceparent`` (version 00) beside a call: two random numbers and a flag. There is no
   ``tracestate`` and no baggage.
3. A ``traceparent`` from a peer is read strictly: another form, or two of them, count as none. It
   decides which trace a span belongs to, and nothing else.
4. Nothing global of OpenTelemetry is set or read, its provider and its context included, so a
   library that is instrumented neither exports through us nor tells others of our spans.
5. A collector that is slow or away costs spans, never a call.

Covered: threads (``carry``), asyncio. Not covered: metrics and logs by OpenTelemetry; a peer that
puts its calls into a trace of another, which only confuses the reader of traces.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from types import MappingProxyType
from typing import Any, Final, TypeVar

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from federation.errors import TracingError
from ops.logs.events import Kind
from ops.logs.values import Unfit, shown

__all__ = [
    "ATTRIBUTES",
    "TRACEPARENT",
    "begin",
    "carry",
    "end",
    "follow",
    "is_on",
    "note",
    "read_traceparent",
    "spanned",
    "traceparent_of",
    "tracing",
    "use",
]

R = TypeVar("R")

ATTRIBUTES: Final = MappingProxyType(
    {
        "attempt": ("chorale.attempt", Kind.NUMBER),
        "bytes": ("chorale.bytes", Kind.NUMBER),
        "code": ("rpc.grpc.status_code", Kind.NUMBER),
        "error": ("error.type", Kind.NAME),
        "method": ("rpc.method", Kind.NAME),
        "outcome": ("chorale.outcome", Kind.NAME),
        "request_bytes": ("chorale.request_bytes", Kind.NUMBER),
        "response_bytes": ("chorale.response_bytes", Kind.NUMBER),
        "round": ("chorale.round", Kind.NUMBER),
        "service": ("rpc.service", Kind.NAME),
        "step": ("chorale.step", Kind.NUMBER),
        "system": ("rpc.system", Kind.NAME),
    }
)
"""What a span may say of itself: our word, OpenTelemetry's key, and the form of its values."""
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
TRACEPARENT: Final = "traceparent"
_FORM: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")

_tracer: Tracer | None = None
_CURRENT: ContextVar[Span | None] = ContextVar("chorale_span", default=None)
_FOLLOWED: ContextVar[Span] = ContextVar("chorale_followed_span", default=INVALID_SPAN)


def is_on() -> bool:
    """Whether spans are measured."""
    return _tracer is not None


def use(tracer: Tracer | None) -> None:
    """Measure spans with a tracer from now on, or no more."""
    global _tracer  # noqa: PLW0603  # one process has one collector
    _tracer = tracer


@contextmanager
def tracing(service: str, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Measure spans for as long as a process works, if its environment asks for it.

    The process is called ``service``, unless ``OTEL_SERVICE_NAME`` gives another name.

    Raises:
        TracingError: It is asked for and cannot be had.
    """
    given = os.environ if environment is None else environment
    endpoint = "" if is_on() else _endpoint(given)
    if not endpoint:
        yield
        return
    try:
        from ops.tracing.otel import sending
    except ImportError as error:
        raise TracingError(
            f"{endpoint} is set, and OpenTelemetry's SDK is not installed: "
            "pip install 'chorale[otel]', or unset it"
        ) from error
    with sending(service) as tracer:
        use(tracer)
        try:
            yield
        finally:
            use(None)


def begin(
    name: str,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: Span | None = None,
    **attributes: int | str,
) -> Span:
    """Begin a span, for the caller to ``end``.

    Its parent is what this context is in, or else follows, unless one is given; ``INVALID_SPAN``
    as the parent begins a trace.
    """
    if _tracer is None:
        return INVALID_SPAN
    if parent is None:
        parent = _CURRENT.get() or _FOLLOWED.get()
    # An error's words are not recorded, should the span ever be used as a context manager.
    span = _tracer.start_span(
        name,
        set_span_in_context(parent, Context()),
        kind,
        record_exception=False,
        set_status_on_exception=False,
    )
    note(span, **attributes)
    return span


def note(span: Span, **attributes: int | str) -> None:
    """Add attributes; those that ``ATTRIBUTES`` does not allow are left out."""
    for name, value in attributes.items():
        key, kind = ATTRIBUTES.get(name, ("", None))
        try:
            span.set_attribute(key, shown(kind, value))
        except Unfit:
            continue


def end(span: Span, error: str = "") -> None:
    """End a span, with the type of what went wrong if anything did; only the first time counts."""
    if not span.is_recording():
        return
    if error:
        note(span, error=error)
        span.set_status(StatusCode.ERROR)
    span.end()


@contextmanager
def spanned(name: str) -> Iterator[None]:
    """Measure a block, or as a decorator each call of a function; what it calls belongs to it."""
    span = begin(name)
    before = _CURRENT.set(span)
    error = ""
    try:
        yield
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        _CURRENT.reset(before)
        end(span, error)


def carry(job: Callable[[], R]) -> Callable[[], R]:
    """Let a job that another thread will do belong to what this one is in."""
    return job if _tracer is None else functools.partial(copy_context().run, job)


def follow(peer: Span) -> None:
    """Let what this context begins belong to a peer's span; to none with ``INVALID_SPAN``."""
    _FOLLOWED.set(peer)


def traceparent_of(span: Span) -> str:
    """What a peer is told of a span; empty if there is nothing to tell."""
    here = span.get_span_context()
    if not here.is_valid:
        return ""
    return f"00-{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags.sampled:02x}"


def read_traceparent(words: Iterable[tuple[Any, Any]] | None) -> Span:
    """Read all metadata of a peer's call or answer.

    Returns:
        Its span; ``INVALID_SPAN`` if it names none, two, or one in another form than version 00's.
    """
    said = [value for key, value in words or () if key == TRACEPARENT]
    if len(said) != 1 or not isinstance(said[0], str) or not (found := _FORM.fullmatch(said[0])):
        return INVALID_SPAN
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    sampled = TraceFlags(flags & TraceFlags.SAMPLED)
    there = SpanContext(trace_id, span_id, is_remote=True, trace_flags=sampled)
    return NonRecordingSpan(there) if there.is_valid else INVALID_SPAN


def _endpoint(environment: Mapping[str, str]) -> str:
    """The variable by which traces over OTLP are asked for; empty if they are not."""
    said = {name: value.strip() for name, value in environment.items()}
    found = next((name for name in ENDPOINTS if said.get(name)), "")
    exporter = said.get("OTEL_TRACES_EXPORTER", "").lower()
    off = said.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if off or exporter == "none" or not found:
        return ""
    if exporter not in {"", "otlp"}:
        raise TracingError("OTEL_TRACES_EXPORTER is otlp or none")
    for name in PROTOCOLS:
        if said.get(name, "").lower() not in {"", "http/protobuf"}:
            raise TracingError(f"{name} is http/protobuf: spans are sent in no other way")
    return found
