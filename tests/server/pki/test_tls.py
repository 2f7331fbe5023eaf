"""When the server's certificate is replaced, and what the ports then present."""

import ssl

import pytest
from cryptography import x509

from server.pki.authority import CertificateAuthority, certificate_sha256
from server.pki.tls import ServerTls
from server.pki.trust import Trust
from tests.kit.server.tls import HOSTS

HOUR = 3600


class Clock:
    def __init__(self, now):
        self.now = now

    def __call__(self):
        return self.now


def stored(pki):
    return x509.load_pem_x509_certificate((pki / "server.pem").read_bytes())


@pytest.fixture
def clock(pki):
    return Clock(stored(pki).not_valid_before_utc.timestamp() + HOUR)


def opened(pki, clock, hosts=HOSTS):
    return ServerTls(pki, Trust.load(pki, clock=clock), host_names=hosts, clock=clock)


def together(pki):
    """Whether key and certificate on disk are a pair: OpenSSL's own judgement."""
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(pki / "server.pem", pki / "server.key")
    return True


def test_a_fresh_certificate_stays(pki, clock):
    before = stored(pki)
    tls = opened(pki, clock)
    assert tls.refresh() is False
    assert stored(pki) == before


def test_it_is_replaced_at_half_its_life_and_not_before(pki, clock):
    before = stored(pki)
    begins = before.not_valid_before_utc.timestamp()
    life_s = before.not_valid_after_utc.timestamp() - begins
    tls = opened(pki, clock)
    clock.now = begins + life_s / 2 - 1
    assert tls.refresh() is False
    clock.now += 2
    assert tls.refresh() is True
    assert stored(pki).serial_number != before.serial_number
    assert stored(pki).public_key() != before.public_key()
    assert together(pki)


def test_it_is_replaced_when_the_host_names_change(pki, clock):
    opened(pki, clock, ("coord.example.org", "10.0.0.1", "0:0:0:0:0:0:0:1"))
    names = stored(pki).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["coord.example.org"]
    again = opened(pki, clock, ("coord.example.org", "10.0.0.1", "::1"))
    assert again.refresh() is False


@pytest.mark.parametrize("name", ["server.key", "server.pem"])
@pytest.mark.parametrize("how", ["absent", "damaged", "another"])
def test_files_that_are_no_pair_are_replaced(pki, clock, tmp_path, name, how):
    path = pki / name
    if how == "absent":
        path.unlink()
    elif how == "damaged":
        path.write_bytes(path.read_bytes()[:40])
    else:
        # What a crash between the two writes leaves.
        CertificateAuthority.load(pki).issue_server(HOSTS).save_pair(tmp_path, "server")
        path.write_bytes((tmp_path / name).read_bytes())
    opened(pki, clock)
    assert together(pki)
    stored(pki).verify_directly_issued_by(CertificateAuthority.load(pki).certificate)


def test_a_rotation_keeps_it_and_the_end_of_the_overlap_replaces_it(pki, clock):
    trust = Trust.load(pki, clock=clock)
    tls = ServerTls(pki, trust, host_names=HOSTS, clock=clock)
    old, before = trust.issuing, stored(pki)
    trust.rotate(HOUR, name="oncology")
    assert tls.refresh() is False
    assert stored(pki) == before
    shown = x509.load_pem_x509_certificates(tls._shown.chain_pem)
    leaf, word, new, old_shown = shown
    assert leaf == before
    word.verify_directly_issued_by(new)
    leaf.verify_directly_issued_by(word)
    assert {certificate_sha256(new), certificate_sha256(old_shown)} == {
        trust.issuing.sha256,
        old.sha256,
    }
    clock.now += HOUR
    trust.tidy()
    assert tls.refresh() is True
    stored(pki).verify_directly_issued_by(trust.issuing.certificate)
    assert tls._shown.chain_pem.count(b"BEGIN CERTIFICATE") == 2
    assert tls._shown.roots_pem.count(b"BEGIN CERTIFICATE") == 1


def test_no_key_is_shown(pki, clock):
    assert "PRIVATE" not in repr(opened(pki, clock)._shown)
