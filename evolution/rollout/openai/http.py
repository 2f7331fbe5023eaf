"""The connection to one model server: an OpenAI-compatible HTTP interface.

Invariants:

1. The server is on loopback or behind TLS, and every request but ``/health`` carries the API key:
   whoever may load adapters makes the server read files. The key is in no log and no message.
2. Redirects, proxies, compression and cookies are not used: only the operator's address is spoken
   to. ``timeout_s`` is for one whole answer, from sending to its last byte; sizes are bounded.
3. At most ``max_in_flight`` requests are under way; the others wait here, where they cost nothing
   and no clock runs for them.
4. A request that the server did not begin (no connection, status 429 or 503) is repeated a few
   times, one that it may have begun (a hang-up) only if it is ``repeatable``. The waits are short:
   after them the server counts as down, and until ``/health`` answers again requests fail at once,
   so that a dead server costs a round seconds and not a time-out for each conversation.

Covered: HTTP/1.1, back-pressure, time limits, outages. Not covered: client certificates; waiting
for a server to come back within a round.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from evolution.errors import (
    EngineRefusalError,
    EngineReplyError,
    EngineSetupError,
    EngineTimeoutError,
    EngineUnreachableError,
)
from evolution.rollout.engine import EngineSpec
from ops.address import is_loopback

__all__ = ["Request", "ServerClient", "api_key", "require_private"]

_OK = 200
_BUSY = frozenset({429, 503})
_TRIES = 4
_PAUSE_S = 0.1
"""Before the first repetition; doubles with each."""
_HEALTH_TIMEOUT_S = 5.0
_DOWN_S = 10.0
"""For so long a server that was down is not asked again."""
_MAX_KEY_BYTES = 4_096
_MAX_REASON_CHARS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One thing to ask."""

    path: str
    """Below the server's address."""
    body: dict[str, Any] | None = None
    """Sent as JSON with POST; None sends a GET."""
    max_bytes: int = 1 << 20
    """Longest answer."""
    repeatable: bool = True
    """Whether asking twice does no harm."""
    with_key: bool = True
    """Whether the API key is shown."""
    timeout_s: float | None = None
    """Instead of the spec's."""


class ServerClient:
    """See the module."""

    def __init__(self, spec: EngineSpec, url: str, *, runner: asyncio.Runner) -> None:
        """Prepare to ask the server at this address; nothing is sent.

        The runner is the caller's, who closes it after all clients that share it.

        Raises:
            EngineSetupError: The address or the key file is unusable.
        """
        self.url = require_private(url)
        """Where the server is, for whoever names it; it holds no secret."""
        self._key = api_key(spec.api_key_file)
        if spec.timeout_s <= 0 or spec.max_in_flight < 1:
            raise EngineSetupError("timeout_s and max_in_flight must be positive")
        self._timeout_s = spec.timeout_s
        # A loop: only a cancelled task stops a server that sends one byte at a time.
        self._runner = runner
        self._slots = asyncio.Semaphore(spec.max_in_flight)
        self._http = httpx2.AsyncClient(
            follow_redirects=False,
            trust_env=False,
            timeout=None,  # `_once` limits the whole exchange
            headers={"accept-encoding": "identity"},
            limits=httpx2.Limits(
                max_connections=spec.max_in_flight, max_keepalive_connections=spec.max_in_flight
            ),
        )
        self._suspect = False
        self._down_until_s = 0.0

    def ask(self, request: Request) -> bytes:
        """Send one request.

        Raises:
            EngineServerError: There is no answer of status 200 within the limits.
        """
        return self.ask_all([request])[0]

    def ask_all(self, requests: Sequence[Request]) -> list[bytes]:
        """Send requests together; returns the answers' contents, in order.

        Raises:
            EngineServerError: One has no answer of status 200 within the limits; the others are
                given up.
        """
        return self._runner.run(self.answers(requests))

    async def answers(self, requests: Sequence[Request]) -> list[bytes]:
        """The same, for whoever asks several servers at once.

        Raises:
            EngineServerError: One has no answer of status 200 within the limits; the others are
                given up.
        """
        await self._require_up()
        try:
            return await _together([self._patiently(r) for r in requests])
        except (EngineUnreachableError, EngineTimeoutError):
            self._suspect = True
            raise

    def require_healthy(self) -> None:
        """Ask ``/health``.

        Raises:
            EngineUnreachableError: Nobody there, or not healthy.
        """
        self._runner.run(self._require_healthy())

    async def _require_healthy(self) -> None:
        request = Request(path="/health", with_key=False, timeout_s=_HEALTH_TIMEOUT_S)
        try:
            await self._once(request)
        except (EngineRefusalError, EngineTimeoutError, EngineUnreachableError) as error:
            raise EngineUnreachableError(
                f"the model server at {self.url} is not healthy: {error}"
            ) from error

    def close(self) -> None:
        """Close all connections; closing twice does nothing."""
        if not self._http.is_closed:
            self._runner.run(self._http.aclose())

    async def _require_up(self) -> None:
        if not self._suspect:
            return
        if time.monotonic() < self._down_until_s:
            raise EngineUnreachableError(f"the model server at {self.url} is down")
        try:
            await self._require_healthy()
        except EngineUnreachableError:
            self._down_until_s = time.monotonic() + _DOWN_S
            raise
        self._suspect = False

    async def _patiently(self, request: Request) -> bytes:
        async with self._slots:
            for attempt in range(_TRIES - 1):
                try:
                    return await self._once(request)
                except _NotBegunError:
                    pass
                except _HungUpError:
                    if not request.repeatable:
                        raise
                await asyncio.sleep(_PAUSE_S * 2**attempt)
            return await self._once(request)

    async def _once(self, request: Request) -> bytes:
        limit_s = self._timeout_s if request.timeout_s is None else request.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._exchange(request)
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise EngineTimeoutError(
                f"no whole answer from {self.url}{request.path} in time"
            ) from error
        except httpx2.ConnectError as error:
            raise _NotBegunError(f"the model server at {self.url} cannot be reached") from error
        except httpx2.HTTPError as error:
            raise _HungUpError(
                f"the model server at {self.url} hung up on {request.path}"
            ) from error

    async def _exchange(self, request: Request) -> bytes:
        content = bytearray()
        headers = {"authorization": f"Bearer {self._key}"} if request.with_key else {}
        method = "GET" if request.body is None else "POST"
        url = self.url + request.path
        async with self._http.stream(method, url, json=request.body, headers=headers) as reply:
            self._http.cookies.clear()
            async for part in reply.aiter_raw():
                content += part
                if len(content) > request.max_bytes:
                    raise EngineReplyError(f"the answer from {request.path} is too large")
            if reply.status_code in _BUSY:
                raise _NotBegunError(
                    f"the model server at {self.url} is busy or ill ({reply.status_code})"
                )
            if reply.status_code != _OK:
                raise EngineRefusalError(reply.status_code, _reason(bytes(content)))
        return bytes(content)


class _NotBegunError(EngineUnreachableError):
    """The server did not begin to answer."""


class _HungUpError(EngineUnreachableError):
    """The connection broke while the server may have been at work."""


def require_private(url: str) -> str:
    """The server's address, from scheme to path, without a trailing slash.

    Raises:
        EngineSetupError: It is no such address, or would carry the key over an open network.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise EngineSetupError(f"rollout.url is not a URL: {error}") from error
    if parts.scheme not in {"http", "https"} or not host or port == 0:
        raise EngineSetupError("rollout.url is not a http:// or https:// URL")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise EngineSetupError("rollout.url has a user, a password, a query or a fragment")
    if parts.scheme == "http" and not is_loopback(host):
        raise EngineSetupError(
            f"rollout.url to {host!r} leaves this machine unprotected: use https:// or loopback"
        )
    return url.rstrip("/")


def api_key(path: Path | None) -> str:
    """The key in a file that the owner alone can read, without white space around it.

    Raises:
        EngineSetupError: There is no file, it cannot be read, is open to other users, or holds
            something else than one word of printable ASCII.
    """
    if path is None:
        raise EngineSetupError(
            "rollout.api_key_file is missing: a server that loads adapters at run time must ask "
            "for a key"
        )
    try:
        with path.open("rb") as file:
            if path.stat().st_mode & 0o077:
                raise EngineSetupError(f"{path} is open to other users: chmod 600 it")
            content = file.read(_MAX_KEY_BYTES + 1).strip()
    except OSError as error:
        raise EngineSetupError(f"cannot read {path}: {error.strerror}") from error
    if not 0 < len(content) <= _MAX_KEY_BYTES or not all(0x21 <= byte <= 0x7E for byte in content):
        raise EngineSetupError(f"{path} does not hold one word of printable ASCII")
    return content.decode("ascii")


async def _together(exchanges: Sequence[Awaitable[bytes]]) -> list[bytes]:
    tasks = [asyncio.ensure_future(exchange) for exchange in exchanges]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reason(content: bytes) -> str:
    """What the server says for itself, for the operator; bounded."""
    try:
        said = json.loads(content)["error"]
        text = said["message"] if isinstance(said, dict) else said
    except (ValueError, KeyError, TypeError, RecursionError):
        text = content[:_MAX_REASON_CHARS].decode("utf-8", "replace")
    return str(text)[:_MAX_REASON_CHARS]
