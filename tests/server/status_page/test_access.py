"""Who may see the status page: operators, and nobody who only seems to be one."""

import datetime as dt
import http.client
import ssl
import time

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from prometheus_client import CollectorRegistry

from ops.address import split_address
from ops.probes.server import Probes
from ops.probes.tls import ProbeTls
from server.pki.authority import CertificateAuthority, Leaf, der
from server.status_page import page
from server.status_page.serve import status_page
from server.store.federation import FederationRow
from tests.kit.server import status_page_samples as samples

DAY_S = samples.DAY_S


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    made = samples.Coordinator(tmp_path_factory.mktemp("access"))
    made.store.federation.create(FederationRow(name="oncology"))
    yield made
    made.close()


def status(coordinator, *, now=None, **changes):
    """What one request is answered, with a page of its own."""
    pages = status_page(
        context=coordinator.context,
        trust=coordinator.trust,
        data_dir=coordinator.directory,
        shown=lambda: None,
        clock=time.time if now is None else lambda: now,
    )
    return pages(samples.request(**changes)).status


def silo_leaf(authority, role="silo", domain="oncology", name="hospital-a"):
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    signed = request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    certificate = authority.issue_silo(signed, name, federation=domain)
    return Leaf(certificate=certificate, key=key, ca=authority.certificate)


# From this machine --------------------------------------------------------------------------------


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:7445", "127.0.0.1:7445", "127.0.0.1", "[::1]:9", "[::1]"]
)
def test_operators_of_this_machine_see_it(coordinator, peer, host):
    assert status(coordinator, peer=peer, host=host) == 200
    assert status(coordinator, peer=peer, host=host, scheme="https") == 200


@pytest.mark.parametrize(
    "host",
    [
        "", "evil.example.org", "evil.example.org:7445", "localhost.evil.example.org",
        "evil.example.org#localhost", "localhost@evil.example.org", "127.0.0.1.evil.example.org",
        "coord.example.org:7445", "10.0.0.5:7445", "0.0.0.0:7445", "[::]:7445", "127.0.0.2",
        "localhost.", "localhost:", "localhost:7445:1", " localhost", "localhost\r\nX: y",
        "localhost:999999", "::1", "2130706433", "0x7f.1", "127.1",
    ],
)  # fmt: skip
def test_a_name_that_was_pointed_at_this_machine_is_no_way_in(coordinator, host):
    """DNS rebinding: the browser is here, and the page that makes it ask is somebody else's."""
    assert status(coordinator, host=host) == 403


@pytest.mark.parametrize(
    "peer",
    ["10.0.0.7", "192.168.1.1", "0.0.0.0", "::", "fe80::1%eth0", "::ffff:10.0.0.7", "128.0.0.1",
     "", "localhost", "unknown"],
)  # fmt: skip
def test_another_machine_does_not_see_it_whatever_host_it_names(coordinator, peer):
    assert status(coordinator, peer=peer, host="localhost:7445") == 403


def test_a_refusal_says_what_to_do_and_nothing_of_the_coordinator(coordinator):
    coordinator.audit.head()
    for path in ("/", "/?hold", "/runs/anything"):
        answer = coordinator.get(path, peer="10.0.0.7")
        assert (answer.status, answer.content_type) == (403, "text/plain; charset=utf-8")
        assert answer.headers == page.HEADERS
        text = answer.body.decode()
        assert "ssh -L 7445:127.0.0.1:7445" in text
        assert "chorale admin renew" in text
        assert "oncology" not in text


def test_a_refusal_repeats_nothing_that_was_sent(coordinator):
    host = "evil<script>alert(1)</script>"
    body = coordinator.get(f"/runs/{host}", host=host, peer="10.0.0.7").body.decode()
    assert "evil" not in body


# With a certificate -------------------------------------------------------------------------------


def certified(coordinator, leaf, **changes):
    return status(
        coordinator,
        **{
            "scheme": "https", "peer": "10.0.0.7", "host": "coord.example.org:7445",
            "certificate": der(leaf.certificate), **changes,
        },
    )  # fmt: skip


@pytest.mark.parametrize("role", ["admin", "viewer"])
def test_operators_with_a_certificate_see_it_from_anywhere(coordinator, role):
    leaf = coordinator.authority.issue_admin("alex", role=role)
    assert certified(coordinator, leaf) == 200
    assert certified(coordinator, leaf, host="any.example.org") == 200


def test_a_certificate_is_judged_now(coordinator):
    leaf = coordinator.authority.issue_admin("alex")
    ends = leaf.certificate.not_valid_after_utc.timestamp()
    begins = leaf.certificate.not_valid_before_utc.timestamp()
    assert certified(coordinator, leaf, now=ends - 1) == 200
    assert certified(coordinator, leaf, now=ends) == 403
    assert certified(coordinator, leaf, now=begins - 1) == 403


def test_certificates_that_open_nothing(coordinator):
    other = CertificateAuthority.create("chorale")
    ours = coordinator.authority
    key = ec.generate_private_key(ec.SECP256R1())
    nameless = ours._sign(
        key.public_key(),
        common_name="alex",
        names=x509.SubjectAlternativeName([x509.DNSName("coord.example.org")]),
        usage=x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH,
        life=dt.timedelta(days=1),
    )
    refused = {
        "of another CA": other.issue_admin("alex"),
        "a silo's": silo_leaf(ours),
        "a silo's that names itself admin": silo_leaf(ours, name="admin"),
        "of another federation": silo_leaf(ours, domain="cardiology"),
        "of an unknown role": ours.issue_admin("alex", role="owner"),
        "the server's": ours.issue_server(("localhost",)),
        "without a name": Leaf(certificate=nameless, key=key, ca=ours.certificate),
    }
    for what, leaf in refused.items():
        assert certified(coordinator, leaf) == 403, what
    assert certified(coordinator, ours.issue_admin("a"), certificate=b"no certificate") == 403
    assert certified(coordinator, ours.issue_admin("a"), certificate=None) == 403
    # Over plain HTTP nobody verified anything.
    assert certified(coordinator, ours.issue_admin("a"), scheme="http") == 403
    # On this machine it needs none, so a bad one does not shut the door either.
    assert certified(coordinator, refused["a silo's"], peer="127.0.0.1", host="localhost") == 200


def test_a_silos_certificate_changes_nothing_by_being_shown(coordinator):
    """On a silo's port, the next certificate takes the place of the one before at its first use."""
    leaf = silo_leaf(coordinator.authority, name="hospital-z")
    coordinator.enrol(
        "hospital-z",
        next_certificate_sha256=leaf.certificate.fingerprint(hashes.SHA256()),
        next_certificate_expiry_unix_s=int(time.time()) + DAY_S,
    )
    before = coordinator.store.silos.get("hospital-z")
    assert certified(coordinator, leaf) == 403
    assert coordinator.store.silos.get("hospital-z") == before


def test_a_ca_that_was_rotated_out_takes_its_admins_with_it(tmp_path):
    coordinator = samples.Coordinator(tmp_path)
    old = coordinator.authority.issue_admin("alex")
    clock = samples.Clock()
    clock.now = time.time()
    coordinator.trust = type(coordinator.trust).load(tmp_path / "pki", clock=clock)
    coordinator.trust.rotate(3600, name="chorale")
    assert certified(coordinator, old) == 200
    clock.now += 3601
    assert certified(coordinator, old) == 403
    assert certified(coordinator, coordinator.trust.issuing.issue_admin("alex")) == 200
    coordinator.close()


# Over the wire ------------------------------------------------------------------------------------


@pytest.fixture
def served(coordinator, tmp_path):
    """The page behind the real port; with TLS if it is asked to."""
    opened = []

    def serve(*, tls=False):
        files = None
        if tls:
            coordinator.authority.issue_server(("localhost",)).save(tmp_path / "tls", "server")
            files = ProbeTls.of_files(
                tmp_path / "tls" / "server.pem",
                tmp_path / "tls" / "server.key",
                client_ca=tmp_path / "tls" / "ca.pem",
            )
        opened.append(
            Probes(
                listen="127.0.0.1:0",
                registry=CollectorRegistry(),
                checks={},
                pages=coordinator.pages,
                tls=files,
            )
        )
        opened[-1].start()
        return opened[-1]

    yield serve
    for probes in opened:
        probes.close()


def ask(probes, *, headers=None, method="GET", path="/", context=None):
    host, port = split_address(probes.address)
    if context is None:
        connection = http.client.HTTPConnection(host, port, timeout=10)
    else:
        connection = http.client.HTTPSConnection("localhost", port, timeout=10, context=context)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def test_a_browser_on_this_machine_is_served_and_a_rebound_one_is_not(served):
    probes = served()
    code, body, headers = ask(probes)
    assert code == 200
    assert b"<!doctype html>" in body
    assert headers["Content-Security-Policy"] == page.HEADERS["Content-Security-Policy"]
    code, body, headers = ask(probes, method="HEAD")
    assert (code, body, int(headers["Content-Length"])) == (
        200,
        b"",
        int(headers["Content-Length"]),
    )
    assert int(headers["Content-Length"]) > 1000
    assert ask(probes, headers={"Host": "evil.example.org"})[0] == 403
    for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Forwarded-Host", "X-Original-URL"):
        forged = {"Host": "evil.example.org", name: "127.0.0.1"}
        assert ask(probes, headers=forged)[0] == 403
        # Nor does such a header take anything from who is let in.
        assert ask(probes, headers={name: "10.0.0.7"})[0] == 200
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert ask(probes, method=method)[0] == 501


def client(tmp_path, coordinator, leaf=None):
    context = ssl.create_default_context(cadata=coordinator.authority_pem)
    if leaf is not None:
        leaf.save_pair(tmp_path / "client", "me")
        context.load_cert_chain(tmp_path / "client" / "me.pem", tmp_path / "client" / "me.key")
    return context


def test_over_tls_a_certificate_opens_it_and_another_cas_does_not(served, coordinator, tmp_path):
    probes = served(tls=True)
    away = {"Host": "coord.example.org:7445"}

    def code(leaf=None):
        return ask(probes, headers=away, context=client(tmp_path, coordinator, leaf))[0]

    assert code() == 403
    assert code(coordinator.authority.issue_admin("alex")) == 200
    assert code(coordinator.authority.issue_admin("pat", role="viewer")) == 200
    assert code(silo_leaf(coordinator.authority)) == 403
    other = CertificateAuthority.create("chorale").issue_admin("alex")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        code(other)
    foreign = trustme.CA().issue_cert("alex@example.org")
    context = client(tmp_path, coordinator)
    foreign.configure_cert(context)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(probes, headers=away, context=context)
