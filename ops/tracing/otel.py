"""A tracer by OpenTelemetry's SDK, sending over OTLP/HTTP. Imported only where tracing is on.

Invariants: the provider is the process's own, none of OpenTelemetry's globals; ids are the
operating system's randomness, for a silo's generators are seeded from a secret, and what a peer
sees of an id must say nothing about them, nor may tracing change what they draw next; what the
standard variables say of sampling, limits, batches, headers and certificates holds.

Covered: batches, a collector that is away. Not covered: exporters other than OTLP/HTTP.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Tracer

from federation.version import installed_version

__all__ = ["measuring", "sending"]

FLUSH_S: Final = 3.0


@contextmanager
def sending(service: str) -> Iterator[Tracer]:
    """Send what a tracer measures to the collector that the environment names.

    At the end what is left is sent for a few seconds at most: a process must be able to stop.
    """
    # The SDK logs a collector that is away; in a daemon that is a line of our own, in a command it
    # would be prose of a library's between ours.
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    exporter = OTLPSpanExporter()
    provider = measuring(service, BatchSpanProcessor(exporter))
    try:
        yield provider.get_tracer("chorale")
    finally:
        last = threading.Thread(target=provider.shutdown, daemon=True, name="last-spans")
        last.start()
        last.join(FLUSH_S)
        if last.is_alive():
            exporter.shutdown()  # type: ignore[no-untyped-call]  # it has no annotations
            last.join(1.0)


def measuring(service: str, processor: SpanProcessor) -> TracerProvider:
    """Make a provider whose spans are handed to a processor when they end.

    The process is called ``service``, unless the environment gives another name.
    """
    attributes = {SERVICE_VERSION: installed_version()}
    if not os.environ.get("OTEL_SERVICE_NAME", "").strip():
        attributes[SERVICE_NAME] = service
    provider = TracerProvider(
        resource=Resource.create(attributes), id_generator=_Ids(), shutdown_on_exit=False
    )
    provider.add_span_processor(processor)
    return provider


class _Ids(IdGenerator):
    """Not the SDK's, which draws from the generator that a run's seed may have set."""

    def generate_span_id(self) -> int:
        """Draw 64 bits, not all zero."""
        return secrets.randbits(64) or self.generate_span_id()

    def generate_trace_id(self) -> int:
        """Draw 128 bits, not all zero."""
        return secrets.randbits(128) or self.generate_trace_id()
