"""Whether a TLS server can be reached, in three separate steps: name, port, handshake.

For doctors: gRPC reports each of these failures as UNAVAILABLE. The handshake is one of our own:
TLS 1.2 or later, ALPN ``h2``, the server's chain verified against the given CAs and one name, our
client certificate presented, and HTTP/2's first frame read back. Only that frame shows that the
server took our certificate: under TLS 1.3 a client believes itself connected before it is refused.

And which chain a server presents, of which nothing is trusted: the caller compares digests. Python
3.11's ``ssl`` gives the leaf alone, so that is pyOpenSSL's.

Errors::

    ReachError
    ├── UnresolvedNameError    the name has no address
    ├── UnreachableError       nobody answers at the address, or not in time, or not in TLS
    └── HandshakeError         no TLS, an untrusted or expired chain, another name, our certificate
                               refused; ``stage`` says which, ``leaf`` is what was presented

Covered: deadlines for each step, servers that are silent or speak something else. Not covered:
proxies; revocation, which the coordinator checks on each call.
"""

from __future__ import annotations

import ipaddress
import select
import socket
import ssl
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from OpenSSL import SSL

__all__ = [
    "MALFORMED",
    "ClientPair",
    "HandshakeError",
    "ReachError",
    "Stage",
    "UnreachableError",
    "UnresolvedNameError",
    "connect",
    "presented_chain",
    "resolve",
    "shake_hands",
    "split_host_port",
]

MALFORMED: Final = (
    ValueError,
    TypeError,
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.AttributeNotFound,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""What reading a certificate or a request from somebody else can fail with.

``cryptography`` parses lazily, so each of these may come from loading one or from a later look at
its version, names, key or extensions; and not all of them are ``ValueError``.
"""
_HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""RFC 9113, 3.4: the magic octets and an empty SETTINGS frame."""
_FRAME_HEADER_BYTES: Final = 9
_SETTINGS: Final = 4


class Stage(StrEnum):
    """What a handshake failed at."""

    NO_TLS = "no_tls"
    UNTRUSTED = "untrusted"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    NAME = "name"
    CLIENT = "client"


class ReachError(Exception):
    """A server cannot be reached."""


class UnresolvedNameError(ReachError):
    """The name has no address."""


class UnreachableError(ReachError):
    """Nobody answers at the address."""


class HandshakeError(ReachError):
    """The port answers, and TLS does not come about."""

    def __init__(self, text: str, *, stage: Stage, leaf: x509.Certificate | None = None) -> None:
        super().__init__(text)
        self.stage = stage
        self.leaf = leaf


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientPair:
    """Files of a client certificate and its key."""

    certificate: Path
    key: Path


def split_host_port(address: str) -> tuple[str, int]:
    """Split ``host:port``.

    Raises:
        ReachError: It is not of that form.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ReachError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def resolve(host: str) -> tuple[str, ...]:
    """The addresses of a name, or of an address itself.

    Raises:
        UnresolvedNameError: There is none.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnresolvedNameError(f"{host} has no address: {error}") from error
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def connect(address: str, *, timeout_s: float) -> None:
    """Open a TCP connection and close it.

    Raises:
        UnreachableError: Nobody answers.
    """
    try:
        with socket.create_connection(split_host_port(address), timeout=timeout_s):
            return
    except OSError as error:
        raise UnreachableError(f"no connection to {address}: {error}") from error


def presented_chain(address: str, *, timeout_s: float) -> tuple[x509.Certificate, ...]:
    """Connect, shake hands, and hang up, without trusting anything.

    Returns what the server presented, leaf first. The time limit is for everything together.

    Raises:
        ReachError: There is no TLS server, it does not answer in time, or what it presents is no
            certificate.
    """
    host, port = split_host_port(address)
    deadline = time.monotonic() + timeout_s
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_verify(SSL.VERIFY_NONE, lambda *_: True)
    context.set_alpn_protos([b"h2"])
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as raw:
            connection = SSL.Connection(context, raw)
            connection.set_connect_state()
            if not _is_ip(host):
                connection.set_tlsext_host_name(host.encode("ascii"))
            _do_handshake(connection, raw, deadline)
            return tuple(connection.get_peer_cert_chain(as_cryptography=True) or ())
    except (OSError, SSL.Error, *MALFORMED) as error:
        raise UnreachableError(
            f"no TLS server at {address}: {str(error) or type(error).__name__}"
        ) from error


def _do_handshake(connection: SSL.Connection, raw: socket.socket, deadline: float) -> None:
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


def shake_hands(
    address: str,
    *,
    server_name: str,
    trusted: tuple[x509.Certificate, ...],
    client: ClientPair | None,
    timeout_s: float,
) -> str:
    """Shake hands as gRPC would, and read HTTP/2's first frame; returns the TLS version.

    ``trusted`` are the only CAs that are; the client presents nothing where no certificate is asked
    for. The time limit is for each step.

    Raises:
        UnreachableError: The port does not answer.
        HandshakeError: TLS does not come about.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    roots = b"".join(ca.public_bytes(Encoding.PEM) for ca in trusted)
    context.load_verify_locations(cadata=roots.decode())
    if client is not None:
        try:
            context.load_cert_chain(client.certificate, client.key)
        except (OSError, ssl.SSLError) as error:
            raise HandshakeError(
                f"our own certificate cannot be used: {error}", stage=Stage.CLIENT
            ) from error
    try:
        raw = socket.create_connection(split_host_port(address), timeout=timeout_s)
    except OSError as error:
        raise UnreachableError(f"no connection to {address}: {error}") from error
    with raw:
        try:
            wrapped = context.wrap_socket(raw, server_hostname=server_name)
        except ssl.SSLCertVerificationError as error:
            leaf = _presented_leaf(address, timeout_s=timeout_s)
            raise HandshakeError(
                f"the server's certificate is refused: {error.verify_message}",
                stage=_verification_stage(error),
                leaf=leaf,
            ) from error
        except (OSError, ValueError) as error:
            raise HandshakeError(f"no TLS with {address}: {error}", stage=Stage.NO_TLS) from error
        with wrapped:
            return _first_frame(wrapped, address)


def _presented_leaf(address: str, *, timeout_s: float) -> x509.Certificate | None:
    try:
        return next(iter(presented_chain(address, timeout_s=timeout_s)), None)
    except ReachError:
        return None


def _first_frame(wrapped: ssl.SSLSocket, address: str) -> str:
    try:
        wrapped.sendall(_HTTP2_PREFACE)
        header = wrapped.recv(_FRAME_HEADER_BYTES)
    except (OSError, ssl.SSLError) as error:
        raise HandshakeError(
            f"{address} ended the connection after it saw our certificate: {error}",
            stage=Stage.CLIENT,
        ) from error
    if len(header) < 4 or header[3] != _SETTINGS:
        stage = Stage.CLIENT if not header else Stage.NO_TLS
        raise HandshakeError(f"{address} does not speak HTTP/2 with us", stage=stage)
    return wrapped.version() or "TLS"


def _verification_stage(error: ssl.SSLCertVerificationError) -> Stage:
    # X509_V_ERR_CERT_NOT_YET_VALID 9, _CERT_HAS_EXPIRED 10, _HOSTNAME_MISMATCH 62, _IP_ADDRESS_ 64
    return {
        9: Stage.NOT_YET_VALID,
        10: Stage.EXPIRED,
        62: Stage.NAME,
        64: Stage.NAME,
    }.get(error.verify_code, Stage.UNTRUSTED)
