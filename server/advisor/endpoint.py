"""The connection to the endpoint of a model: one request, one whole body, or one word why not.

Ordered invariants:

1. Only the operator's address is spoken to, behind TLS that is verified; without TLS on loopback
   alone, unless ``allow_plain_http`` says so. Redirects, proxies, cookies, compression and whatever
   the environment says are not used, and each request has a connection of its own, so that nothing
   which one answer left behind is read as the next.
2. ``timeout_s`` is for the whole exchange, from connecting to the last byte. A body has at most
   ``MAX_BODY_BYTES``; what is larger is given up where the limit is reached.
3. Whatever the endpoint does ends in a body of status 200 or in ``AdvisorError`` with one of the
   kinds of ``Failure``, which carries nothing of what it sent.
4. The key is in the request's header alone: no log, error or ``repr`` has it.

Covered: HTTP/1.1, time, sizes, hostile answers. Not covered: what a body says
(``federation.advice.conversation``); an operator's endpoint that keeps what it is asked, which is
public (``federation.advice.state``).
"""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from federation.advice.conversation import Failure
from federation.advice.record import MODEL_NAME
from federation.advice.reply import MAX_BODY_BYTES
from ops.address import is_loopback
from server.errors import ConfigurationError, CoordinatorError

try:
    import httpx2
except ImportError as error:
    raise ConfigurationError(
        "an advisor needs one more package: pip install 'chorale[advisor]'"
    ) from error

__all__ = ["AdvisorError", "Endpoint"]

PATH: Final = "/chat/completions"
_OK: Final = 200
_KEY: Final = re.compile(r"[!-~]{1,4096}")
_MODEL: Final = re.compile(MODEL_NAME)

_NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody, for plain HTTP: the system's certificates take long to read."""


class AdvisorError(CoordinatorError):
    """The endpoint gave no body.

    Raised and taken within this room: a consultation that fails is no error of the coordinator.

    Attributes:
        kind: Why.
    """

    def __init__(self, kind: Failure) -> None:
        self.kind = kind
        super().__init__(f"the advisor's endpoint gave no answer: {kind.value}")


class Endpoint:
    """See the module."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        takes_tools: bool = True,
        api_key: SecretStr | None = None,
        allow_plain_http: bool = False,
        ca_file: str | None = None,
    ) -> None:
        """Prepare to ask the endpoint below this address, as in ``https://host/v1``.

        Args:
            url: Where ``/chat/completions`` is.
            model: What the endpoint calls the model.
            takes_tools: Whether tools may be offered to it.
            api_key: Sent as a bearer token.
            allow_plain_http: Whether other machines may be asked without TLS.
            ca_file: Certificates to trust instead of the system's.

        Raises:
            ConfigurationError: One of these cannot be used.
        """
        self.url = _require_url(url, allow_plain_http=allow_plain_http)
        """Where the endpoint is; it holds no secret."""
        if _MODEL.fullmatch(model) is None:
            raise ConfigurationError("the advisor's model is no name of 1 to 128 plain characters")
        self.model = model
        self.takes_tools = takes_tools
        if api_key is not None and _KEY.fullmatch(api_key.get_secret_value()) is None:
            raise ConfigurationError("the advisor's API key is not one word of printable ASCII")
        self._api_key = api_key
        self._tls = _trust(ca_file) if self.url.startswith("https://") else _NO_TLS

    def __repr__(self) -> str:
        """Where and what, without the key."""
        return f"Endpoint({self.url!r}, {self.model!r})"

    async def ask(self, content: bytes, *, timeout_s: float, max_bytes: int) -> bytes:
        """Post a request; returns the body of its answer, of at most so many bytes.

        Raises:
            AdvisorError: There is none of status 200 in time and within the limits.
        """
        # The cause of an error of httpx2 holds the request and its headers: none is kept.
        try:
            async with asyncio.timeout(timeout_s):
                kind = await self._exchange(content, min(max_bytes, MAX_BODY_BYTES))
        except (TimeoutError, httpx2.TimeoutException):
            kind = Failure.TIMEOUT
        if isinstance(kind, Failure):
            raise AdvisorError(kind)
        return kind

    async def _exchange(self, content: bytes, max_bytes: int) -> bytes | Failure:
        received: bytearray | None = None
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if self._api_key is not None:
            headers["authorization"] = f"Bearer {self._api_key.get_secret_value()}"
        try:
            async with (
                httpx2.AsyncClient(
                    verify=self._tls,
                    follow_redirects=False,
                    trust_env=False,
                    timeout=None,  # `ask` limits the whole exchange
                ) as http,
                http.stream("POST", self.url + PATH, content=content, headers=headers) as answer,
            ):
                if answer.is_redirect or 300 <= answer.status_code < 400:
                    return Failure.REDIRECT
                if answer.status_code != _OK:
                    return Failure.HTTP_STATUS
                received = bytearray()
                async for part in answer.aiter_raw():
                    received += part
                    if len(received) > max_bytes:
                        return Failure.TOO_LARGE
            return bytes(received)
        except httpx2.TimeoutException:
            raise
        except httpx2.ConnectError as error:
            return Failure.TLS if _is_tls(error) else Failure.UNREACHABLE
        except (httpx2.HTTPError, httpx2.StreamError, OSError, ValueError):
            return Failure.BAD_HTTP if received is None else Failure.TRUNCATED


def _trust(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigurationError(
            f"the advisor's certificates cannot be read: {error.strerror}"
        ) from None


def _is_tls(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _require_url(url: str, *, allow_plain_http: bool) -> str:
    """The address without a trailing slash.

    Raises:
        ConfigurationError: It is no such address, or would carry the key over an open network.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigurationError("the advisor's url is not a URL") from None
    if parts.scheme not in {"http", "https"} or not host or port == 0:
        raise ConfigurationError("the advisor's url is not a http:// or https:// URL")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigurationError("the advisor's url has other characters than printable ASCII")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigurationError(
            "the advisor's url has a user, a password, a query or a fragment: the key is named "
            "on its own"
        )
    if parts.scheme == "http" and not allow_plain_http and not is_loopback(host):
        raise ConfigurationError(
            f"the advisor's url to {host!r} is not protected: use https://, or loopback"
        )
    return url.rstrip("/")
