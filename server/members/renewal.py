"""Renewing a silo's certificate before it ends.

The order of the checks, and why:

1. The certificate that asks was judged on this very call (``server/rpc/access.py``): a silo that is
   revoked, suspended or expired does not get here.
2. The request's size, before anything is computed from it.
3. A silo that left is not renewed once the roster is without it: it reads what is published until
   its certificate ends.
4. The signature is by the Ed25519 key that this silo joined with, over this request and the
   certificate that asks. So a stolen TLS key alone renews nothing, and a recorded request is worth
   nothing once the certificate it names is replaced.
5. The request is for a P-256 key and signed by it.
6. One transaction keeps the new certificate as the next one. The certificate that asked stays good
   until the next one is used for the first time; asking again replaces the next one. So a renewal
   that is cut short anywhere locks nobody out.

Covered: another silo's key or certificate, replay, other key types. Not covered: how often a silo
may ask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from federation.membership.renewal import renew_statement
from ops.logs.logger import get_logger
from secagg.suite import verify
from server.audit import AuditEvent, AuditLog
from server.errors import (
    CertificateRequestError,
    PossessionProofError,
    RevokedCertificateError,
    StandingError,
)
from server.members.peer import Peer
from server.members.terms import require_federation
from server.metrics import CoordinatorMetrics
from server.pki.authority import MAX_CSR_BYTES, certificate_sha256, der, not_after_unix_s
from server.pki.trust import Trust
from server.store import Store

__all__ = ["Renewals", "Renewed"]

log = get_logger(__name__)

SIGNATURE_BYTES: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Renewed:
    """What the silo is answered."""

    certificate_der: bytes
    ca_certificates_der: tuple[bytes, ...]
    """Every CA that is trusted now, the issuer first."""


class Renewals:
    """Issues next certificates."""

    def __init__(
        self, *, trust: Trust, store: Store, audit: AuditLog, metrics: CoordinatorMetrics
    ) -> None:
        self._trust = trust
        self._store = store
        self._audit = audit
        self._metrics = metrics

    def renew(self, peer: Peer, *, csr_der: bytes, signature: bytes) -> Renewed:
        """Issue a silo's next certificate, beside the one that it called with.

        Of the request, PKCS#10, only the key is used; the signature is by the silo's Ed25519 key.

        Raises:
            CertificateRequestError: Too large, malformed, unsigned, or not for a P-256 key.
            StandingError: The silo left, and the roster in force is without it.
            PossessionProofError: Not signed by this silo's key, or for another certificate.
        """
        if len(csr_der) > MAX_CSR_BYTES:
            raise CertificateRequestError(f"a request has at most {MAX_CSR_BYTES} bytes")
        with self._store.transaction():
            silo = self._store.silos.get(peer.name)
            if silo is None:
                raise RevokedCertificateError(f"{peer.name} is not an enrolled silo")
            roster = self._store.rosters.current()
            if silo.left and (roster is None or peer.name not in roster.roster.silo_ids):
                raise StandingError(
                    f"{peer.name} left the federation and no roster names it: its certificate "
                    "ends, and a new invite brings it back"
                )
            federation = require_federation(self._store).name
            statement = renew_statement(
                federation,
                peer.name,
                certificate_sha256=peer.certificate_sha256,
                csr_der=csr_der,
            )
            _verify(silo.verification_key, signature, statement)
            trusted = self._trust.certificates()
            certificate = self._trust.issuing.issue_silo(csr_der, peer.name, federation=federation)
            self._store.silos.renew(
                peer.name,
                certificate_sha256=certificate_sha256(certificate),
                expiry_unix_s=not_after_unix_s(certificate),
            )
            # Inside the transaction: what the audit log cannot name is not issued.
            self._audit.append(
                AuditEvent.SILO_CERTIFICATE_RENEWED,
                silo=peer.name,
                certificate_sha256=certificate_sha256(certificate).hex(),
            )
        self._metrics.certificate_renewals.inc()
        log.info("silo_certificate_renewed", silo=peer.name)
        return Renewed(
            certificate_der=der(certificate),
            ca_certificates_der=tuple(der(one) for one in trusted),
        )


def _verify(verification_key: bytes, signature: bytes, statement: bytes) -> None:
    if len(signature) != SIGNATURE_BYTES:
        raise PossessionProofError("the signature has the wrong length")
    if not verify(verification_key, signature, statement):
        raise PossessionProofError(
            "the renewal is not signed by this silo's key for this request and this certificate"
        )
