"""The federation's issuing CA and every certificate it signs.

Invariants:

1. Every key is P-256; a request for any other key is refused.
2. A subject's name comes from the coordinator's records, never from the request: a CSR gives its
   public key and the proof that it is held, nothing else.
3. A silo's certificate carries exactly one URI, ``spiffe://<federation>/silo/<id>``, an operator's
   ``spiffe://coordinator/<role>/<name>``, each with the client usage alone; the server's carries
   its host names and the server usage alone.
4. Private keys are written 0600 into 0700 directories, and are never part of a ``repr``. A CA's key
   is encrypted where there is a passphrase; an older one that is not goes on working.
5. No two CAs have the same name, so a verifier never has to guess which one signed.

Covered: issuing, storing, reading back, one CA vouching for the one before it. Not covered: which
CAs are trusted when (``server/pki/trust.py``), hardware keys.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from federation.membership.invite import silo_spiffe_uri
from ops.files import private_directory, replace_file
from server.errors import CertificateRequestError, PkiError
from server.pki.keys import is_encrypted_key, private_pem

__all__ = [
    "OPERATOR_DOMAIN",
    "CertificateAuthority",
    "Leaf",
    "certificate_sha256",
    "der",
    "not_after_unix_s",
]

OPERATOR_DOMAIN: Final = "coordinator"
"""The trust domain of admins and viewers: they are there before the federation has a name."""

CA_LIFE: Final = dt.timedelta(days=3650)
SERVER_LIFE: Final = dt.timedelta(days=397)
ADMIN_LIFE: Final = dt.timedelta(hours=24)
SILO_LIFE: Final = dt.timedelta(days=30)
CLOCK_SKEW: Final = dt.timedelta(minutes=5)
MAX_CSR_BYTES: Final = 8192
MAX_NAME_CHARS: Final = 40
"""Of the name in a CA's common name, which X.509 bounds at 64."""


def certificate_sha256(certificate: x509.Certificate) -> bytes:
    """Return the SHA-256 of the DER, by which invites pin and the store names a certificate."""
    return hashlib.sha256(der(certificate)).digest()


def der(certificate: x509.Certificate) -> bytes:
    """Return a certificate as it travels in messages."""
    return certificate.public_bytes(serialization.Encoding.DER)


def not_after_unix_s(certificate: x509.Certificate) -> int:
    """Return when a certificate expires."""
    return int(certificate.not_valid_after_utc.timestamp())


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    """A certificate with its key and the CA that signed it."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    ca: x509.Certificate
    also_trusted: tuple[x509.Certificate, ...] = ()
    """Other CAs that the holder trusts, while a rotation lasts."""

    @property
    def chain_pem(self) -> bytes:
        """The certificate and its CA, as a TLS server sends them."""
        return _pem(self.certificate) + _pem(self.ca)

    @property
    def key_pem(self) -> bytes:
        """The private key."""
        return private_pem(self.key)

    @property
    def ca_pem(self) -> bytes:
        """Every CA that the holder trusts, the issuer first."""
        return b"".join(_pem(ca) for ca in (self.ca, *self.also_trusted))

    def save(self, directory: Path, name: str) -> None:
        """Write ``<name>.pem``, ``<name>.key`` and ``ca.pem`` to a directory of mode 0700."""
        self.save_pair(directory, name)
        replace_file(directory / "ca.pem", (self.ca_pem,), mode=0o644)

    def save_pair(self, directory: Path, name: str) -> None:
        """Write ``<name>.key``, then ``<name>.pem``; a crash between them leaves no pair.

        The directory is created with mode 0700.
        """
        private_directory(directory)
        replace_file(directory / f"{name}.key", (self.key_pem,))
        replace_file(directory / f"{name}.pem", (self.chain_pem,), mode=0o644)


@dataclass(frozen=True, kw_only=True, slots=True)
class CertificateAuthority:
    """An issuing CA of one coordinator."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def create(cls, name: str) -> CertificateAuthority:
        """Make a new CA with a key of its own, in memory only.

        Its subject shows the name beside a random part.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        common_name = f"{name[:MAX_NAME_CHARS]} issuing CA {secrets.token_hex(4)}"
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        certificate = (
            _builder(subject, subject, key.public_key(), CA_LIFE)
            # One level below it: the CA before it, which it vouches for during a rotation.
            .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate=certificate, key=key)

    @classmethod
    def load(cls, directory: Path, *, passphrase: bytes | None = None) -> CertificateAuthority:
        """Read a CA from where :meth:`save` put it; the passphrase counts if its key is encrypted.

        Raises:
            PkiError: A file is absent, unreadable, encrypted with another passphrase, or key and
                certificate do not belong together.
        """
        locked = False
        try:
            certificate = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
            content = (directory / "ca.key").read_bytes()
            locked = is_encrypted_key(content)
            if locked and passphrase is None:
                raise PkiError(
                    f"{directory / 'ca.key'} is encrypted: name the file with its passphrase as "
                    "ca_passphrase_file"
                )
            key = serialization.load_pem_private_key(content, passphrase if locked else None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            if locked:
                raise PkiError(
                    f"the passphrase of ca_passphrase_file does not open {directory / 'ca.key'}"
                ) from error
            raise PkiError(f"the CA in {directory} cannot be read: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or (
            key.public_key() != certificate.public_key()
        ):
            raise PkiError(f"ca.key and ca.pem in {directory} do not belong together")
        return cls(certificate=certificate, key=key)

    def save(self, directory: Path, *, passphrase: bytes | None = None) -> None:
        """Write ``ca.pem`` and ``ca.key``, the latter encrypted if there is a passphrase.

        The directory is created with mode 0700.
        """
        private_directory(directory)
        replace_file(directory / "ca.key", (private_pem(self.key, passphrase),))
        replace_file(directory / "ca.pem", (_pem(self.certificate),), mode=0o644)

    @property
    def sha256(self) -> bytes:
        """What invites pin."""
        return certificate_sha256(self.certificate)

    def issue_server(self, host_names: tuple[str, ...]) -> Leaf:
        """Make the coordinator's server certificate for DNS names and IP addresses.

        Raises:
            PkiError: A name is neither.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_host(name) for name in host_names])
        certificate = self._sign(
            key.public_key(),
            common_name="coordinator",
            names=names,
            usage=ExtendedKeyUsageOID.SERVER_AUTH,
            life=SERVER_LIFE,
        )
        return Leaf(certificate=certificate, key=key, ca=self.certificate)

    def issue_admin(self, name: str, *, role: str = "admin") -> Leaf:
        """Make an operator's client certificate; the role ``viewer`` is for reading only."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(
            key.public_key(),
            common_name=name,
            names=_uri(f"spiffe://{OPERATOR_DOMAIN}/{role}/{name}"),
            usage=ExtendedKeyUsageOID.CLIENT_AUTH,
            life=ADMIN_LIFE,
        )
        return Leaf(certificate=certificate, key=key, ca=self.certificate)

    def issue_silo(self, csr_der: bytes, silo_id: str, *, federation: str) -> x509.Certificate:
        """Sign a silo's request, PKCS#10, of which only the key is used.

        ``federation`` is the silo's trust domain.

        Raises:
            CertificateRequestError: Malformed, not signed by its key, or not a P-256 key.
        """
        if len(csr_der) > MAX_CSR_BYTES:
            raise CertificateRequestError(f"a request has at most {MAX_CSR_BYTES} bytes")
        try:
            request = x509.load_der_x509_csr(csr_der)
            public_key = request.public_key()
            signed = request.is_signature_valid
        except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as error:
            raise CertificateRequestError("the certificate request is malformed") from error
        if not isinstance(public_key, ec.EllipticCurvePublicKey) or not isinstance(
            public_key.curve, ec.SECP256R1
        ):
            raise CertificateRequestError("the certificate request is not for a P-256 key")
        if not signed:
            raise CertificateRequestError("the certificate request is not signed by its key")
        return self._sign(
            public_key,
            common_name=silo_id,
            names=_uri(silo_spiffe_uri(federation, silo_id)),
            usage=ExtendedKeyUsageOID.CLIENT_AUTH,
            life=SILO_LIFE,
        )

    def vouch_for(self, older: x509.Certificate) -> x509.Certificate:
        """Certify the CA before this one, by name and key, for no longer than it is valid itself.

        A server certificate of the older CA is then good for those who know this one alone: who
        joined during a rotation with an invite that pins the newer CA.

        Raises:
            PkiError: It has another kind of key.
        """
        public_key = older.public_key()
        if not isinstance(public_key, ec.EllipticCurvePublicKey):
            raise PkiError("a CA's key is not on an elliptic curve")
        left = older.not_valid_after_utc - dt.datetime.now(dt.UTC)
        return (
            _builder(older.subject, self.certificate.subject, public_key, min(left, CA_LIFE))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(self._authority_key(), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def _authority_key(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())

    def _sign(
        self,
        public_key: ec.EllipticCurvePublicKey,
        *,
        common_name: str,
        names: x509.SubjectAlternativeName,
        usage: x509.ObjectIdentifier,
        life: dt.timedelta,
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        return (
            _builder(subject, self.certificate.subject, public_key, life)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(names, critical=False)
            .add_extension(self._authority_key(), critical=False)
            .sign(self.key, hashes.SHA256())
        )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _uri(uri: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError as error:
        raise PkiError(f"{name!r} is neither a DNS name nor an IP address") from error


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
