"""What a client certificate says: one SPIFFE URI, read without judging it.

Covered: certificates that are malformed, nameless, or name several. Not covered: issuer, validity
and role (``server/rpc/access.py``).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from cryptography import x509

from server.errors import UnauthenticatedError

__all__ = ["parse_certificate", "spiffe_name"]

MAX_CERTIFICATES_CACHED: Final = 1024


@lru_cache(maxsize=MAX_CERTIFICATES_CACHED)
def parse_certificate(pem: bytes) -> x509.Certificate:
    """Read what TLS verified.

    Args:
        pem: The certificate.

    Raises:
        UnauthenticatedError: It is malformed.
    """
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise UnauthenticatedError("the client certificate is malformed") from error


def spiffe_name(certificate: x509.Certificate) -> tuple[str, str, str]:
    """Read trust domain, role and name.

    Args:
        certificate: The certificate.

    Raises:
        UnauthenticatedError: It does not carry exactly one SPIFFE URI.
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError) as error:
        raise UnauthenticatedError("the certificate carries no name") from error
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    parts = uris[0].removeprefix("spiffe://").split("/") if len(uris) == 1 else []
    if len(parts) != 3 or not uris[0].startswith("spiffe://") or not all(parts):
        raise UnauthenticatedError("the certificate does not carry exactly one SPIFFE URI")
    return parts[0], parts[1], parts[2]
