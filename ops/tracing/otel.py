"""Spans by OpenTelemetry's SDK, sent over OTLP/HTTP. Imported only where tracing is on.

Invariants: nothing global of OpenTelemetry is set or read, so a library that is instrumented does
not export through us; an exception is never recorded, only its type; ids are the operating
system's randomness; what the standard variables say of sampling, limits, batches, headers and
certificates holds.

Covered: batches, a collector that is away. Not covered: exporters other than OTLP/HTTP.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator

from federation.version import installed_version
from ops.logs.values import Unfit, shown
from ops.tracing.model import ATTRIBUTES, Span, Traceparent

__all__ = ["OtelBackend", "open_backend"]

FLUSH_S: Final = 3.0
_KINDS: Final = {
    "internal": trace.SpanKind.INTERNAL,
    "client": trace.SpanKind.CLIENT,
    "server": trace.SpanKind.SERVER,
}


def open_backend(service: str) -> OtelBackend:
    """Send spans to the collector that the environment names.

    Args:
        service: The process's name, unless the environment gives another.

    Returns:
        The backend, for the caller to close.
    """
    # The SDK logs a collector that is away; in a daemon that is a line of our own, in a command it
    # would be prose of a library's between ours.
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    exporter = OTLPSpanExporter()
    return OtelBackend(service, BatchSpanProcessor(exporter), give_up=exporter.shutdown)


class OtelBackend:
    """Makes spans and hands ended ones to a processor.

    Args:
        service: The process's name, unless the environment gives another.
        processor: Takes what has ended.
        give_up: Ends an export that does not get through.
    """

    def __init__(
        self, service: str, processor: SpanProcessor, *, give_up: Callable[[], None] | None = None
    ) -> None:
        self._give_up = give_up
        attributes = {SERVICE_VERSION: installed_version()}
        if not os.environ.get("OTEL_SERVICE_NAME", "").strip():
            attributes[SERVICE_NAME] = service
        self._provider = TracerProvider(
            resource=Resource.create(attributes),
            id_generator=_Ids(),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("chorale")

    def begin(self, name: str, *, kind: str, parent: Span | Traceparent | None) -> Span:
        """Begin a span.

        Args:
            name: What is done.
            kind: One of OpenTelemetry's kinds.
            parent: None begins a trace.
        """
        return _OtelSpan(
            self._tracer.start_span(
                name,
                context=trace.set_span_in_context(_parent(parent)),
                kind=_KINDS[kind],
                record_exception=False,
                set_status_on_exception=False,
            )
        )

    def close(self) -> None:
        """Send what has ended, for a few seconds at most: a process must be able to stop."""
        sending = threading.Thread(target=self._provider.shutdown, daemon=True, name="last-spans")
        sending.start()
        sending.join(FLUSH_S)
        if sending.is_alive() and self._give_up is not None:
            self._give_up()
            sending.join(1.0)


class _OtelSpan(Span):
    """One that is measured."""

    def __init__(self, inner: trace.Span) -> None:
        self.inner = inner

    @property
    def traceparent(self) -> str:
        """What a peer is told of it."""
        here = self.inner.get_span_context()
        return str(
            Traceparent(
                trace_id=here.trace_id, span_id=here.span_id, sampled=here.trace_flags.sampled
            )
        )

    def note(self, **attributes: int | str) -> None:
        """Add attributes."""
        for name, value in attributes.items():
            key, kind = ATTRIBUTES.get(name, ("", None))
            try:
                self.inner.set_attribute(key, shown(kind, value))
            except Unfit:
                continue

    def end(self, error: str = "") -> None:
        """End it."""
        if not self.inner.is_recording():
            return
        if error:
            self.note(error=error)
            self.inner.set_status(trace.StatusCode.ERROR)
        self.inner.end()


class _Ids(IdGenerator):
    """Not the SDK's, which draws from the generator that a run's seed may have set."""

    def generate_span_id(self) -> int:
        """Draw 64 bits, not all zero."""
        return secrets.randbits(64) or self.generate_span_id()

    def generate_trace_id(self) -> int:
        """Draw 128 bits, not all zero."""
        return secrets.randbits(128) or self.generate_trace_id()


def _parent(parent: Span | Traceparent | None) -> trace.Span:
    if isinstance(parent, _OtelSpan):
        return parent.inner
    if isinstance(parent, Traceparent):
        return trace.NonRecordingSpan(
            trace.SpanContext(
                trace_id=parent.trace_id,
                span_id=parent.span_id,
                is_remote=True,
                trace_flags=trace.TraceFlags(
                    trace.TraceFlags.SAMPLED if parent.sampled else trace.TraceFlags.DEFAULT
                ),
            )
        )
    return trace.INVALID_SPAN
