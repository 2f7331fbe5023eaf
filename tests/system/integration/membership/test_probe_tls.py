"""TLS on the probe ports of real daemons, with the coordinator's own certificate and a site's."""

import contextlib
import http.client
import ssl
import subprocess
import sys

import pytest
import trustme

from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

SILOS = cf.SILOS[:3]


def ask(address, path, context):
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPSConnection(host, int(port), timeout=60, context=context)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def until_answered(address, context):
    def answer():
        with contextlib.suppress(OSError, http.client.HTTPException):
            return ask(address(), "/readyz", context)

    return until(answer, "the probe answers")


def append(path, text):
    path.write_text(f"{text}\n{path.read_text()}")


@pytest.fixture
def loopback(tmp_path):
    with cf.federation(tmp_path, silos=SILOS) as made:
        made.stop()
        yield made


def test_probes_over_tls(loopback):
    config = loopback.data_dir / "coordinator.toml"
    append(config, 'probes_certificate = "pki/server.pem"\nprobes_key = "pki/server.key"')
    loopback._start(
        "coordinator", "server.cli.coordinator", "serve", "--data", str(loopback.data_dir)
    )
    trusted = ssl.create_default_context(cafile=str(loopback.data_dir / "pki" / "ca.pem"))
    address = f"127.0.0.1:{loopback.probes_port}"
    assert until_answered(lambda: address, trusted) == (200, "ready\n")
    assert "chorale_build_info" in ask(address, "/metrics", trusted)[1]

    directory = loopback.silo_dir(SILOS[0])
    leaf = trustme.CA().issue_cert("silo.example.org")
    for name, parts in (("pem", leaf.cert_chain_pems), ("key", [leaf.private_key_pem])):
        (directory / f"probes.{name}").write_bytes(b"".join(part.bytes() for part in parts))
    append(directory / "silo.toml", 'probes_certificate = "probes.pem"\nprobes_key = "probes.key"')
    loopback.start_silo(SILOS[0])
    pinned = ssl.create_default_context(cafile=str(directory / "probes.pem"))
    pinned.check_hostname, pinned.verify_flags = False, ssl.VERIFY_X509_PARTIAL_CHAIN
    status = until_answered(lambda: (directory / "probes.address").read_text().strip(), pinned)
    assert status == (200, "ready\n")
    # The operator's own command trusts the very certificate that silo.toml names.
    assert loopback.silo("status", "--data", str(directory))["daemon"] == "ready"


def test_half_a_pair_is_refused_with_what_to_do(loopback):
    append(loopback.data_dir / "coordinator.toml", 'probes_certificate = "pki/server.pem"')
    done = subprocess.run(
        [sys.executable, "-m", "server.cli.coordinator", "serve", "--data", loopback.data_dir],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 4
    assert "probes_certificate and probes_key go together" in done.stderr
    assert "Traceback" not in done.stderr
