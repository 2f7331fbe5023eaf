"""The second port: whether the daemon lives, whether it is ready, and its metrics. Plain HTTP.

``/livez`` answers while the process does. ``/readyz`` answers 200 while the silo could take part:
its data directory can be written. ``/metrics`` is the Prometheus text format.

Invariants:

1. Reading is all this port offers; it never changes anything and never names a private value other
   than the silo's own metrics, so bind it where only the silo's monitoring reaches it.
2. Port 0 lets the system choose; ``probes.address`` in the data directory says what it chose.

Covered: several daemons on one machine. Not covered: TLS and authentication (loopback by default).
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from federation.durable import replace_file
from silo_agent.errors import ProbeError

__all__ = ["ADDRESS_FILE", "Probes", "parse_listen"]

ADDRESS_FILE = "probes.address"
_PLAIN = "text/plain; charset=utf-8"
_REQUEST_TIMEOUT_S = 10.0


class Probes:
    """The HTTP server, on a thread of its own."""

    def __init__(
        self,
        *,
        listen: str,
        registry: CollectorRegistry,
        data_dir: Path,
        ready: Callable[[], bool] | None = None,
    ) -> None:
        """Prepare; nothing is opened before ``start``.

        Args:
            listen: ``host:port``; port 0 lets the system choose.
            registry: What ``/metrics`` shows.
            data_dir: Where ``probes.address`` is written, and what ``/readyz`` looks at.
            ready: A further condition for ``/readyz``.
        """
        self._host, self._port = parse_listen(listen)
        self._registry = registry
        self._data_dir = data_dir
        self._ready = ready
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """``host:port`` as it was opened.

        Raises:
            ProbeError: Not started.
        """
        if self._server is None:
            raise ProbeError("the probes are not started")
        return _joined(self._host, self._server.server_port)

    def start(self) -> None:
        """Open the port, answer from a daemon thread, and write the address file.

        Raises:
            ProbeError: The port cannot be opened or the file cannot be written.
        """
        try:
            server = _Ipv6Server if ":" in self._host else _Server
            self._server = server((self._host, self._port), self._handler())
            self._thread = threading.Thread(
                target=self._server.serve_forever, name="probes", daemon=True
            )
            self._thread.start()
            replace_file(self._data_dir / ADDRESS_FILE, (f"{self.address}\n".encode(),))
        except OSError as error:
            self.stop()
            raise ProbeError(
                f"cannot serve probes on {_joined(self._host, self._port)}: {error}"
            ) from error

    def stop(self) -> None:
        """Close the port and remove the address file; stopping twice is allowed."""
        server, self._server = self._server, None
        if server is None:
            return
        if self._thread is not None:
            server.shutdown()
            self._thread.join(timeout=_REQUEST_TIMEOUT_S)
        server.server_close()
        (self._data_dir / ADDRESS_FILE).unlink(missing_ok=True)

    def _answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        match path.partition("?")[0]:
            case "/livez":
                return HTTPStatus.OK, _PLAIN, b"alive\n"
            case "/readyz":
                if not os.access(self._data_dir, os.W_OK | os.X_OK):
                    body = b"the data directory cannot be written\n"
                    return HTTPStatus.SERVICE_UNAVAILABLE, _PLAIN, body
                if self._ready is not None and not self._ready():
                    return HTTPStatus.SERVICE_UNAVAILABLE, _PLAIN, b"not ready\n"
                return HTTPStatus.OK, _PLAIN, b"ready\n"
            case "/metrics":
                return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry)
            case _:
                return HTTPStatus.NOT_FOUND, _PLAIN, b"try /livez, /readyz or /metrics\n"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            timeout = _REQUEST_TIMEOUT_S
            server_version = "chorale"
            sys_version = ""

            def do_GET(self) -> None:
                status, content_type, body = answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
                """Say nothing: a scrape every few seconds is no event."""

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that hangs up in the middle of an answer is no event either."""


class _Ipv6Server(_Server):
    address_family = socket.AF_INET6


def parse_listen(listen: str) -> tuple[str, int]:
    """Split ``host:port``.

    Raises:
        ProbeError: It is not of that form.
    """
    host, separator, port = listen.rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit():
        raise ProbeError(f"{listen!r} is not host:port")
    if int(port) >= 1 << 16:
        raise ProbeError(f"{port} is not a port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
