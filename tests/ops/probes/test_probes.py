"""The probe port answers, over HTTP and TLS, and no caller can hold it."""

import contextlib
import http.client
import socket
import ssl
import stat
import threading
from contextlib import closing
from http import HTTPStatus

import pytest
import trustme
from prometheus_client import CollectorRegistry, Gauge

import ops.probes.server as probes_module
from federation.errors import ProbeError
from ops.address import joined_address, split_address
from ops.probes.metrics import MetricsAccess
from ops.probes.server import ADDRESS_FILE, MAX_CONNECTIONS, PageAnswer, Probes, Spaced
from ops.probes.tls import ProbeTls
from tests.kit.waiting import until


def served(**options):
    probes = Probes(
        **{"listen": "127.0.0.1:0", "registry": CollectorRegistry(), "checks": {}} | options
    )
    probes.start()
    return probes


def ask(probes, path, *, method="GET", context=None, timeout=60):
    host, port = split_address(probes.address)
    connection = (
        http.client.HTTPConnection(host, port, timeout=timeout)
        if context is None
        else http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    )
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def opened():
    left = []

    def open_one(**options):
        left.append(served(**options))
        return left[-1]

    yield open_one
    for probes in left:
        probes.close()


def test_a_check_that_writes_is_made_once_however_many_ask(opened):
    now, made, broken = [0.0], [], []

    def check():
        made.append(now[0])
        if broken:
            raise OSError("disk full")

    probes = opened(checks={"disk": Spaced(check, clock=lambda: now[0])})
    askers = [threading.Thread(target=ask, args=(probes, "/readyz")) for _ in range(8)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    broken.append(1)
    assert ask(probes, "/readyz") == (200, "ready\n")
    for now[0] in (6.0, 9.0):
        assert ask(probes, "/readyz") == (503, "disk failed\n")
    broken.clear()
    now[0] = 12.0
    assert ask(probes, "/readyz") == (200, "ready\n")
    assert made == [0.0, 6.0, 12.0]


def test_the_paths(opened):
    broken, refreshed = [], []

    def check():
        if broken:
            raise OSError("disk full: a private detail")

    registry = CollectorRegistry()
    Gauge("chorale_sample", "A sample.", registry=registry).set(3)
    probes = opened(
        registry=registry, checks={"database": check}, refresh=lambda: refreshed.append(1)
    )
    assert ask(probes, "/livez") == (200, "alive\n")
    assert ask(probes, "/readyz?verbose") == (200, "ready\n")
    status, body = ask(probes, "/metrics")
    assert (status, refreshed) == (200, [1])
    assert "chorale_sample 3.0" in body
    broken.append(1)
    assert ask(probes, "/readyz") == (503, "database failed\n")
    assert ask(probes, "/livez", method="HEAD") == (200, "")
    assert ask(probes, "/secret")[0] == 404
    assert ask(probes, "/livez", method="POST")[0] == 501


def test_pages_are_asked_for_everything_else_and_told_who_asks(opened):
    asked = []

    def pages(request):
        asked.append(request)
        if request.path != "/page":
            return None
        return PageAnswer(
            status=HTTPStatus.OK, content_type="text/html", body=b"<p>", headers={"X-Own": "1"}
        )

    probes = opened(pages=pages)
    assert ask(probes, "/page") == (200, "<p>")
    assert ask(probes, "/other")[0] == 404
    assert ask(probes, "/livez")[0] == 200
    assert [request.path for request in asked] == ["/page", "/other"]
    assert asked[0].peer_address == "127.0.0.1"
    assert asked[0].host_header == probes.address
    assert (asked[0].scheme, asked[0].peer_certificate_der) == ("http", None)


def test_a_defect_in_a_page_is_a_500_and_the_port_goes_on(opened):
    def pages(_request):
        raise RuntimeError("a private detail")

    probes = opened(pages=pages)
    assert ask(probes, "/page") == (500, "internal error\n")
    assert ask(probes, "/livez")[0] == 200


def test_the_address_file_comes_and_goes(tmp_path, opened):
    probes = opened(address_file=tmp_path / ADDRESS_FILE)
    assert (tmp_path / ADDRESS_FILE).read_text() == f"{probes.address}\n"
    probes.close()
    probes.close()
    assert not (tmp_path / ADDRESS_FILE).exists()
    with pytest.raises(ConnectionRefusedError):
        ask(probes, "/livez")


def test_an_address_file_that_cannot_be_written_frees_the_port(tmp_path):
    probes = Probes(
        listen="127.0.0.1:0",
        registry=CollectorRegistry(),
        checks={},
        address_file=tmp_path / "absent" / ADDRESS_FILE,
    )
    with pytest.raises(ProbeError, match="cannot be written"):
        probes.start()
    with pytest.raises(ConnectionRefusedError):
        ask(probes, "/livez")


def test_a_port_in_use_is_a_typed_error(opened):
    probes = opened()
    with pytest.raises(ProbeError, match="cannot serve probes"):
        served(listen=probes.address)
    assert ask(probes, "/livez")[0] == 200


@pytest.mark.parametrize(
    "listen", ["", "9464", ":9464", "host:", "host:x", "host:70000", "h:-1", "::1:80"]
)
def test_an_address_that_is_none_is_refused(listen):
    with pytest.raises(ValueError, match=r"host:port|brackets"):
        split_address(listen)
    with pytest.raises(ProbeError):
        served(listen=listen)


def test_ipv6(opened):
    assert joined_address(*split_address("[::1]:80")) == "[::1]:80"
    try:
        probes = opened(listen="[::1]:0")
    except ProbeError:
        pytest.skip("this machine has no IPv6 loopback")
    assert ask(probes, "/livez")[0] == 200


def await_places(probes, left):
    """Wait until so many more callers are let in."""
    until(lambda: probes._server._places._value == left, f"{left} places are left", within_s=60)


def test_callers_that_say_nothing_are_few_and_do_not_stop_the_others(opened, monkeypatch):
    # On a busy machine the first would be given up before the last one comes.
    monkeypatch.setattr(probes_module._Handler, "timeout", 120)
    probes = opened()
    where = split_address(probes.address)
    silent = [socket.create_connection(where, timeout=60) for _ in range(MAX_CONNECTIONS - 1)]
    try:
        assert ask(probes, "/livez")[0] == 200
        # Until its thread has ended, the answered call keeps its place.
        await_places(probes, 1)
        silent.append(socket.create_connection(where, timeout=60))
        await_places(probes, 0)
        # Every place is taken: the next one is hung up on, and does not wait.
        with socket.create_connection(where, timeout=60) as beyond:
            assert beyond.recv(1) == b""
    finally:
        for connection in silent:
            connection.close()

    def status():
        with contextlib.suppress(OSError, http.client.HTTPException):
            return ask(probes, "/livez")[0]

    assert until(status, "it answers again", within_s=60) == 200


# TLS ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ca():
    return trustme.CA()


def write_pair(directory, leaf):
    (directory / "probes.pem").write_bytes(b"".join(part.bytes() for part in leaf.cert_chain_pems))
    (directory / "probes.key").write_bytes(leaf.private_key_pem.bytes())
    (directory / "probes.key").chmod(stat.S_IRUSR)
    return directory / "probes.pem", directory / "probes.key"


def trusting(ca):
    context = ssl.create_default_context()
    ca.configure_trust(context)
    return context


def test_tls_shows_the_certificate_that_the_files_hold_now(tmp_path, ca, opened):
    certificate, key = write_pair(tmp_path, ca.issue_cert("127.0.0.1"))
    probes = opened(tls=ProbeTls.of_files(certificate, key))
    assert ask(probes, "/livez", context=trusting(ca)) == (200, "alive\n")
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(probes, "/livez")
    other = trustme.CA()
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(probes, "/livez", context=trusting(other))
    key.unlink()
    write_pair(tmp_path, other.issue_cert("127.0.0.1"))
    assert ask(probes, "/livez", context=trusting(other)) == (200, "alive\n")


def test_a_client_certificate_is_verified_and_handed_on(tmp_path, ca, opened):
    certificate, key = write_pair(tmp_path, ca.issue_cert("127.0.0.1"))
    clients = trustme.CA()
    clients.cert_pem.write_to_path(tmp_path / "clients.pem")
    told = []

    def pages(request):
        told.append(request.peer_certificate_der)
        return PageAnswer(status=HTTPStatus.OK, content_type="text/plain", body=b"")

    probes = opened(
        tls=ProbeTls.of_files(certificate, key, client_ca=tmp_path / "clients.pem"), pages=pages
    )
    assert ask(probes, "/page", context=trusting(ca))[0] == 200
    with_one = trusting(ca)
    leaf = clients.issue_cert("admin.example.org")
    leaf.configure_cert(with_one)
    assert ask(probes, "/page", context=with_one)[0] == 200
    shown = ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode())
    assert told == [None, shown]
    with_another = trusting(ca)
    trustme.CA().issue_cert("admin.example.org").configure_cert(with_another)
    with pytest.raises((ssl.SSLError, http.client.HTTPException, OSError)):
        ask(probes, "/page", context=with_another)
    assert len(told) == 2


def test_a_handshake_that_never_ends_holds_nobody_else(tmp_path, ca, opened, monkeypatch):
    monkeypatch.setattr(probes_module, "REQUEST_TIMEOUT_S", 120)
    certificate, key = write_pair(tmp_path, ca.issue_cert("127.0.0.1"))
    probes = opened(tls=ProbeTls.of_files(certificate, key))
    with socket.create_connection(split_address(probes.address), timeout=5):
        answered = []
        threads = [
            threading.Thread(
                target=lambda: answered.append(ask(probes, "/livez", context=trusting(ca)))
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert answered == [(200, "alive\n")] * 3


def test_files_that_cannot_be_used_are_a_typed_error(tmp_path, ca):
    certificate, key = write_pair(tmp_path, ca.issue_cert("127.0.0.1"))
    assert ProbeTls.of_files(None, None) is None
    with pytest.raises(ProbeError, match="go together"):
        ProbeTls.of_files(certificate, None)
    with pytest.raises(ProbeError, match="cannot use"):
        ProbeTls.of_files(certificate, tmp_path / "absent.key")
    another = ca.issue_cert("127.0.0.1").private_key_pem.bytes()
    key.unlink()
    key.write_bytes(another)
    with pytest.raises(ProbeError, match="cannot use"):
        ProbeTls.of_files(certificate, key)


# Who is shown the metrics -------------------------------------------------------------------------

TOKEN = "0123456789abcdef0123"


def ask_with(probes, authorization, *, context=None):
    connection = (
        http.client.HTTPConnection("127.0.0.1", probes.port, timeout=10)
        if context is None
        else http.client.HTTPSConnection("127.0.0.1", probes.port, timeout=10, context=context)
    )
    with closing(connection):
        headers = {} if authorization is None else {"Authorization": authorization}
        connection.request("GET", "/metrics", headers=headers)
        return connection.getresponse().status


def test_beyond_loopback_the_figures_need_tls_and_the_token(tmp_path, ca, opened):
    certificate, key = write_pair(tmp_path, ca.issue_cert("127.0.0.1"))
    token_file = tmp_path / "token"
    token_file.write_text(f"{TOKEN}\n")
    right, tls = f"Bearer {TOKEN}", ProbeTls.of_files(certificate, key)
    for host, encrypted, token, given, status in (
        ("127.0.0.1", False, None, None, 200),
        ("127.0.0.1", False, token_file, None, 401),
        ("127.0.0.1", False, token_file, right, 200),
        ("0.0.0.0", False, None, None, 403),
        ("0.0.0.0", False, token_file, right, 403),
        ("0.0.0.0", True, None, None, 403),
        ("0.0.0.0", True, token_file, None, 401),
        ("0.0.0.0", True, token_file, "Bearer wrong", 401),
        ("0.0.0.0", True, token_file, TOKEN, 401),
        ("0.0.0.0", True, token_file, right, 200),
    ):
        access = MetricsAccess(host=host, encrypted=encrypted, token_file=token)
        probes = opened(listen=f"{host}:0", metrics=access, tls=tls if encrypted else None)
        context = trusting(ca) if encrypted else None
        assert ask_with(probes, given, context=context) == status, (host, encrypted, given)


@pytest.mark.parametrize("content", [None, b"", b"short", b"\xff" * 20])
def test_a_token_file_that_cannot_be_used_shows_the_figures_to_nobody(tmp_path, content):
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    access = MetricsAccess(host="127.0.0.1", encrypted=False, token_file=file)
    for given in ("", "Bearer ", "Bearer short"):
        status, _ = access.refusal(given)
        assert status == 401
