"""What reading a certificate from somebody else can fail with.

``cryptography`` parses lazily, so each of these may come from loading a certificate or from a later
look at its version, names, key or extensions; and not all of them are ``ValueError``.

Covered: X.509 certificates and requests. Not covered: whether one is trusted.
"""

from __future__ import annotations

from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

__all__ = ["MALFORMED"]

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
