"""A silo's own certificate: the request for one, and what an answer must hold to be believed.

Covered: another key, another silo, a CA that is none, validity now, hostile bytes. Not covered:
where the CA comes from, which ``silo_agent/identity/identity.py`` and
``silo_agent/identity/renewal.py`` decide.
"""

from __future__ import annotations

import datetime as dt

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from federation.membership.invite import silo_spiffe_uri
from ops.doctor.reach import MALFORMED
from silo_agent.errors import IdentityError

__all__ = ["UntrustedCoordinatorError", "certificate_request", "read_ca", "read_leaf"]

MAX_CERTIFICATE_BYTES = 8192


class UntrustedCoordinatorError(IdentityError):
    """The coordinator's answer is not what this silo may believe."""


def certificate_request(silo_id: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a PKCS#10 request in DER, with the silo as its common name."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, silo_id)])
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.DER)
    )


def read_ca(content: bytes) -> x509.Certificate:
    """Read the DER of a certificate of a CA: signed by itself, valid now.

    Raises:
        UntrustedCoordinatorError: It is not.
    """
    try:
        ca = _read(content)
        ca.verify_directly_issued_by(ca)
        constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints).value
    except MALFORMED as error:
        raise UntrustedCoordinatorError("the answer holds a CA that is none") from error
    if not constraints.ca:
        raise UntrustedCoordinatorError("the answer holds a CA that is none")
    _require_valid(ca)
    return ca


def read_leaf(
    content: bytes,
    *,
    issuer: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    federation: str,
    silo_id: str,
) -> x509.Certificate:
    """Read the DER of this silo's new certificate: of that issuer, key, trust domain and name.

    Raises:
        UntrustedCoordinatorError: It is not that.
    """
    try:
        leaf = _read(content)
        leaf.verify_directly_issued_by(issuer)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        public_key = leaf.public_key()
    except MALFORMED as error:
        raise UntrustedCoordinatorError("the answer's certificate is not from its CA") from error
    if public_key != key.public_key():
        raise UntrustedCoordinatorError("the answer's certificate is for another key")
    if uris != [silo_spiffe_uri(federation, silo_id)]:
        raise UntrustedCoordinatorError("the answer's certificate names another silo")
    _require_valid(leaf)
    return leaf


def _read(content: bytes) -> x509.Certificate:
    if len(content) > MAX_CERTIFICATE_BYTES:
        raise ValueError("a certificate has too many bytes")
    return x509.load_der_x509_certificate(content)


def _require_valid(certificate: x509.Certificate) -> None:
    now = dt.datetime.now(dt.UTC)
    if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc:
        raise UntrustedCoordinatorError(
            "the answer's certificate is not valid now: compare this machine's clock with the "
            "coordinator's"
        )
