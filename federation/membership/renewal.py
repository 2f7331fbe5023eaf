"""What both daemons compute alike when a silo's certificate is renewed.

``renew_statement`` is what the silo's Ed25519 key signs. It names the certificate that asks, so a
request that was recorded is worth nothing once that certificate is replaced; its domain is its own,
so no signature of another kind passes for it.

``trust_sha256`` names the set of CAs that are trusted now, the issuing one first. The coordinator
puts it beside every answer to a silo, under ``TRUST_METADATA``. A silo that holds another set
renews: so it learns of a new CA, and later that the old one is gone, within one poll, without an
RPC of its own.

Covered: the two encodings. Not covered: who may renew (``server/members/renewal.py``), and when
(``silo_agent/identity/renewal.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from secagg import canonical

__all__ = ["MAX_CAS", "TRUST_METADATA", "renew_statement", "trust_sha256"]

TRUST_METADATA: Final = "chorale-trust"
"""Trailing metadata: the set's digest in hexadecimal."""
MAX_CAS: Final = 4
"""More CAs at a time than any rotation makes."""
_RENEW_DOMAIN: Final = "chorale/v1/renew"
_TRUST_DOMAIN: Final = "chorale/v1/trust"


def renew_statement(
    federation: str, silo_id: str, *, certificate_sha256: bytes, csr_der: bytes
) -> bytes:
    """Return what the silo's Ed25519 key signs when it asks for its next certificate.

    The digest is of the certificate that asks, in DER; the request is for the next one.
    """
    return canonical.encode(
        _RENEW_DOMAIN, federation, silo_id, certificate_sha256, hashlib.sha256(csr_der).digest()
    )


def trust_sha256(cas_der: Sequence[bytes]) -> bytes:
    """The digest of a set of CAs in DER, the issuing one first."""
    digests = (hashlib.sha256(der).digest() for der in cas_der)
    return hashlib.sha256(canonical.encode(_TRUST_DOMAIN, *digests)).digest()
