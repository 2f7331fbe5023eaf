"""Which failed calls are a refusal of the message, and which may pass."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import grpc
import pytest

from chorale.v1 import aggregation_pb2, round_pb2_grpc
from chorale.v1 import round_pb2 as pb
from chorale.v1 import secagg_pb2 as secagg_pb
from federation.version import this_version
from secagg.descriptor import AggregationId
from secagg.errors import MalformedMessageError
from secagg.messages import ConsistencySignature, KeyBundle, MaskedInputHeader
from secagg.wire import identity_to_proto, key_bundle_to_proto
from silo_agent.errors import TransportError
from silo_agent.line.transport import Coordinator

IDENTITY = AggregationId(run_id="run-1", round=4, step=0, part=0, attempt=1)
SIGNATURE = ConsistencySignature(silo_id="silo-000", signature=bytes(64))
HEADER = MaskedInputHeader(
    silo_id="silo-000", length_bytes=8, masked_sha256=bytes(32), signature=bytes(64)
)
CODE = grpc.StatusCode


class Failed(grpc.RpcError):
    """A call that ends with a code, and with the coordinator's reason if it gave one."""

    def __init__(self, code, reason):
        self._code, self._reason = code, reason

    def code(self):
        return self._code

    def details(self):
        return "detail"

    def trailing_metadata(self):
        return (("chorale-reason", self._reason),) if self._reason else ()


@pytest.mark.parametrize(
    ("code", "reason", "refused"),
    [
        (CODE.FAILED_PRECONDITION, "wrong_phase", True),
        (CODE.INVALID_ARGUMENT, "malformed_message", True),
        (CODE.PERMISSION_DENIED, "certificate_revoked", True),
        # Away, full or broken: the same message may be taken later.
        (CODE.UNAVAILABLE, "", False),
        (CODE.DEADLINE_EXCEEDED, "", False),
        (CODE.RESOURCE_EXHAUSTED, "storage_full", False),
        (CODE.INTERNAL, "internal", False),
        (CODE.DATA_LOSS, "audit_broken", False),
        # Something on the way said so, not the coordinator.
        (CODE.FAILED_PRECONDITION, "", False),
        (CODE.PERMISSION_DENIED, "", False),
    ],
)
def test_a_refusal_is_a_verdict_of_the_coordinator_on_the_message(
    monkeypatch, code, reason, refused
):
    clock = iter(range(0, 1000, 100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    made = Coordinator(
        address="localhost:1", credentials=grpc.ssl_channel_credentials(), patience_s=5.0
    )

    def fail(_request, timeout):
        assert timeout > 0
        raise Failed(code, reason)

    made._stub = SimpleNamespace(CheckConsistency=fail)
    with pytest.raises(TransportError, match=code.name) as error:
        made.check_consistency(IDENTITY, SIGNATURE)
    assert error.value.refused is refused
    assert error.value.reason == reason
    assert error.value.late is (code is CODE.DEADLINE_EXCEEDED)
    made.close()


@pytest.fixture
def silo():
    made = Coordinator(
        address="localhost:1", credentials=grpc.ssl_channel_credentials(), patience_s=0.0
    )
    yield made
    made.close()


def test_a_call_that_its_own_certificates_successor_overtook_is_made_again(silo):
    """It began over the old channel and arrived after the new certificate had been used."""
    calls = []

    def check(_request, timeout):
        calls.append(timeout)
        if len(calls) == 1:
            silo.use(grpc.ssl_channel_credentials())
            raise Failed(CODE.PERMISSION_DENIED, "certificate_revoked")
        return pb.CheckConsistencyResponse()

    silo._stub = SimpleNamespace(CheckConsistency=check)
    silo.check_consistency(IDENTITY, SIGNATURE)
    assert len(calls) == 2


def test_a_refused_certificate_without_a_successor_is_refused_at_once(silo):
    calls = []

    def check(_request, timeout):
        calls.append(timeout)
        raise Failed(CODE.PERMISSION_DENIED, "certificate_revoked")

    silo._stub = SimpleNamespace(CheckConsistency=check)
    with pytest.raises(TransportError):
        silo.check_consistency(IDENTITY, SIGNATURE)
    assert len(calls) == 1


# Steps and echoes --------------------------------------------------------------------------------


BUNDLE = KeyBundle(
    silo_id="silo-000", cipher_key=bytes(32), mask_key=bytes(32), ledger_seq=7,
    ledger_sha256=bytes([7]) * 32, families=("craft",), signature=bytes(64),
)  # fmt: skip


def echoing(**changes):
    fields = {
        "identity": identity_to_proto(IDENTITY),
        "bundle": key_bundle_to_proto(BUNDLE),
        "descriptor_sha256": bytes([9]) * 32,
        **changes,
    }
    return pb.PollResponse(instruction_id="i", idle=pb.Idle(), ledger_echo=pb.LedgerEcho(**fields))


def test_an_echo_comes_with_its_instruction(silo):
    silo._stub = SimpleNamespace(Poll=lambda _request, timeout: echoing())
    echo = silo.poll("", wait_s=0).ledger_echo
    assert (echo.identity, echo.bundle, echo.descriptor_sha256) == (
        IDENTITY,
        BUNDLE,
        bytes([9]) * 32,
    )
    silo._stub = SimpleNamespace(
        Poll=lambda _request, timeout: pb.PollResponse(instruction_id="i", idle=pb.Idle())
    )
    assert silo.poll("", wait_s=0).ledger_echo is None


@pytest.mark.parametrize(
    "changes",
    [
        {"descriptor_sha256": b""},
        {"descriptor_sha256": bytes(33)},
        {"identity": secagg_pb.AggregationId()},
        {"bundle": secagg_pb.KeyBundle()},
    ],
)
def test_a_malformed_echo_is_a_typed_error(silo, changes):
    silo._stub = SimpleNamespace(Poll=lambda _request, timeout: echoing(**changes))
    with pytest.raises(MalformedMessageError):
        silo.poll("", wait_s=0)


def test_which_runs_are_over_is_heard_also_where_nothing_else_is_new(silo):
    said, heard = ["run-1", "run-2"], []
    silo.watch_over_runs(heard.append)
    silo._stub = SimpleNamespace(
        Poll=lambda _request, timeout: pb.PollResponse(instruction_id="i", over_run_ids=said)
    )
    assert silo.poll("i", wait_s=0) is None
    silo.poll("", wait_s=0)
    assert heard == [{"run-1", "run-2"}] * 2
    # A coordinator of an earlier version says nothing of it, and then there is no news.
    said.clear()
    silo.poll("i", wait_s=0)
    assert len(heard) == 2


@pytest.mark.parametrize("said", [[""], ["x" * 257], ["run"] * 65])
def test_runs_that_are_none_are_a_typed_error(silo, said):
    silo._stub = SimpleNamespace(
        Poll=lambda _request, timeout: pb.PollResponse(instruction_id="i", over_run_ids=said)
    )
    with pytest.raises(MalformedMessageError):
        silo.poll("i", wait_s=0)


def test_ready_and_refusals_name_their_step_and_records_their_position(silo):
    sent = []

    def note(request, timeout):
        sent.append(request)
        return pb.ListRecordsResponse()

    silo._stub = SimpleNamespace(ReportReady=note, Refuse=note, ListRecords=note)
    silo.report_ready(
        run_id="r", round_number=3, step=2, adapter_sha256=bytes(32), families=("craft",)
    )
    silo.refuse(run_id="r", round_number=3, step=2, reason="ledger")
    assert silo.records("r", 11) == ()
    ready, refused, listed = sent
    assert (ready.round, ready.step) == (3, 2)
    assert (refused.round, refused.step, refused.reason) == (3, 2, "ledger")
    assert listed.from_position == 11


def test_a_page_of_the_chain_is_not_longer_than_a_page(silo):
    page = pb.ListRecordsResponse(records=[aggregation_pb2.AdapterRecord()] * 257)
    silo._stub = SimpleNamespace(ListRecords=lambda _request, timeout: page)
    with pytest.raises(TransportError, match="257 records"):
        silo.records("r", 0)


class Peers(round_pb2_grpc.RoundServiceServicer):
    """A coordinator that takes every upload and notes over which connection each call came."""

    def __init__(self):
        self.of = []

    def _note(self, context, call):
        self.of.append((call, context.peer()))
        context.set_trailing_metadata(this_version().words)

    def Poll(self, request, context):  # noqa: N802 - the RPC's name
        self._note(context, "poll")
        return pb.PollResponse(instruction_id=request.last_instruction_id)

    def GetUploadOffset(self, request, context):  # noqa: N802 - the RPC's name
        return pb.GetUploadOffsetResponse()

    def UploadMaskedInput(self, request_iterator, context):  # noqa: N802 - the RPC's name
        self._note(context, "upload")
        chunks = list(request_iterator)[1:]
        return pb.UploadMaskedInputResponse(
            received_bytes=sum(len(c.chunk.content) for c in chunks)
        )


@pytest.fixture
def peers():
    service, server = Peers(), grpc.server(ThreadPoolExecutor(2))
    round_pb2_grpc.add_RoundServiceServicer_to_server(service, server)
    port = server.add_secure_port("localhost:0", grpc.local_server_credentials())
    server.start()
    line = Coordinator(address=f"localhost:{port}", credentials=grpc.local_channel_credentials())
    yield service, line
    line.close()
    server.stop(None)


def test_what_follows_an_upload_goes_over_a_new_connection(peers):
    """The old one would keep room for another burst of the kind, at the coordinator."""
    service, line = peers
    spool = SimpleNamespace(leaves=b"", chunks=lambda _offset, _size: iter([bytes(8)]))
    line.poll("same", wait_s=0)
    line.upload(IDENTITY, HEADER, spool)
    line.poll("same", wait_s=0)
    line.poll("same", wait_s=0)
    (before, uploaded, after, later) = (peer for _, peer in service.of)
    assert [call for call, _ in service.of] == ["poll", "upload", "poll", "poll"]
    assert before == uploaded != after == later


def test_an_upload_that_is_cut_by_closing_the_line_opens_no_other(peers):
    _, line = peers

    def cut(_offset, _size):
        line.close()
        yield bytes(8)

    with pytest.raises(TransportError):
        line.upload(IDENTITY, HEADER, SimpleNamespace(leaves=b"", chunks=cut))
    with pytest.raises(TransportError, match="closed"):
        line.ping()
