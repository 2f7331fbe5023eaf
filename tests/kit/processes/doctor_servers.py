"""Certificates and TLS servers of a doctor's tests: each wrong in one way."""

import datetime as dt
import ipaddress
import socket
import ssl
import threading
from contextlib import contextmanager

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = dt.timedelta(days=1)
SETTINGS_FRAME = bytes(3) + b"\x04" + bytes(5)


def issue(ca_dir, *, names, begins=-DAY, ends=DAY, server=False, key=None):
    """A leaf of the CA in a directory: (certificate PEM, key PEM)."""
    ca = x509.load_pem_x509_certificate((ca_dir / "ca.pem").read_bytes())
    ca_key = serialization.load_pem_private_key((ca_dir / "ca.key").read_bytes(), None)
    key = key or ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    usage = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return pem(certificate), key_pem(key)


def pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key):
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def loopback_name():
    return x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


def uri(text):
    return x509.UniformResourceIdentifier(text)


@contextmanager
def listening(context=None, *, says=SETTINGS_FRAME):
    """Accept connections, with TLS if there is a context; yields the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stopping = threading.Event()

        def serve():
            while not stopping.is_set():
                try:
                    raw, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(raw,), daemon=True).start()

        def answer(raw):
            with raw:
                raw.settimeout(5)
                try:
                    with context.wrap_socket(raw, server_side=True) if context else raw as line:
                        line.sendall(says)
                        line.recv(64)
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stopping.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def server_context(directory, certificate, key):
    (directory / "served.pem").write_bytes(certificate)
    (directory / "served.key").write_bytes(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "served.pem", directory / "served.key")
    context.set_alpn_protocols(["h2"])
    return context
