"""The server's certificate and what both ports show of it, replaced while they serve.

Invariants:

1. A certificate is replaced at half its life, when its CA retires, when the configured host names
   are no longer its own, or when its files do not belong together; the last is what a crash between
   the two writes leaves.
2. A new certificate is for new connections; connections that are open are not touched.
3. During a rotation the chain also holds the new CA and its word for the old one, so that invites
   which pin either CA work.

Covered: both ports, without a restart. Not covered: a fetcher that fails; the certificate before
stays in use.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ops.logs.logger import get_logger
from server.pki.authority import CertificateAuthority, Leaf, not_after_unix_s
from server.pki.trust import Trust

__all__ = ["ServerTls"]

log = get_logger(__name__)

NAME: Final = "server"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """What the ports present from some moment on."""

    key_pem: bytes = field(repr=False)
    chain_pem: bytes
    roots_pem: bytes

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(self.key_pem, self.chain_pem)], root_certificates=self.roots_pem
        )


class ServerTls:
    """The TLS side of one coordinator."""

    def __init__(
        self,
        pki: Path,
        trust: Trust,
        *,
        host_names: tuple[str, ...],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pki = pki
        self._trust = trust
        self._host_names = host_names
        self._clock = clock
        self._leaf = self._read()
        self._follows = (self._leaf.certificate, *trust.certificates())
        self._shown = self._show()
        self.refresh()

    @property
    def expiry_unix_s(self) -> int:
        """When the present certificate ends."""
        return not_after_unix_s(self._leaf.certificate)

    def refresh(self) -> bool:
        """Renew the certificate if it is time, and show what is trusted now; True if it is new.

        Raises:
            PkiError: A host name is malformed.
            OSError: The new certificate cannot be stored; the present one stays in use.
        """
        due = self._due(self._leaf)
        if due:
            leaf = self._trust.serving.issue_server(self._host_names)
            leaf.save_pair(self._pki, NAME)
            self._leaf = leaf
            log.info("server_certificate_renewed", expiry_unix_s=self.expiry_unix_s)
        follows = (self._leaf.certificate, *self._trust.certificates())
        if follows != self._follows:
            self._follows, self._shown = follows, self._show()
        return due

    def credentials(
        self, *, require_client: bool, connected: Callable[[], None] = lambda: None
    ) -> grpc.ServerCredentials:
        """Make one port's credentials; what they present follows this object.

        With ``require_client`` a client needs a certificate of a trusted CA. ``connected`` is told
        of each connection before its handshake, on gRPC's own threads.
        """
        given = self._shown
        lock = threading.Lock()

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            # Called by gRPC's own threads at every handshake; None keeps what it has.
            nonlocal given
            connected()
            with lock:
                shown = self._shown
                if shown is given:
                    return None
                given = shown
            return shown.configuration()

        return grpc.dynamic_ssl_server_credentials(
            given.configuration(),
            fetch,  # type: ignore[arg-type]  # the stubs forget None, which gRPC documents
            require_client_authentication=require_client,
        )

    def _read(self) -> Leaf:
        try:
            return _load(self._pki, self._trust.serving)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            log.warning("server_certificate_unusable", reason=error)
            leaf = self._trust.serving.issue_server(self._host_names)
            leaf.save_pair(self._pki, NAME)
            return leaf

    def _due(self, leaf: Leaf) -> bool:
        certificate, ca = leaf.certificate, self._trust.serving.certificate
        begins = certificate.not_valid_before_utc.timestamp()
        ends = certificate.not_valid_after_utc.timestamp()
        now = self._clock()
        # Before its begin: the clock was ahead when it was issued, and nobody would accept it.
        return (
            now < begins
            or now >= begins + (ends - begins) / 2
            or not _issued_by(certificate, ca)
            or _names(certificate) != {_plain(name) for name in self._host_names}
        )

    def _show(self) -> _Shown:
        trust = self._trust
        authorities = [trust.issuing.certificate]
        retiring = trust.retiring
        if retiring is not None:
            old = retiring.authority.certificate
            authorities = [trust.issuing.vouch_for(old), trust.issuing.certificate, old]
        return _Shown(
            key_pem=self._leaf.key_pem,
            chain_pem=b"".join(_pem(one) for one in (self._leaf.certificate, *authorities)),
            roots_pem=b"".join(_pem(one) for one in trust.certificates()),
        )


def _load(pki: Path, serving: CertificateAuthority) -> Leaf:
    certificate = x509.load_pem_x509_certificate((pki / f"{NAME}.pem").read_bytes())
    key = serialization.load_pem_private_key((pki / f"{NAME}.key").read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or (
        key.public_key() != certificate.public_key()
    ):
        raise ValueError("server.key and server.pem do not belong together")
    return Leaf(certificate=certificate, key=key, ca=serving.certificate)


def _issued_by(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _names(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    addresses = names.get_values_for_type(x509.IPAddress)
    return {*names.get_values_for_type(x509.DNSName), *(str(address) for address in addresses)}


def _plain(name: str) -> str:
    """One spelling for each address."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
