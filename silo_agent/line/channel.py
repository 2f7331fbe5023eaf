"""The channel to the coordinator, which can be exchanged for a new one, also of other credentials.

Invariants:

1. A call that begins goes over the newest channel; one that runs finishes over the channel that it
   began on, however long it takes.
2. A channel that was replaced is closed once nothing runs over it. One that carried a stream of
   requests is replaced: gRPC keeps, for a connection's next read, as much room as its largest burst
   had, so each silo's upload would cost the coordinator up to a megabyte until the silo leaves.
3. What the coordinator says beside its answers about the CAs it trusts is handed on unparsed, and
   only if it has a digest's length.
4. Every call says which version this silo runs. What a call is answered with, but for a stream, is
   not handed on before what the coordinator says of its own version was judged.
5. Every call has a deadline, a stream one by its length; after it the call is given up.

Covered: unary calls, uploads, downloads, several threads. Not covered: retries, which are
``silo_agent/line/transport.py``'s: each is a call of its own, and so goes over the newest channel.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import grpc

from federation.errors import VersionError, VersionMismatchError
from federation.membership.renewal import TRUST_METADATA
from federation.version import Version, read_version, require_compatible, this_version
from ops.tracing.calls import with_spans
from ops.tracing.spans import follow
from silo_agent.errors import CoordinatorVersionError, TransportError

__all__ = ["CALL_TIMEOUT_S", "REASON_METADATA", "VERSION_MISMATCH", "Line", "stream_timeout_s"]

REASON_METADATA: Final = "chorale-reason"
VERSION_MISMATCH: Final = "version_mismatch"
"""The coordinator's reason, and ours where we find out first."""
TELLS_ROUND: Final = "/chorale.v1.RoundService/Poll"
"""Its answers say in which span of the coordinator this silo's round is, where that is traced."""
CALL_TIMEOUT_S: Final = 30.0
LEAST_APART_S: Final = 60.0
_LEAST_RATE_BYTES_PER_S: Final = 1e6
"""Below this a leg of a stream is given up; the next one resumes."""
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
        self._credentials = credentials
        self._newest = self._open()
        self._leaving: list[_Wire] = []
        self._closed = False
        self.generation = 0
        """How often the channel was replaced."""

    def stub(self, make: StubFactory) -> Any:
        """Return a service's methods, each over whichever channel is newest when it is called."""
        return _Stub(self, make)

    def watch_trust(self, notice: Callable[[str], None]) -> None:
        """Say who is told the digest of the CAs that the coordinator trusts, after each answer."""
        self._hear.notice = notice

    def watch_version(self, notice: Callable[[Version], None]) -> None:
        """Say who is told which version the coordinator runs: at first, then at changes.

        Whatever it says, nobody is told more than once a minute.
        """
        self._hear.version_notice = notice

    @property
    def version(self) -> Version | None:
        """What the coordinator last said that it runs; None before its first answer."""
        return self._hear.version

    @property
    def answered_unix_s(self) -> float:
        """When the coordinator last answered, a refusal of its own included; 0 before."""
        return self._hear.answered_unix_s

    def replace(self, credentials: grpc.ChannelCredentials) -> None:
        """Let new calls go over a channel with other credentials."""
        with self._lock:
            self._credentials = credentials
        self._reconnect()

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
            self._closed = True
            wires, self._leaving = [self._newest, *self._leaving], []
        for wire in wires:
            wire.channel.close()

    def call(self, make: StubFactory, method: str, request: Any, timeout: float) -> Any:
        """Call one method over the newest channel.

        ``request`` is one message or an iterator of them, and so is the answer. ``timeout`` is in
        seconds.

        Raises:
            grpc.RpcError: The call failed.
            CoordinatorVersionError: It was answered by a version that cannot work with this one.
            TransportError: The line was closed.
        """
        with self._lock:
            if self._closed:
                # gRPC would not refuse: it reads memory that it freed.
                raise TransportError("the line to the coordinator was closed", reason="stopping")
            wire = self._newest
            wire.running += 1
            if make not in wire.stubs:
                wire.stubs[make] = make(wire.channel)
            stub = wire.stubs[make]
        release = partial(self._release, wire, spent=isinstance(request, Iterator))
        try:
            answer = getattr(stub, method)(request, timeout=timeout, metadata=this_version().words)
        except BaseException:
            release()
            raise
        if isinstance(answer, grpc.Future):
            # A stream: it runs until its end, whoever reads it.
            answer.add_done_callback(lambda _: release())
        else:
            release()
        return answer

    def _release(self, wire: _Wire, *, spent: bool) -> None:
        with self._lock:
            wire.running -= 1
            spent = spent and wire is self._newest and not self._closed
        if spent:
            self._reconnect()

    def _reconnect(self) -> None:
        with self._lock:
            # Opened here: one of the credentials before must not come after one of the newest.
            self._leaving.append(self._newest)
            self._newest = self._open()
            self.generation += 1
        self.sweep()

    def _open(self) -> _Wire:
        channel = grpc.secure_channel(
            self._address,
            self._credentials,
            # Channels of equal credentials would otherwise share one connection.
            options=[*self._options, ("grpc.use_local_subchannel_pool", 1)],
        )
        # Spans are the inner ones: they see an answer before it is judged.
        spanned = with_spans(channel, hear_from=TELLS_ROUND, hear=follow)
        return _Wire(channel=grpc.intercept_channel(spanned, self._hear))


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
        self.version_notice: Callable[[Version], None] | None = None
        self.version: Version | None = None
        self.answered_unix_s = 0.0
        self._told: Version | None = None
        self._told_s = -math.inf

    def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        answer = continuation(client_call_details, request)
        said = answer.trailing_metadata() or ()
        refused = any(key == REASON_METADATA for key, _ in said)
        if refused or answer.code() is grpc.StatusCode.OK:
            self.answered_unix_s = time.time()
        if answer.code() is grpc.StatusCode.OK:
            self._judge(said)
            for key, value in said:
                if (
                    self.notice is not None
                    and key == TRUST_METADATA
                    and len(value) == _DIGEST_CHARS
                ):
                    self.notice(str(value))
        elif refused:
            # A refusal of its own: it, too, says which version it is.
            self._judge(said)
        return answer

    def _judge(self, said: Any) -> None:
        """Take note of the coordinator's version, and refuse an answer that nobody can rely on.

        Raises:
            CoordinatorVersionError: Malformed, or without a protocol that both speak.
        """
        try:
            version = self.version = read_version(said)
            now = time.monotonic()
            if (
                self.version_notice is not None
                and version != self._told
                and now - self._told_s >= LEAST_APART_S
            ):
                self._told, self._told_s = version, now
                self.version_notice(version)
            require_compatible(this_version(), version, us="this silo", them="the coordinator")
        except VersionMismatchError as error:
            raise CoordinatorVersionError(str(error), reason=VERSION_MISMATCH) from error
        except VersionError as error:
            raise CoordinatorVersionError(str(error), reason="version_malformed") from error


def stream_timeout_s(length_bytes: int) -> float:
    """The time for one leg of a stream of at most so many bytes."""
    return CALL_TIMEOUT_S + length_bytes / _LEAST_RATE_BYTES_PER_S
