"""The second port of a daemon: whether it lives, whether it is ready, its metrics, and pages.

``/livez``: the process answers, and ``alive`` does not say otherwise. ``/readyz``: the checks pass,
else 503 with the failing check's name. ``/metrics``: the registry, after the refresh function
brought it up to date. Anything else is asked of ``pages``.

Invariants:

1. Reading is all this port offers: GET and HEAD, no body is read, nothing changes.
2. A caller can neither stop the daemon nor hold it: handshakes and answers have their own threads,
   a time limit, and at most ``MAX_CONNECTIONS`` at a time; who comes beyond that is hung up on.
3. Nothing of a failure but the failing check's name is answered; the rest is in the log.
   Whoever asks often does not make a check write often (``Spaced``).
4. Port 0 lets the system choose; the address file, if one is named, says what it chose.

Plain HTTP, or TLS with the operator's certificate (``ops/probes/tls.py``).

Covered: concurrent scrapes, a failing check, callers that hang up, say nothing or speak something
else, several daemons on one machine. Not covered: who is shown ``/metrics``
(``ops/probes/metrics.py``).
"""

from __future__ import annotations

import math
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from federation.errors import ProbeError, ProbePortError
from ops.address import ADDRESS_FILE, joined_address, split_address
from ops.files import replace_file
from ops.logs.logger import get_logger
from ops.probes.metrics import MetricsAccess
from ops.probes.tls import ProbeTls

__all__ = ["ADDRESS_FILE", "PageAnswer", "PageRequest", "Probes", "Spaced"]

log = get_logger(__name__)

MAX_CONNECTIONS: Final = 64
REQUEST_TIMEOUT_S: Final = 10.0
CHECK_EVERY_S: Final = 5.0
PLAIN: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, kw_only=True, slots=True)
class PageRequest:
    """A GET or HEAD of something that is no probe."""

    path: str
    """As it was asked for, with its query."""
    host_header: str
    """``Host`` as it was sent; empty without one."""
    peer_address: str
    """IP address that the connection comes from."""
    peer_certificate_der: bytes | None
    """The client certificate that TLS verified; None without one."""
    scheme: str
    """http or https."""
    authorization: str = field(default="", repr=False)
    """``Authorization`` as it was sent; empty without one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageAnswer:
    """What is sent back."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


Pages = Callable[[PageRequest], PageAnswer | None]


def _text(status: HTTPStatus, words: str) -> PageAnswer:
    return PageAnswer(status=status, content_type=PLAIN, body=f"{words}\n".encode())


class Probes:
    """An HTTP server on a thread of its own."""

    def __init__(
        self,
        *,
        listen: str,
        registry: CollectorRegistry,
        checks: Mapping[str, Callable[[], None]],
        alive: Callable[[], None] = lambda: None,
        refresh: Callable[[], None] = lambda: None,
        pages: Pages = lambda _request: None,
        metrics: MetricsAccess | None = None,
        tls: ProbeTls | None = None,
        address_file: Path | None = None,
    ) -> None:
        """Bind the port; nothing is answered before ``start``.

        Args:
            listen: host:port; port 0 takes a free one.
            registry: What ``/metrics`` shows.
            checks: Name to a function that raises when it fails.
            alive: Raises if the process should be started anew; it may wait for nothing.
            refresh: Called before each scrape.
            pages: Answers what is no probe; None for what it does not know.
            metrics: Who is shown ``/metrics``; everybody if unset.
            tls: Plain HTTP if unset.
            address_file: Where ``start`` writes the address.

        Raises:
            ProbePortError: The address cannot be bound.
        """
        try:
            host, port = split_address(listen)
            kind = _Ipv6Server if ":" in host else _Server
            self._server = kind((host, port), _Handler)
        except (OSError, ValueError) as error:
            raise ProbePortError(f"cannot serve probes on {listen}: {error}") from error
        self._server.answers = _Answers(
            registry=registry,
            checks=checks,
            alive=alive,
            refresh=refresh,
            pages=pages,
            metrics=metrics,
        )
        self._server.tls = tls
        self._host, self._address_file, self._open = host, address_file, True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="chorale-probes", daemon=True
        )

    @property
    def port(self) -> int:
        """The port in use."""
        return int(self._server.server_port)

    @property
    def address(self) -> str:
        """``host:port`` as it was bound."""
        return joined_address(self._host, self.port)

    def start(self) -> None:
        """Begin to answer, and write the address file.

        Raises:
            ProbeError: The address file cannot be written.
        """
        self._thread.start()
        if self._address_file is not None:
            try:
                replace_file(self._address_file, (f"{self.address}\n".encode(),))
            except OSError as error:
                self.close()
                raise ProbeError(f"{self._address_file} cannot be written: {error}") from error

    def close(self) -> None:
        """Stop answering, free the port, remove the address file; twice is allowed."""
        if not self._open:
            return
        self._open = False
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        if self._address_file is not None:
            self._address_file.unlink(missing_ok=True)


class Spaced:
    """A check that costs something: made once in a while, however many ask however often."""

    def __init__(
        self, check: Callable[[], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Wrap a check, which raises when it fails, with a clock of seconds that only grow."""
        self._check = check
        self._clock = clock
        self._lock = threading.Lock()
        self._again_at = -math.inf
        self._passed = False

    def __call__(self) -> None:
        """Check, or say what the last check said.

        Raises:
            ProbeError: It failed a moment ago; the reason is in the log since then.
        """
        with self._lock:
            if self._clock() < self._again_at:
                if not self._passed:
                    raise ProbeError("the last check failed, and the next one is not due yet")
                return
            self._passed = False
            try:
                self._check()
                self._passed = True
            finally:
                self._again_at = self._clock() + CHECK_EVERY_S


class _Answers:
    """What each path is answered with."""

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        checks: Mapping[str, Callable[[], None]],
        alive: Callable[[], None],
        refresh: Callable[[], None],
        pages: Pages,
        metrics: MetricsAccess | None,
    ) -> None:
        self._metrics = metrics
        self._registry = registry
        self._checks = checks
        self._alive = alive
        self._refresh = refresh
        self._pages = pages

    def to(self, request: PageRequest) -> PageAnswer:
        match request.path.partition("?")[0]:
            case "/livez":
                return self._live()
            case "/readyz":
                return self._ready()
            case "/metrics":
                access = self._metrics
                refused = access.refusal(request.authorization) if access is not None else None
                if refused is not None:
                    return _text(*refused)
                self._refresh()
                return PageAnswer(
                    status=HTTPStatus.OK,
                    content_type=CONTENT_TYPE_LATEST,
                    body=generate_latest(self._registry),
                )
            case _:
                page = self._pages(request)
                if page is None:
                    return _text(HTTPStatus.NOT_FOUND, "try /livez, /readyz or /metrics")
                return page

    def _live(self) -> PageAnswer:
        try:
            self._alive()
        except Exception:
            log.exception("not_alive")
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "hangs")
        return _text(HTTPStatus.OK, "alive")

    def _ready(self) -> PageAnswer:
        for name, check in self._checks.items():
            try:
                check()
            except Exception:
                # Any failure of a check is the answer: not ready.
                log.exception("not_ready", check=name)
                return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"{name} failed")
        return _text(HTTPStatus.OK, "ready")


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_TIMEOUT_S
    server_version = "chorale"
    sys_version = ""

    def do_GET(self) -> None:
        self._reply(with_body=True)

    def do_HEAD(self) -> None:
        self._reply(with_body=False)

    def _reply(self, *, with_body: bool) -> None:
        encrypted = isinstance(self.connection, ssl.SSLSocket)
        certificate = self.connection.getpeercert(binary_form=True) if encrypted else None
        request = PageRequest(
            path=self.path,
            host_header=self.headers.get("Host", ""),
            peer_address=str(self.client_address[0]),
            peer_certificate_der=certificate,
            scheme="https" if encrypted else "http",
            authorization=self.headers.get("Authorization", ""),
        )
        try:
            answer = self.server.answers.to(request)
        except Exception:
            # A defect in a probe must not take the port down; it is logged and answered as 500.
            log.exception("probe_failed", path=self.path[:64])
            answer = _text(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error")
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Say nothing: a scrape every few seconds is no event."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    answers: _Answers
    tls: ProbeTls | None

    def __init__(self, *args: Any) -> None:
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(*args)

    def server_bind(self) -> None:
        """Bind, without the base's look-up of a name for the address."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is a place; ``process_request_thread`` gives it back."""
        _ = (request, client_address)
        return self._places.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the connection's thread."""
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # No further thread may be started now.
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection, on its own thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands first where TLS is on: here, so that nobody else waits for it."""
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(REQUEST_TIMEOUT_S)
        # The base shuts the plain socket down, which is detached once it is wrapped.
        with self.tls.context().wrap_socket(request, server_side=True) as wrapped:
            super().finish_request(wrapped, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that hangs up, or fails the handshake, is no event; a bad certificate is."""
        _ = (request, client_address)
        error = sys.exc_info()[1]
        if isinstance(error, ProbeError):
            log.error("probe_tls_failed", reason=error)


class _Ipv6Server(_Server):
    address_family = socket.AF_INET6
