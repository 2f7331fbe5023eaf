"""Certificates carry what the coordinator says, and nothing a request asks for."""

import datetime as dt
import ipaddress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from server.errors import CertificateRequestError, PkiError
from server.pki.authority import CertificateAuthority

CA = CertificateAuthority.create("oncology")


def csr(key, *, uri="spiffe://oncology/admin/root"):
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody-else")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    builder = builder.add_extension(
        x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False
    )
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.DER)


def issue(content):
    return CA.issue_silo(content, "hospital-a", federation="oncology")


def names(certificate):
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def usages(certificate):
    return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def life(certificate):
    return certificate.not_valid_after_utc - dt.datetime.now(dt.UTC)


def test_a_silo_gets_its_own_name_whatever_it_asks_for():
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = issue(csr(key))
    leaf.verify_directly_issued_by(CA.certificate)
    assert leaf.public_key() == key.public_key()
    assert names(leaf).get_values_for_type(x509.UniformResourceIdentifier) == [
        "spiffe://oncology/silo/hospital-a"
    ]
    assert leaf.subject.rfc4514_string() == "CN=hospital-a"
    assert usages(leaf) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert dt.timedelta(days=29) < life(leaf) <= dt.timedelta(days=30)
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_admin_and_server_certificates():
    admin = CA.issue_admin("alex").certificate
    assert names(admin).get_values_for_type(x509.UniformResourceIdentifier) == [
        "spiffe://coordinator/admin/alex"
    ]
    assert life(admin) <= dt.timedelta(hours=24)
    server = CA.issue_server(("coord.example.org", "10.0.0.1")).certificate
    assert names(server).get_values_for_type(x509.DNSName) == ["coord.example.org"]
    assert names(server).get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.0.0.1")]
    assert usages(server) == [ExtendedKeyUsageOID.SERVER_AUTH]
    with pytest.raises(PkiError):
        CA.issue_server(("bücher.example",))


@pytest.mark.parametrize(
    "key",
    [ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate()],
    ids=["p384", "ed25519"],
)
def test_other_key_types_are_refused(key):
    with pytest.raises(CertificateRequestError, match="P-256"):
        issue(csr(key))


def test_an_unsigned_or_malformed_request_is_refused():
    request = bytearray(csr(ec.generate_private_key(ec.SECP256R1())))
    request[-1] ^= 1
    for content in (bytes(request), b"", b"not a request", b"\x30" * 10_000):
        with pytest.raises(CertificateRequestError):
            issue(content)


def test_save_and_load(tmp_path):
    CA.save(tmp_path / "pki")
    loaded = CertificateAuthority.load(tmp_path / "pki")
    assert loaded.sha256 == CA.sha256
    assert "key=" not in repr(loaded)
    CertificateAuthority.create("oncology").issue_admin("x").save(tmp_path / "pki", "other")
    with pytest.raises(PkiError, match="do not belong together"):
        CertificateAuthority.load(tmp_path / "pki")
    with pytest.raises(PkiError, match="cannot be read"):
        CertificateAuthority.load(tmp_path / "absent")


def test_two_cas_never_have_the_same_name_and_long_names_fit():
    first, second = (CertificateAuthority.create("x" * 63) for _ in range(2))
    assert first.certificate.subject != second.certificate.subject


def test_a_ca_vouches_for_the_one_before_it():
    newer = CertificateAuthority.create("oncology")
    word = newer.vouch_for(CA.certificate)
    word.verify_directly_issued_by(newer.certificate)
    assert word.public_key() == CA.certificate.public_key()
    assert word.subject == CA.certificate.subject
    CA.issue_admin("alex").certificate.verify_directly_issued_by(word)
    limits = word.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (limits.ca, limits.path_length) == (True, 0)
    assert word.not_valid_after_utc <= CA.certificate.not_valid_after_utc
