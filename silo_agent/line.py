"""The channel to the coordinator, which can be exchanged for one with other credentials.

Invariants:

1. A call that begins goes over the newest channel; one that runs finishes over the channel that it
   began on, however long it takes.
2. A channel that was replaced is closed once nothing runs over it.
3. What the coordinator says beside its answers about the CAs it trusts is handed on unparsed, and
   only if it has a digest's length.

Covered: unary calls, uploads, downloads, several threads. Not covered: retries, which are
``silo_agent/transport.py``'s: each is a call of its own, and so goes over the newest channel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import grpc

from federation.renewal import TRUST_METADATA

__all__ = ["Line"]

_DIGEST_CHARS: Final = 64
StubFactory = Callable[[grpc.Channel], Any]


@dataclass(kw_only=True, slots=True, eq=False)
class _Wire:
    """One channel, and how many calls run over it."""

    channel: grpc.Channel
    running: int = 0
    stubs: dict[StubFactory, Any] = field(default_factory=dict)


class Line:
    """The newest channel, and those that are running out."""

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials,
        *,
        options: Sequence[tuple[str, Any]],
    ) -> None:
        self._address = address
        self._options = options
        self._lock = threading.Lock()
        self._hear = _Hear()
        self._newest = self._open(credentials)
        self._leaving: list[_Wire] = []
        self.generation = 0
        """How often the channel was replaced."""

    def stub(self, make: StubFactory) -> Any:
        """Return a service's methods, each over whichever channel is newest when it is called.

        Args:
            make: The generated stub's class.
        """
        return _Stub(self, make)

    def watch_trust(self, notice: Callable[[str], None]) -> None:
        """Say who is told the digest of the CAs that the coordinator trusts, after each answer."""
        self._hear.notice = notice

    def replace(self, credentials: grpc.ChannelCredentials) -> None:
        """Let new calls go over a channel with other credentials.

        Args:
            credentials: Of the new channel.
        """
        wire = self._open(credentials)
        with self._lock:
            self._leaving.append(self._newest)
            self._newest = wire
            self.generation += 1
        self.sweep()

    def sweep(self) -> None:
        """Close replaced channels that nothing runs over any more."""
        with self._lock:
            done = [wire for wire in self._leaving if not wire.running]
            self._leaving = [wire for wire in self._leaving if wire.running]
        for wire in done:
            wire.channel.close()

    def close(self) -> None:
        """Close every channel; what runs is cancelled."""
        with self._lock:
            wires, self._leaving = [self._newest, *self._leaving], []
        for wire in wires:
            wire.channel.close()

    def call(self, make: StubFactory, method: str, request: Any, timeout: float) -> Any:
        """Call one method over the newest channel.

        Args:
            make: The generated stub's class.
            method: The method's name.
            request: One message, or an iterator of them.
            timeout: In seconds.

        Returns:
            The answer, or the stream of them.

        Raises:
            grpc.RpcError: The call failed.
        """
        with self._lock:
            wire = self._newest
            wire.running += 1
            if make not in wire.stubs:
                wire.stubs[make] = make(wire.channel)
            stub = wire.stubs[make]
        release = partial(self._release, wire)
        try:
            answer = getattr(stub, method)(request, timeout=timeout)
        except BaseException:
            release()
            raise
        if isinstance(answer, grpc.Future):
            # A stream: it runs until its end, whoever reads it.
            answer.add_done_callback(lambda _: release())
        else:
            release()
        return answer

    def _release(self, wire: _Wire) -> None:
        with self._lock:
            wire.running -= 1

    def _open(self, credentials: grpc.ChannelCredentials) -> _Wire:
        channel = grpc.secure_channel(self._address, credentials, options=list(self._options))
        return _Wire(channel=grpc.intercept_channel(channel, self._hear))


class _Stub:
    """One service over a line."""

    def __init__(self, line: Line, make: StubFactory) -> None:
        self._line = line
        self._make = make

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(request: Any, *, timeout: float) -> Any:
            return self._line.call(self._make, method, request, timeout)

        return call


class _Hear(grpc.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Reads the trailing metadata of answers."""

    def __init__(self) -> None:
        self.notice: Callable[[str], None] | None = None

    def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        answer = continuation(client_call_details, request)
        if self.notice is not None and answer.code() is grpc.StatusCode.OK:
            for key, value in answer.trailing_metadata() or ():
                if key == TRUST_METADATA and len(value) == _DIGEST_CHARS:
                    self.notice(str(value))
        return answer
