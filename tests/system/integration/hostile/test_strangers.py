"""What a stranger on the network can take of a real coordinator: places, memory, its log.

A failure: a silo that is kept out by callers without a certificate, a port that is open for nobody,
a line of the log for each call of a stranger.
"""

import contextlib
import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest

from chorale.v1 import enrolment_pb2, enrolment_pb2_grpc, round_pb2, round_pb2_grpc
from lab.loopback import LoopbackError, LoopbackFederation
from silo_agent.identity.join import join
from tests.kit.waiting import until

pytestmark = pytest.mark.xdist_group("strangers")
CROWD = 1200
USUAL_FILES = 1024
HANDSHAKE_S = 10


class Restricted(LoopbackFederation):
    """Daemons that start with the usual limits, under another group than root's."""

    def python(self, party):
        del party
        limited = ["prlimit", f"--nofile={USUAL_FILES}:20000", "--core=unlimited"]
        if os.getuid() == 0:
            # So that the kernel's owner of /proc/PID, which is root, is told from ours.
            limited += ["setpriv", "--regid=65534", "--clear-groups"]
        return (*limited, sys.executable)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Restricted(directory=tmp_path_factory.mktemp("strangers")) as running:
        running.found()
        running.start_coordinator()
        yield running
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def member(federation, tmp_path_factory):
    return join(invite(federation, "hospital-a"), tmp_path_factory.mktemp("joined") / "a")


def invite(federation, silo_id):
    command = ("invite", federation.federation, silo_id, "--data", str(federation.data_dir))
    return federation.chorale(*command)["invite"]


def poll_s(member, *, timeout_s=8):
    """How long a silo's first answer takes on a connection of its own."""
    alone = [("grpc.use_local_subchannel_pool", 1)]
    begun = time.monotonic()
    with grpc.secure_channel(
        member.coordinator_address, member.channel_credentials(), alone
    ) as channel:
        round_pb2_grpc.RoundServiceStub(channel).Poll(round_pb2.PollRequest(), timeout=timeout_s)
    return time.monotonic() - begun


@contextlib.contextmanager
def crowd(port, count=CROWD):
    """Connections that say nothing."""
    silent = []
    try:
        for number in range(count):
            one = socket.socket()
            one.setblocking(False)
            silent.append(one)
            with contextlib.suppress(BlockingIOError):
                one.connect(("127.0.0.1", port))
            if number % 50 == 0:
                time.sleep(0.01)
        time.sleep(0.5)
        yield silent
    finally:
        for one in silent:
            one.close()


def hung_up_on(one):
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def listens(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except ConnectionRefusedError:
        return False


@pytest.mark.parametrize("port", ["port", "enrol_port"])
def test_a_crowd_that_says_nothing_keeps_no_silo_out_and_is_hung_up_on(federation, member, port):
    invite(federation, "hospital-z")
    with crowd(getattr(federation, port)) as silent:
        assert poll_s(member) < 5
        until(lambda: all(map(hung_up_on, silent)), "all are hung up on", within_s=HANDSHAKE_S + 10)
        assert poll_s(member) < 5


def test_the_enrolment_port_is_open_while_an_invite_is(tmp_path):
    with LoopbackFederation(directory=tmp_path) as federation:
        federation.found()
        federation.start_coordinator()
        assert not listens(federation.enrol_port)
        first, second = invite(federation, "hospital-a"), invite(federation, "hospital-b")
        assert listens(federation.enrol_port)
        member = join(first, tmp_path / "a")
        federation.kill("coordinator")
        federation.start_coordinator()
        assert listens(federation.enrol_port)
        join(second, tmp_path / "b")
        until(lambda: not listens(federation.enrol_port), "the port is closed")
        with pytest.raises(Exception, match=r"chorale invite \.\.\. hospital-b"):
            join(second, tmp_path / "c")
        assert poll_s(member) < 5
        # A port that another program took meanwhile is told to whoever invites.
        taken = socket.create_server(("127.0.0.1", federation.enrol_port))
        with taken, pytest.raises(LoopbackError, match="cannot listen on"):
            invite(federation, "hospital-c")
        # Nobody holds that invite, so it opens nothing; the next one does.
        time.sleep(6)
        assert not listens(federation.enrol_port)
        invite(federation, "hospital-c")
        assert listens(federation.enrol_port)


def lines(federation, event):
    found = [line for line in federation.log("coordinator").splitlines() if f'"{event}"' in line]
    return [json.loads(line) for line in found]


def test_refusals_are_summed_and_failed_handshakes_write_nothing(tmp_path):
    with LoopbackFederation(directory=tmp_path) as federation:
        federation.found()
        federation.start_coordinator()
        invite(federation, "hospital-a")
        written = len(federation.log("coordinator").splitlines())
        for port in (federation.port, federation.enrol_port):
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", port)) as one:
                    one.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(64))
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                context.set_alpn_protocols(["h2"])
                raw = socket.create_connection(("127.0.0.1", port))
                with raw, contextlib.suppress(OSError), context.wrap_socket(raw) as one:
                    one.sendall(b"not HTTP/2, " * 8)
        with enrolment(federation) as stub:
            for _ in range(50):
                with pytest.raises(grpc.RpcError):
                    stub.Join(enrolment_pb2.JoinRequest(silo_id="hospital-a"), timeout=5)
        assert len(federation.log("coordinator").splitlines()) == written + 1
        (told,) = lines(federation, "join_refused")
        assert (told["silo"], told["outcome"]) == ("hospital-a", "invite_unknown")
        federation.stop()
        (summed,) = lines(federation, "strangers")
        assert summed["joins_refused"] == 50
        assert summed["connections"] >= 80


@contextlib.contextmanager
def enrolment(federation):
    ca = (federation.data_dir / "pki" / "ca.pem").read_bytes()
    with grpc.secure_channel(
        f"127.0.0.1:{federation.enrol_port}",
        grpc.ssl_channel_credentials(ca),
        [("grpc.max_send_message_length", -1)],
    ) as channel:
        yield enrolment_pb2_grpc.EnrolmentServiceStub(channel)


def test_a_strangers_message_is_short(federation):
    invite(federation, "hospital-z")
    with enrolment(federation) as stub, pytest.raises(grpc.RpcError) as caught:
        stub.Join(enrolment_pb2.JoinRequest(csr=bytes(70_000)), timeout=60)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_daemon_dumps_no_core_shows_no_memory_and_may_open_enough(federation):
    federation.enrol("hospital-d")
    federation.start_silo("hospital-d")
    address = federation.silo_dir("hospital-d") / "probes.address"
    until(address.exists, "the silo has an address", within_s=60)
    for name in ("coordinator", "hospital-d"):
        process = Path(f"/proc/{federation.pid(name)}")
        limits = {
            line[:25].strip(): line[25:].split()[:2]
            for line in (process / "limits").read_text().splitlines()
        }
        assert limits["Max core file size"] == ["0", "0"]
        assert limits["Max open files"] == ["20000", "20000"]
        # The kernel gives what may not be dumped to root; so nobody of this account looks into it.
        assert owner(process) == (0, 0)
    command = [*federation.python("plain"), "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as plain:
        plain.stdout.readline()
        assert owner(Path(f"/proc/{plain.pid}")) != (0, 0)


def owner(process):
    status = (process / "environ").stat()
    return status.st_uid, status.st_gid
