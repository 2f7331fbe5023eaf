"""The plain HTTP port for kubelets, load balancers and Prometheus.

``/livez``: the process answers. ``/readyz``: the checks pass, else 503 with the failing check's
name. ``/metrics``: the registry, after the refresh function brought it up to date.

Covered: GET and HEAD, concurrent scrapes, a failing check. Not covered: authentication; bind it to
an address that only the operators' network reaches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from server.config import split_address
from server.errors import ConfigurationError

__all__ = ["Probes"]

log = structlog.get_logger(__name__)

REQUEST_TIMEOUT_S = 10


class Probes:
    """An HTTP server on a thread of its own."""

    def __init__(
        self,
        *,
        listen: str,
        registry: CollectorRegistry,
        checks: Mapping[str, Callable[[], None]],
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        """Bind the port.

        Args:
            listen: host:port; port 0 takes a free one.
            registry: What ``/metrics`` shows.
            checks: Name to a function that raises when it fails.
            refresh: Called before each scrape.

        Raises:
            ConfigurationError: The address cannot be bound.
        """
        host, port = split_address(listen)
        try:
            self._server = _ProbeServer((host, port), registry, checks, refresh)
        except OSError as error:
            raise ConfigurationError(f"the probe port {listen} cannot be bound: {error}") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="chorale-probes", daemon=True
        )

    @property
    def port(self) -> int:
        """The port in use."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _ProbeServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        registry: CollectorRegistry,
        checks: Mapping[str, Callable[[], None]],
        refresh: Callable[[], None],
    ) -> None:
        self.registry = registry
        self.checks = checks
        self.refresh = refresh
        super().__init__(address, _Handler)

    def answer(self, path: str) -> tuple[HTTPStatus, bytes, str]:
        """Return status, body and content type for a path."""
        match path.partition("?")[0]:
            case "/livez":
                return HTTPStatus.OK, b"ok\n", "text/plain; charset=utf-8"
            case "/readyz":
                return self._ready()
            case "/metrics":
                self.refresh()
                return HTTPStatus.OK, generate_latest(self.registry), CONTENT_TYPE_LATEST
            case _:
                return HTTPStatus.NOT_FOUND, b"not found\n", "text/plain; charset=utf-8"

    def _ready(self) -> tuple[HTTPStatus, bytes, str]:
        for name, check in self.checks.items():
            try:
                check()
            except Exception:
                # Any failure of a check is the answer: not ready.
                log.exception("not_ready", check=name)
                body = f"{name} failed\n".encode()
                return HTTPStatus.SERVICE_UNAVAILABLE, body, "text/plain; charset=utf-8"
        return HTTPStatus.OK, b"ready\n", "text/plain; charset=utf-8"


class _Handler(BaseHTTPRequestHandler):
    server: _ProbeServer
    timeout = REQUEST_TIMEOUT_S
    server_version = "chorale"
    sys_version = ""

    def do_GET(self) -> None:
        self._reply(with_body=True)

    def do_HEAD(self) -> None:
        self._reply(with_body=False)

    def _reply(self, *, with_body: bool) -> None:
        try:
            status, body, kind = self.server.answer(self.path)
        except Exception:
            # A defect in a probe must not take the port down; it is logged and answered as 500.
            log.exception("probe_failed", path=self.path[:64])
            status, body, kind = HTTPStatus.INTERNAL_SERVER_ERROR, b"internal error\n", "text/plain"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        log.debug("probe", request=format % args)
