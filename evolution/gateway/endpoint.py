"""The HTTP endpoint of one session, on loopback, for as long as the session lasts.

::

    POST /v1/chat/completions     a chat completion, streamed if asked for
    POST /v1/reward               {"reward": 1.0, "success": true}: the report, instead of stdout
    GET  /v1/models               the session's one model

Invariants:

1. Each session has a port and a random token of its own, and they end with it. The token is
   compared in constant time, before anything of a body is read.
2. Connections, bytes of a request and seconds that a sender may be silent are bounded; a body says
   its length beforehand.
3. Everything that is refused is refused as JSON in OpenAI's layout, with a status after which its
   clients do not try again.
4. Nothing that comes in here is logged.

Covered: HTTP/1.1 with keep-alive. Not covered: TLS, chunked request bodies; another user of this
machine who takes up all connections, which costs this try alone.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from evolution.errors import EvolutionError, RequestRefusedError, RolloutError
from evolution.gateway import reply
from evolution.gateway.request import object_of, read_request
from evolution.gateway.session import Session

__all__ = ["Endpoint"]

_HOST: Final = "127.0.0.1"
_MAX_CONNECTIONS: Final = 16
_SILENT_S: Final = 60.0
_LOOK_S: Final = 0.05
_MAX_DIGITS: Final = 12


class Endpoint:
    """Serves a session while it is entered."""

    def __init__(self, session: Session) -> None:
        self.token = secrets.token_urlsafe(32)
        self._server = _Server(session, self.token)
        self.url = f"http://{_HOST}:{self._server.server_port}/v1"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_S,), name="gateway", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.hang_up()

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r})"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, session: Session, token: str) -> None:
        self.session = session
        self.expected = f"Bearer {token}".encode()
        self._room = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        super().__init__((_HOST, 0), _Handler)

    def server_bind(self) -> None:
        # http.server asks the resolver for this machine's name here, which can take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = _HOST, int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with self._guard:
            self._open.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._guard:
                self._open.discard(request)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is the harness's own affair."""

    def hang_up(self) -> None:
        with self._guard:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "chorale"
    sys_version = ""
    timeout = _SILENT_S
    server: _Server

    def do_GET(self) -> None:  # the standard library's name
        self._answer(self._get)

    def do_POST(self) -> None:  # the standard library's name
        self._answer(self._post)

    def log_message(self, *_: Any) -> None:
        """Nothing that comes in here is logged."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Whatever the standard library refuses, in the same layout."""
        del message, explain
        self.close_connection = True
        self._refuse(RequestRefusedError(code, "bad_request", "the request is no HTTP request"))

    def _answer(self, act: Any) -> None:
        try:
            self._require_token()
            kind, body = act()
        except RequestRefusedError as error:
            self._refuse(error)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001  # what a text may do to a tokenizer ends its try
            failure = error if isinstance(error, EvolutionError) else RolloutError("gateway")
            self.server.session.end(failure)
            self._refuse(RequestRefusedError(500, "model_failed", "the model did not answer"))
        else:
            self._send(200, kind, body)

    def _get(self) -> tuple[str, bytes]:
        model = self.server.session.model
        if self.path == "/v1/models":
            return "application/json", reply.models(model)
        if self.path == f"/v1/models/{model}":
            return "application/json", reply.model_of(model)
        raise _no_such_path()

    def _post(self) -> tuple[str, bytes]:
        session = self.server.session
        if self.path == "/v1/reward":
            session.report(object_of(self._body()))
            return "application/json", b"{}"
        if self.path != "/v1/chat/completions":
            raise _no_such_path()
        request = read_request(object_of(self._body()), temperature=session.sampling.temperature)
        answer = session.complete(request)
        if request.stream:
            return "text/event-stream", reply.stream(answer, session.model, request)
        return "application/json", reply.completion(answer, session.model)

    def _require_token(self) -> None:
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, self.server.expected):
            # What is left of such a request is not read.
            self.close_connection = True
            raise RequestRefusedError(401, "invalid_api_key", "OPENAI_API_KEY has the token")

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            self.close_connection = True
            raise RequestRefusedError(411, "length_required", "a body says its length")
        most = self.server.session.spec.max_body_bytes
        if len(length) > _MAX_DIGITS or int(length) > most:
            self.close_connection = True
            raise RequestRefusedError(413, "body_too_large", f"a body has at most {most} bytes")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            self.close_connection = True
            raise RequestRefusedError(400, "bad_request", "the body ended early")
        return body

    def _refuse(self, error: RequestRefusedError) -> None:
        if self.command == "POST" and not self.close_connection:
            # A body that was not read would pass for the next request.
            self.close_connection = True
        self._send(error.status, "application/json", reply.error_body(error))

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status != 200:
            self.send_header("x-should-retry", "false")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def _no_such_path() -> RequestRefusedError:
    return RequestRefusedError(404, "not_found", "the gateway has no such path")
