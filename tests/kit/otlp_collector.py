"""An OTLP/HTTP collector: keeps what is exported to it, as it came and decoded."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.kit.waiting import until


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One span as its process told it."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    resource: dict[str, Any]
    kind: int
    events: int
    message: str


@dataclass
class Collector:
    """Listens on a port of its own until it is left."""

    bodies: list[bytes] = field(default_factory=list)
    """What was posted, after any compression."""
    headers: list[dict[str, str]] = field(default_factory=list)

    def __enter__(self) -> Self:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.bodies.append(body)
                collector.headers.append(dict(self.headers))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to export here, soon after a span has ended."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    @property
    def spans(self) -> list[Seen]:
        """Everything so far."""
        found = []
        for body in list(self.bodies):
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = _plain(group.resource.attributes)
                found += [
                    Seen(
                        service=resource["service.name"],
                        name=span.name,
                        trace_id=span.trace_id.hex(),
                        span_id=span.span_id.hex(),
                        parent_id=span.parent_span_id.hex(),
                        attributes=_plain(span.attributes),
                        resource=resource,
                        kind=span.kind,
                        events=len(span.events) + len(span.links),
                        message=span.status.message + span.trace_state,
                    )
                    for scope in group.scope_spans
                    for span in scope.spans
                ]
        return found

    def until(self, found: Callable[[list[Seen]], Any], *, seconds: float = 120.0) -> list[Seen]:
        """Wait until the spans so far are what is waited for."""
        until(
            lambda: found(self.spans),
            "the spans",
            told=lambda: sorted({span.name for span in self.spans}),
            within_s=seconds,
        )
        return self.spans


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
