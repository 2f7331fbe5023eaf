"""What both daemons agree on in TLS, and what a message may cost before anybody looks at it.

Real daemons; what they say to each other in the clear of a handshake is read on the way.
"""

import contextlib
import gzip
import json
import socket
import threading
from functools import partial
from pathlib import Path

import grpc
import pytest

from chorale.v1 import enrolment_pb2, enrolment_pb2_grpc
from server.rpc.ports import MAX_JOIN_BYTES, MAX_MESSAGE_BYTES
from silo_agent.identity.identity import Identity
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until
from tests.system.integration.hostile.inflating_coordinator import INFLATED_BYTES

pytestmark = pytest.mark.xdist_group("transport_limits")

SILO, MEMBER = cf.SILOS[:2]
X25519MLKEM768 = 0x11EC
"""ECDH over X25519 and ML-KEM-768 in one group (draft-ietf-tls-ecdhe-mlkem, §8)."""
HANDSHAKE, CLIENT_HELLO, SERVER_HELLO, KEY_SHARE = 22, 1, 2, 51
FAILURES = 'chorale_silo_errors_total{kind="TransportError"}'
STRANGE_BYTES = 60 << 20
"""Their gzip is just within what a stranger may send, so it is not its own length that refuses."""
GROWTH_BYTES = 48 << 20
"""Several messages of the largest size that is allowed, and what a daemon needs besides."""


class Tap:
    """Passes on every connection to a port, and keeps the first bytes of either direction."""

    def __init__(self, port):
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.said = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listening.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listening.accept()
                called = socket.create_connection(("127.0.0.1", self._target))
                there, back = bytearray(), bytearray()
                self.said.append((there, back))
                for source, sink, kept in ((caller, called, there), (called, caller, back)):
                    threading.Thread(
                        target=self._pass_on, args=(source, sink, kept), daemon=True
                    ).start()

    @staticmethod
    def _pass_on(source, sink, kept):
        with contextlib.suppress(OSError), source, sink:
            while content := source.recv(1 << 16):
                kept += content[: (1 << 14) - len(kept)]
                sink.sendall(content)

    def server_hello(self):
        """The first one that a server said in answer to a client."""

        def hello():
            hellos = (hello_in(bytes(back), SERVER_HELLO) for _, back in self.said)
            return next((found for found in hellos if found is not None), None)

        return until(hello, "a server says hello")


def hello_in(said, kind):
    """The hello that begins a TLS stream (RFC 8446 §4.1, §5.1); None before it is whole."""
    if len(said) < 9 or said[0] != HANDSHAKE or said[5] != kind:
        return None
    length = int.from_bytes(said[6:9], "big")
    body, at = b"", 0
    while len(body) < length + 4:
        size = int.from_bytes(said[at + 3 : at + 5], "big")
        if len(said) < at + 5 + size or said[at] != HANDSHAKE:
            return None
        body += said[at + 5 : at + 5 + size]
        at += 5 + size
    return body[4 : 4 + length]


def chosen_group(server_hello):
    """The group of the key share in a ServerHello (RFC 8446 §4.1.3, §4.2.8)."""
    at = 2 + 32
    at += 1 + server_hello[at]  # the session id
    at += 2 + 1  # cipher suite, compression
    at += 2  # the length of the extensions
    while at < len(server_hello):
        kind, size = (int.from_bytes(server_hello[at + i : at + i + 2], "big") for i in (0, 2))
        if kind == KEY_SHARE:
            return int.from_bytes(server_hello[at + 4 : at + 6], "big")
        at += 4 + size
    return None


def peak_bytes(pid):
    """The most memory that a process ever had, in RAM."""
    (line,) = [
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    ]
    return int(line.split()[1]) * 1024


@pytest.fixture(scope="module")
def loopback(tmp_path_factory):
    with cf.federation(tmp_path_factory.mktemp("transport")) as running:
        # The enrolment port is open while somebody is invited.
        running.chorale("invite", running.federation, "silo-z", "--data", str(running.data_dir))
        yield running


def test_both_daemons_agree_on_the_hybrid_key_exchange(loopback):
    """Who records today what is sent cannot read it with a quantum computer later."""
    tap = Tap(loopback.port)
    facts = loopback.silo_dir(SILO) / "identity" / "identity.json"
    before = facts.read_text()
    address = f"127.0.0.1:{tap.port}"
    facts.write_text(json.dumps({**json.loads(before), "coordinator_address": address}))
    try:
        loopback.start_silo(SILO)
        assert chosen_group(tap.server_hello()) == X25519MLKEM768
    finally:
        loopback.kill(SILO)
        facts.write_text(before)
        tap.close()


def test_so_does_the_enrolment_port(loopback):
    tap = Tap(loopback.enrol_port)
    with (
        contextlib.closing(tap),
        anyone(loopback, tap.port) as channel,
        pytest.raises(grpc.RpcError, match="invite"),
    ):
        enrolment_pb2_grpc.EnrolmentServiceStub(channel).Join(
            enrolment_pb2.JoinRequest(), timeout=60
        )
    assert chosen_group(tap.server_hello()) == X25519MLKEM768


def anyone(loopback, port):
    ca = (loopback.data_dir / "admin" / "ca.pem").read_bytes()
    options = [("grpc.max_send_message_length", -1)]
    return grpc.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(ca), options)


def member(loopback, port):
    credentials = Identity.load(loopback.silo_dir(MEMBER)).channel_credentials()
    options = [("grpc.max_send_message_length", -1)]
    return grpc.secure_channel(f"127.0.0.1:{port}", credentials, options)


@pytest.mark.parametrize("who", ["a stranger at the enrolment port", "a member"])
def test_a_message_that_inflates_costs_the_coordinator_no_memory(loopback, who):
    """60 or 130 KB of gzip: refused when they have inflated to the limit, not afterwards."""
    strange = who.startswith("a stranger")
    inflated, limit_bytes = (
        (STRANGE_BYTES, MAX_JOIN_BYTES) if strange else (INFLATED_BYTES, MAX_MESSAGE_BYTES)
    )
    assert len(gzip.compress(bytes(inflated), 6)) < limit_bytes
    method = "/chorale.v1." + ("EnrolmentService/Join" if strange else "RoundService/Refuse")
    open_channel = anyone if strange else member
    # A process of its own: the peak of an earlier message would hide this one's.
    loopback.kill("coordinator")
    loopback.start_coordinator()
    pid = loopback.pid("coordinator")
    before = peak_bytes(pid)
    with open_channel(loopback, loopback.enrol_port if strange else loopback.port) as channel:
        call = channel.unary_unary(method)
        with pytest.raises(grpc.RpcError) as caught:
            call(bytes(inflated), timeout=60, compression=grpc.Compression.Gzip)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, caught.value.details()
        with pytest.raises(grpc.RpcError) as caught:
            call(bytes(2 * MAX_MESSAGE_BYTES), timeout=60)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, caught.value.details()
    assert peak_bytes(pid) - before < GROWTH_BYTES
    assert loopback.alive("coordinator")


def test_an_answer_that_inflates_costs_a_silo_no_memory(loopback):
    loopback.kill("coordinator")
    try:
        loopback.start_silo(SILO)
        # It is up, and has not been answered yet.
        await_failures(loopback, lambda count: count == 0)
        before = peak_bytes(loopback.pid(SILO))
        loopback.start_coordinator(module="tests.system.integration.hostile.inflating_coordinator")
        await_failures(loopback, lambda count: count >= 2)
        # The silo's own transport refuses it, so it is this that was measured.
        assert "Decompressed message larger than max" in loopback.log(SILO)
        assert peak_bytes(loopback.pid(SILO)) - before < GROWTH_BYTES
    finally:
        loopback.stop()
        loopback.start_coordinator()


def await_failures(loopback, true):
    """Until the number of failed calls that the silo shows is as it should be."""
    log = partial(loopback.log, SILO)

    def shown():
        with contextlib.suppress(OSError):
            if true(loopback.metrics(SILO)[FAILURES]):
                return True
        assert loopback.alive(SILO), log()[-3000:]
        return False

    until(shown, "the failures that it shows", told=log)
