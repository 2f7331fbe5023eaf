"""What a server presents, read without trusting it: silent, foreign and hostile servers."""

import base64
import socket
import ssl
import threading
import time

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ops.doctor.reach import ReachError, presented_chain
from server.pki.authority import CertificateAuthority
from silo_agent.identity.leaf import certificate_request

PEM, DER = serialization.Encoding.PEM, serialization.Encoding.DER
VERSION_3, VERSION_6 = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05"


@pytest.fixture(scope="module")
def authority():
    return CertificateAuthority.create("demo")


@pytest.fixture
def serving(authority, tmp_path):
    """Starts a TLS server that presents a leaf and, after it, any bytes."""
    listening = []

    def start(second_der):
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = authority.issue_silo(certificate_request("a", key), "a", federation="demo")
        lines = base64.encodebytes(second_der)
        second = b"-----BEGIN CERTIFICATE-----\n" + lines + b"-----END CERTIFICATE-----\n"
        (tmp_path / "chain.pem").write_bytes(leaf.public_bytes(PEM) + second)
        (tmp_path / "key.pem").write_bytes(
            key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "chain.pem", tmp_path / "key.pem")
        server = socket.create_server(("127.0.0.1", 0))

        def answer():
            try:
                raw, _ = server.accept()
                with context.wrap_socket(raw, server_side=True) as wrapped:
                    wrapped.recv(1)
            except OSError:
                return

        thread = threading.Thread(target=answer)
        thread.start()
        listening.append((server, thread))
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield start
    for server, thread in listening:
        server.close()
        thread.join(timeout=60)


def test_the_whole_chain_is_read_leaf_first(serving, authority):
    chain = presented_chain(serving(authority.certificate.public_bytes(DER)), timeout_s=5)
    assert len(chain) == 2
    assert chain[1] == authority.certificate


def test_a_certificate_that_cannot_be_read_is_an_error_of_its_kind(serving, authority):
    """Anybody on the way can present one; some of what reading it raises is no ValueError."""
    good = authority.certificate.public_bytes(DER)
    assert good.count(VERSION_3) == 1
    with pytest.raises(ReachError, match="X509 version"):
        presented_chain(serving(good.replace(VERSION_3, VERSION_6)), timeout_s=5)


def test_a_server_that_never_answers_is_left_in_time():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        started = time.monotonic()
        with pytest.raises(ReachError, match="in time"):
            presented_chain(f"127.0.0.1:{port}", timeout_s=0.3)
        assert time.monotonic() - started < 60


def test_a_server_that_does_not_speak_tls_cannot_be_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ReachError):
            presented_chain(f"127.0.0.1:{server.getsockname()[1]}", timeout_s=5)
        thread.join()
