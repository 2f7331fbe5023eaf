"""Requests as they arrive: what is no message of its type is refused by our own rules.

gRPC answers bytes that do not parse with INTERNAL and a traceback in the log, before any handler is
asked. Here such bytes become a marker, and whoever reads the request meets a typed refusal that is
answered from the catalogue and counted.

Covered: unary and streamed requests, and streams that are not read to their end. Not covered:
messages above gRPC's own limit, which it refuses with RESOURCE_EXHAUSTED before they are here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
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
    """A call's stream of requests, each of which was read.

    Not gRPC's own iterator: that holds itself and the message it gave last, so that whoever stops
    before the end, as an upload does that is whole or refused, would leave a megabyte to the next
    full garbage collection.
    """

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context

    def __aiter__(self) -> Decoded:
        """The stream itself."""
        return self

    async def __anext__(self) -> Any:
        """The next message, or the refusal of what is none."""
        message = await self._context.read()
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]  # not in the stubs
            raise StopAsyncIteration
        return require_decoded(message)
