"""The coordinator's two gRPC ports: what a caller may take of each, and when the second is open.

Invariants:

1. Whoever does not finish the TLS handshake within ten seconds is hung up on, and so is whoever
   then says nothing.
2. Connections are bounded on each port, below what the process may open: its database, its log and
   its uploads always find a file descriptor.
3. The enrolment port, which asks nobody for a certificate, takes short messages only, a few calls a
   connection, and a connection for a minute.
4. The enrolment port listens while an invite can be redeemed, from the moment it is made, and not
   otherwise. Nothing but joining needs it: certificates are renewed through the other port.

Covered: silent, slow and idle callers, large messages, a restart, a port that another program
holds. Not covered: a flood that keeps all places of a port taken, which keeps new connections out,
also that of a silo which has uploaded, and those that are there in; a firewall has to end it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import grpc

from chorale.v1 import enrolment_pb2_grpc
from ops.logs.logger import get_logger
from server.errors import ListenError, StoreError
from server.rpc.access import AccessInterceptor
from server.rpc.enrolment import EnrolmentService
from server.store.invites import Invites

__all__ = ["GRACE_S", "EnrolmentPort", "bind", "rounds_options"]

log = get_logger(__name__)

MAX_MESSAGE_BYTES: Final = 8 << 20
"""The headers of R1 are the largest message: 6.9 MB for 200 silos with ids of 63 characters."""
MAX_JOIN_BYTES: Final = 64 << 10
"""A certificate request has 8 KiB at most, the rest of a join less than one."""
GRACE_S: Final = 2.0
LOOK_EVERY_S: Final = 5.0
HANDSHAKE_S: Final = 10
MOST_CONNECTIONS: Final = 4096
MOST_JOINING: Final = 256
_BOTH: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_S * 1000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
Options = tuple[tuple[str, int], ...]


def rounds_options(open_files: int) -> Options:
    """Return what silos and admins may take of the port with mutual TLS.

    ``open_files`` is how many file descriptors the process may have.
    """
    return (
        *_BOTH,
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_concurrent_streams", 64),
        # A silo asks again at once: its connection is never idle that long.
        ("grpc.max_connection_idle_ms", 300_000),
        ("grpc.max_allowed_incoming_connections", min(MOST_CONNECTIONS, open_files // 2)),
    )


def enrolment_options(open_files: int) -> Options:
    """Return what anybody may take of the enrolment port.

    ``open_files`` is how many file descriptors the process may have.
    """
    return (
        *_BOTH,
        ("grpc.max_receive_message_length", MAX_JOIN_BYTES),
        ("grpc.max_send_message_length", MAX_JOIN_BYTES),
        ("grpc.max_concurrent_streams", 4),
        ("grpc.max_connection_idle_ms", HANDSHAKE_S * 1000),
        # A call that is begun and never sent keeps a connection from being idle.
        ("grpc.max_connection_age_ms", 60_000),
        ("grpc.max_connection_age_grace_ms", HANDSHAKE_S * 1000),
        ("grpc.max_allowed_incoming_connections", min(MOST_JOINING, open_files // 8)),
    )


def bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials) -> None:
    """Let a server listen.

    Raises:
        ListenError: The address cannot be bound.
    """
    try:
        server.add_secure_port(address, credentials)
    except RuntimeError as error:
        # Its own text names a variable of gRPC's, and no reason.
        raise ListenError(
            f"cannot listen on {address}: another program holds the port, or the address is none "
            "of this machine's"
        ) from error


class EnrolmentPort:
    """Listens while somebody can join."""

    def __init__(
        self,
        *,
        listen: str,
        service: EnrolmentService,
        interceptor: AccessInterceptor,
        credentials: Callable[[], grpc.ServerCredentials],
        invites: Invites,
        open_files: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Nothing listens before the first look.

        ``credentials`` makes TLS anew for each opening, and ``invites`` says whether somebody can
        join. ``open_files`` is how many file descriptors the process may have.
        """
        self._listen = listen
        self._service = service
        self._interceptor = interceptor
        self._credentials = credentials
        self._invites = invites
        self._options = enrolment_options(open_files)
        self._clock = clock
        self._server: grpc.aio.Server | None = None
        self._changing = asyncio.Lock()

    async def require_free(self) -> None:
        """Check that the port could be opened.

        Raises:
            ListenError: It cannot be bound.
        """
        server = self._bound()
        # One that was never started does not let go of its port.
        await server.start()
        await server.stop(None)

    async def look(self) -> None:
        """Open or close the port, as the invites say.

        Raises:
            ListenError: Another program holds the port.
            StoreError: The invites cannot be read; the port stays as it is.
        """
        async with self._changing:
            wanted = self._invites.redeemable(at_unix_s=int(self._clock()))
            if wanted and self._server is None:
                server = self._bound()
                await server.start()
                self._server = server
                log.info("enrolment_port", open=True)
            elif not wanted:
                await self._stop()

    async def keep_looking(self) -> None:
        """Look every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self.look()
            except (ListenError, StoreError) as error:
                log.error("enrolment_port_failed", reason=error)  # noqa: TRY400 - says it all

    async def close(self) -> None:
        """Stop listening; a join that is under way may end."""
        async with self._changing:
            await self._stop()

    def _bound(self) -> grpc.aio.Server:
        # A server that was stopped cannot be started again.
        server = grpc.aio.server(interceptors=[self._interceptor], options=self._options)
        enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server(self._service, server)
        bind(server, self._listen, self._credentials())
        return server

    async def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(GRACE_S)
            log.info("enrolment_port", open=False)
