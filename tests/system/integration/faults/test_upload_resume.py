"""An upload that is cut, by the network or by a kill, goes on at the coordinator's offset.

A real gRPC server on loopback takes what comes and cuts where a test says; the client half is the
real one. All legs together must be the spool, byte for byte, and no leg may begin anywhere else
than at what the server holds.
"""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures
from dataclasses import replace

import grpc
import numpy as np
import pytest

from chorale.v1 import round_pb2 as pb
from chorale.v1 import round_pb2_grpc
from dp.config import Mode
from dp.ledger.ledger import Ledger, LedgerEntry
from secagg import wire
from secagg.descriptor import AggregationId
from secagg.digest_tree import SHA256, TreeHasher
from secagg.messages import MaskedInputHeader
from silo_agent.attempt.spool import Spool
from silo_agent.attempt.unfinished import UnfinishedUploads
from silo_agent.books.ledger import ledger_identity
from silo_agent.errors import TransportError
from silo_agent.line.transport import Coordinator
from silo_agent.metrics import SiloMetrics
from tests.kit.paths import ROOT

MIB = 1 << 20
IDENTITY = AggregationId(run_id="run-1", round=2, step=0, part=0, attempt=1)
DESCRIPTOR = b"d" * 32
# Not a whole number of chunks.
VECTOR = (np.arange(5 * MIB // 4 + 1000, dtype=np.uint64) * 2_654_435_761 % 2**32).astype("<u4")
CONTENT = VECTOR.tobytes()
LOCAL = grpc.LocalConnectionType.LOCAL_TCP


class Rounds(round_pb2_grpc.RoundServiceServicer):
    """Keeps what arrives; cuts once after so many bytes."""

    def __init__(self):
        self.held = bytearray()
        self.legs = []
        self.headers = []
        self.leaves = []
        self.cut_after = None
        self.cut = lambda context: context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
        self.pause_s = 0.0
        self.arrived = threading.Event()
        self.answer = lambda offset_bytes: offset_bytes

    def GetUploadOffset(self, request, context):  # noqa: N802 - the RPC's name
        assert wire.identity_from_proto(request.identity) == IDENTITY
        return pb.GetUploadOffsetResponse(offset_bytes=self.answer(len(self.held)))

    def UploadMaskedInput(self, request_iterator, context):  # noqa: N802 - the RPC's name
        opening = next(request_iterator).opening
        assert wire.identity_from_proto(opening.identity) == IDENTITY
        self.headers.append(wire.masked_input_header_from_proto(opening.header))
        self.leaves.append(opening.leaves)
        self.legs.append([opening.offset_bytes, 0])
        leg = self.legs[-1]
        if opening.offset_bytes != len(self.held):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "a gap")
        for part in request_iterator:
            assert 0 < len(part.chunk.content) <= MIB
            self.held += part.chunk.content
            leg[1] += len(part.chunk.content)
            self.arrived.set()
            time.sleep(self.pause_s)
            if self.cut_after is not None and len(self.held) >= self.cut_after:
                self.cut_after = None
                self.cut(context)
        return pb.UploadMaskedInputResponse(received_bytes=len(self.held))


class Served:
    """A server that can go away and come back on its port."""

    def __init__(self, rounds):
        self.rounds = rounds
        self.port = 0
        self.start()

    def start(self):
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        round_pb2_grpc.add_RoundServiceServicer_to_server(self.rounds, self.server)
        self.port = self.server.add_secure_port(
            f"127.0.0.1:{self.port}", grpc.local_server_credentials(LOCAL)
        )
        self.server.start()

    def stop(self):
        self.server.stop(None).wait()


def header_of():
    return MaskedInputHeader(
        silo_id="silo-a",
        length_bytes=len(CONTENT),
        masked_sha256=hashlib.sha256(CONTENT).digest(),
        signature=bytes(range(64)),
    )


def tree_spool(directory):
    """A spool of suite v2."""
    with TreeHasher(len(CONTENT), SHA256) as tree:
        tree.update(CONTENT)
        leaves, root = tree.leaves(), tree.root()
    return Spool.write(
        directory,
        IDENTITY,
        VECTOR,
        header=replace(header_of(), masked_sha256=root),
        descriptor_sha256=DESCRIPTOR,
        digest_id=SHA256,
        leaves=leaves,
    )


@pytest.fixture
def served():
    running = Served(Rounds())
    yield running
    running.stop()


@pytest.fixture
def spool(tmp_path):
    return Spool.write(
        tmp_path / "spool", IDENTITY, VECTOR, header=header_of(), descriptor_sha256=DESCRIPTOR
    )


def coordinator_at(port, patience_s=20.0):
    return Coordinator(
        address=f"127.0.0.1:{port}",
        credentials=grpc.local_channel_credentials(LOCAL),
        patience_s=patience_s,
    )


@pytest.fixture
def coordinator(served):
    client = coordinator_at(served.port)
    yield client
    client.close()


def require_whole(rounds, legs):
    assert bytes(rounds.held) == CONTENT
    assert len(rounds.legs) == legs
    # Every leg begins where the ones before ended; the header is the very same.
    assert [leg[0] for leg in rounds.legs] == [
        sum(leg[1] for leg in rounds.legs[:number]) for number in range(legs)
    ]
    assert sum(leg[1] for leg in rounds.legs) == len(CONTENT)
    assert set(rounds.headers) == {header_of()}


def test_an_uncut_upload_is_one_leg(served, coordinator, spool):
    coordinator.upload(IDENTITY, spool.header, spool)
    require_whole(served.rounds, 1)
    # The same again sends no byte.
    coordinator.upload(IDENTITY, spool.header, spool)
    require_whole(served.rounds, 1)


@pytest.mark.parametrize("cut_after", [1, 2 * MIB, 2 * MIB + 1, len(CONTENT)])
def test_a_cut_stream_goes_on_at_the_servers_offset(served, coordinator, spool, cut_after):
    served.rounds.cut_after = cut_after
    coordinator.upload(IDENTITY, spool.header, spool)
    # A stream cut after its last byte has nothing left to send.
    require_whole(served.rounds, 1 if cut_after == len(CONTENT) else 2)
    if cut_after < len(CONTENT):
        assert served.rounds.legs[1][0] >= cut_after


def test_a_coordinator_that_restarts_in_the_middle_gets_the_rest(served, coordinator, spool):
    rounds = served.rounds

    def go_away(context):
        def restart():
            served.stop()
            time.sleep(0.5)
            served.start()

        threading.Thread(target=restart).start()
        # The stream hangs until the server drops the connection.
        time.sleep(0.3)
        context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    rounds.cut, rounds.cut_after = go_away, 3 * MIB
    coordinator.upload(IDENTITY, spool.header, spool)
    require_whole(rounds, 2)
    assert rounds.legs[1][0] == 3 * MIB


def test_a_leg_overtaken_by_an_older_one_is_no_refusal(served, coordinator, spool):
    """The older stream's last bytes arrive after the offset was asked for."""
    rounds = served.rounds
    rounds.cut_after = MIB
    asked = []

    def answer(offset_bytes):
        asked.append(offset_bytes)
        if len(asked) == 2:
            rounds.held += CONTENT[MIB : MIB + 777]
            rounds.legs[0][1] += 777
        return offset_bytes

    rounds.answer = answer
    coordinator.upload(IDENTITY, spool.header, spool)
    assert bytes(rounds.held) == CONTENT
    assert [leg[0] for leg in rounds.legs] == [0, MIB, MIB + 777]
    assert rounds.legs[1][1] == 0


def test_a_refusal_without_progress_ends_the_upload(served, coordinator, spool):
    rounds = served.rounds
    rounds.cut_after = MIB
    rounds.cut = lambda context: context.abort(grpc.StatusCode.FAILED_PRECONDITION, "over")
    rounds.answer = lambda _offset_bytes: 0
    with pytest.raises(TransportError, match="FAILED_PRECONDITION"):
        coordinator.upload(IDENTITY, spool.header, spool)
    assert len(rounds.legs) == 1


def test_every_opening_of_suite_v2_carries_the_leaf_list(served, coordinator, tmp_path):
    served.rounds.cut_after = 2 * MIB
    written = tree_spool(tmp_path / "spool")
    coordinator.upload(IDENTITY, written.header, Spool.open(written.path))
    assert bytes(served.rounds.held) == CONTENT
    assert [leg[0] for leg in served.rounds.legs] == [0, 2 * MIB]
    assert served.rounds.leaves == [written.leaves] * 2
    assert len(written.leaves) == 6 * 32


def test_a_coordinator_that_lost_what_it_had_gets_it_again(served, coordinator, spool):
    """Its spool was damaged by a power cut, which it finds at the end."""
    rounds = served.rounds
    rounds.cut_after = 2 * MIB

    def found_damaged(context):
        rounds.held.clear()
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the bytes are not those")

    def cut(context):
        rounds.cut, rounds.cut_after = found_damaged, len(CONTENT)
        context.abort(grpc.StatusCode.UNAVAILABLE, "cut")

    rounds.cut = cut
    coordinator.upload(IDENTITY, spool.header, spool)
    assert bytes(rounds.held) == CONTENT
    assert [leg[0] for leg in rounds.legs] == [0, 2 * MIB, 0]


def test_progress_renews_the_patience(served, spool):
    """Cuts for longer than the patience are survived as long as bytes arrive between them."""
    rounds, client = served.rounds, coordinator_at(served.port, patience_s=2.5)

    def cut_again(context):
        time.sleep(0.8)
        rounds.cut_after = len(rounds.held) + MIB
        context.abort(grpc.StatusCode.UNAVAILABLE, "cut")

    rounds.cut, rounds.cut_after = cut_again, MIB
    started = time.monotonic()
    client.upload(IDENTITY, spool.header, spool)
    client.close()
    assert time.monotonic() - started > 2.5
    require_whole(rounds, 6)


KILLED = """
import sys
import grpc
from pathlib import Path
from silo_agent.attempt.spool import Spool
from silo_agent.line.transport import Coordinator

coordinator = Coordinator(
    address=sys.argv[1],
    credentials=grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP),
)
(path,) = Path(sys.argv[2]).iterdir()
spool = Spool.open(path)
coordinator.upload(spool.identity, spool.header, spool)
"""


def test_a_silo_killed_in_mid_stream_finishes_from_its_spool(served, coordinator, spool, tmp_path):
    rounds = served.rounds
    rounds.pause_s = 0.2
    with Ledger.open(tmp_path / "ledger", delta=1e-5, caps={"silo": 1.0}) as ledger:
        ledger.mark_joined(ledger_identity(IDENTITY), DESCRIPTOR)
        ledger.reserve(
            LedgerEntry(
                run="run-1", round=2, step=0, part=0, attempt=1, mode=Mode.NONE, charges=(),
                dimension=VECTOR.size, descriptor_sha256=DESCRIPTOR,
            )
        )  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, f"127.0.0.1:{served.port}", str(spool.path.parent)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
    )
    assert rounds.arrived.wait(120)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    # What was under way still arrives.
    time.sleep(0.5)
    rounds.pause_s = 0.0
    arrived = len(rounds.held)
    assert 0 < arrived < len(CONTENT)

    metrics = SiloMetrics()
    with Ledger.open(tmp_path / "ledger", delta=1e-5, caps={"silo": 1.0}) as ledger:
        unfinished = UnfinishedUploads(
            tmp_path / "spool", silo_id="silo-a", ledger=ledger, metrics=metrics
        )
    assert unfinished.finish(IDENTITY, coordinator)
    require_whole(rounds, 2)
    assert rounds.legs[1][0] == arrived
    assert metrics.registry.get_sample_value("chorale_silo_resumed_uploads_total") == 1
    unfinished.keep_only(None)
    assert list((tmp_path / "spool").iterdir()) == []
