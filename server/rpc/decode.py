"""Requests as they arrive: what is no message of its type is refused by our own rules.

gRPC answers bytes that do not parse with INTERNAL and a traceback in the log, before any handler is
asked. Here such bytes become a marker, and whoever reads the request meets a typed refusal that is
answered from the catalogue and counted.

Covered: unary and streamed requests. Not covered: messages above gRPC's own limit, which it refuses
with RESOURCE_EXHAUSTED before they are here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from google.protobuf.message import DecodeError

from secagg.errors import MalformedMessageError

__all__ = ["Decoded", "guarded", "require_decoded"]

_UNDECODABLE: Final = object()


def guarded(deserialise: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Let a deserialiser mark what it cannot read: it never raises for what a caller sent."""

    def read(content: bytes) -> Any:
        try:
            return deserialise(content)
        except DecodeError:
            return _UNDECODABLE

    return read


def require_decoded(request: Any) -> Any:
    """Return a request that a guarded deserialiser could read.

    Raises:
        MalformedMessageError: It is no message of its type.
    """
    if request is _UNDECODABLE:
        raise MalformedMessageError("the bytes are no message of this method's type")
    return request


class Decoded:
    """A stream of requests, each of which was read."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = aiter(requests)

    def __aiter__(self) -> Decoded:
        """The stream itself."""
        return self

    async def __anext__(self) -> Any:
        """The next message, or the refusal of what is none."""
        return require_decoded(await anext(self._requests))
