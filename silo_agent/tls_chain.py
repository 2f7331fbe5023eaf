"""The certificate chain that a TLS server presents, fetched without trusting any of it.

Python 3.11's ``ssl`` gives the leaf only, and the pinned certificate is the CA.

Covered: silent, slow and non-TLS servers, by a deadline. Not covered: trust; the caller compares
digests and sends nothing before.
"""

from __future__ import annotations

import ipaddress
import select
import socket
import time

from cryptography import x509
from OpenSSL import SSL

from silo_agent.errors import TransportError

__all__ = ["fetch_chain"]


def fetch_chain(address: str, *, timeout_s: float) -> tuple[x509.Certificate, ...]:
    """Connect, shake hands, and hang up.

    Args:
        address: host:port.
        timeout_s: For everything together.

    Returns:
        What the server presented, leaf first.

    Raises:
        TransportError: There is no TLS server, or it does not answer in time.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    deadline = time.monotonic() + timeout_s
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_verify(SSL.VERIFY_NONE, lambda *_: True)
    context.set_alpn_protos([b"h2"])
    try:
        with socket.create_connection((host, int(port)), timeout=timeout_s) as raw:
            connection = SSL.Connection(context, raw)
            connection.set_connect_state()
            if not _is_ip(host):
                connection.set_tlsext_host_name(host.encode("ascii"))
            _handshake(connection, raw, deadline)
            chain = connection.get_peer_cert_chain(as_cryptography=True)
    except (OSError, SSL.Error, ValueError, OverflowError) as error:
        raise TransportError(
            f"the enrolment port {address} cannot be reached: {str(error) or type(error).__name__}"
        ) from error
    return tuple(chain or ())


def _handshake(connection: SSL.Connection, raw: socket.socket, deadline: float) -> None:
    while True:
        left = max(deadline - time.monotonic(), 0.0)
        try:
            connection.do_handshake()
        except SSL.WantReadError:
            ready = select.select([raw], [], [], left)[0]
        except SSL.WantWriteError:
            ready = select.select([], [raw], [], left)[1]
        else:
            return
        if not ready:
            raise TimeoutError("no TLS handshake in time")


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
