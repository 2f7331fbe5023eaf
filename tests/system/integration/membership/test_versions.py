"""What each side says of its version, over mutual TLS, between the real transport and services."""

from types import SimpleNamespace

import grpc
import pytest
from structlog.testing import capture_logs

import server.rpc.access
import server.rpc.answers
import server.rpc.versions
import silo_agent.line.channel
from chorale.v1 import round_pb2, round_pb2_grpc
from federation.version import UNANNOUNCED, Version, this_version
from server.cli.doctor import call_once
from silo_agent.doctor.network import call_roster, judge_versions
from silo_agent.errors import CoordinatorVersionError, NotServedError, TransportError
from silo_agent.identity.join import InviteRefusedError, join
from silo_agent.line.transport import Coordinator as Line
from tests.kit.processes.server_harness import Coordinator

pytestmark = pytest.mark.xdist_group("versions")
LATER = Version(name="9.0.0", oldest=9, newest=9)
SILO = "hospital-a"


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    running = Coordinator(tmp_path_factory.mktemp("versions"))
    yield running
    running.close()


@pytest.fixture(autouse=True)
def lines_at_once(monkeypatch):
    """Tests need not be a minute apart to be spoken of."""
    monkeypatch.setattr(server.rpc.versions, "LEAST_APART_S", 0.0)


@pytest.fixture(scope="module")
def identity(coordinator, tmp_path_factory):
    return join(coordinator.invite(SILO), tmp_path_factory.mktemp("silo"))


@pytest.fixture
def line(coordinator, identity):
    made = Line(
        address=coordinator.config.dial_coordinator,
        credentials=identity.channel_credentials(),
        patience_s=5.0,
    )
    yield made
    made.close()


def silo_says(monkeypatch, version):
    monkeypatch.setattr(silo_agent.line.channel, "this_version", lambda: version)


def coordinator_says(monkeypatch, version):
    for module in (server.rpc.access, server.rpc.answers, server.rpc.versions):
        monkeypatch.setattr(module, "this_version", lambda: version)


def refused(coordinator, reason):
    return coordinator.counted("chorale_rejected_messages_total", reason=reason)


def poll(coordinator, identity, metadata):
    """A call with just this metadata, as a hostile or an older silo makes it."""
    address = coordinator.config.dial_coordinator
    with grpc.secure_channel(address, identity.channel_credentials()) as channel:
        stub = round_pb2_grpc.RoundServiceStub(channel)
        return stub.Poll.with_call(round_pb2.PollRequest(), timeout=60, metadata=metadata)


def test_each_side_hears_the_other_and_says_so_once(line):
    heard = []
    line.watch_version(heard.append)
    assert line.version is None
    with capture_logs() as logs:
        for _ in range(3):
            line.ping()
    assert heard == [this_version()] == [line.version]
    assert [log["silo"] for log in logs if log["event"] == "silo_version"] in ([SILO], [])
    assert not [log for log in logs if log["event"] == "silo_is_older"]


def test_a_silent_silo_is_the_previous_release_and_is_served(coordinator, identity):
    with capture_logs() as logs:
        for _ in range(3):
            _, call = poll(coordinator, identity, ())
    assert dict(this_version().words).items() <= dict(call.trailing_metadata()).items()
    (told,) = [log for log in logs if log["event"] == "silo_is_older"]
    assert (told["silo"], told["version"]) == (SILO, str(UNANNOUNCED))
    assert told["advice"] == f"upgrade {SILO}"


@pytest.mark.parametrize(
    "metadata",
    [
        (("chorale-version", "0.2.0"),),
        (("chorale-version", "0.2.0"), ("chorale-protocol", "2-1")),
        (*this_version().words, ("chorale-protocol", "1-2")),
        (("chorale-version", "9" * 4000), ("chorale-protocol", "1-2")),
    ],
)
def test_malformed_words_are_refused_and_counted(coordinator, identity, metadata):
    before = refused(coordinator, "version_malformed")
    with pytest.raises(grpc.RpcError) as caught:
        poll(coordinator, identity, metadata)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    trailers = dict(caught.value.trailing_metadata())
    assert trailers["chorale-reason"] == "version_malformed"
    assert dict(this_version().words).items() <= trailers.items()
    assert refused(coordinator, "version_malformed") == before + 1


def test_a_silo_of_another_protocol_is_told_by_the_coordinator(coordinator, line, monkeypatch):
    silo_says(monkeypatch, LATER)
    before = refused(coordinator, "version_mismatch")
    with capture_logs() as logs:
        for _ in range(3):
            # It is refused there, before its own check could see the answer.
            with pytest.raises(CoordinatorVersionError) as caught:
                line.ping()
    assert caught.value.reason == "version_mismatch"
    assert str(this_version()) in str(caught.value)
    assert str(LATER) in str(caught.value)
    assert refused(coordinator, "version_mismatch") == before + 3
    (told,) = [log for log in logs if log["event"] == "silo_version_refused"]
    assert str(told["detail"]).startswith("upgrade the coordinator: ")
    assert str(told["detail"]).endswith(f"{SILO} runs {LATER}")


def test_a_silo_finds_out_by_itself_where_the_coordinator_does_not(line, monkeypatch):
    # A coordinator of a later version that does not judge.
    coordinator_says(monkeypatch, LATER)
    monkeypatch.setattr(server.rpc.versions, "require_compatible", lambda *_a, **_k: None)
    with pytest.raises(CoordinatorVersionError, match="upgrade this silo") as caught:
        line.ping()
    assert caught.value.reason == "version_mismatch"
    # Away is not of another version: it may be taken later.
    assert not caught.value.refused
    with pytest.raises(CoordinatorVersionError):
        line.roster()
    coordinator_says(monkeypatch, this_version())
    line.ping()
    assert line.version == this_version()


def test_a_coordinator_that_says_another_version_with_each_answer_is_heard_once(line, monkeypatch):
    heard = []
    line.watch_version(heard.append)
    for number in range(6):
        said = Version(name=f"0.2.{number}", oldest=1, newest=2)
        monkeypatch.setattr(server.rpc.access, "this_version", lambda said=said: said)
        line.ping()
    assert [one.name for one in heard] == ["0.2.0"]
    assert line.version.name == "0.2.5"


def test_malformed_words_of_the_coordinator_are_a_typed_error(line, monkeypatch):
    monkeypatch.setattr(
        server.rpc.access, "this_version", lambda: Version(name="?", oldest=1, newest=2)
    )
    with pytest.raises(CoordinatorVersionError, match="no version") as caught:
        line.ping()
    assert caught.value.reason == "version_malformed"


def test_joining_says_it_too(coordinator, tmp_path, monkeypatch):
    monkeypatch.setattr("silo_agent.identity.join.this_version", lambda: LATER)
    invite = coordinator.invite("hospital-b")
    with pytest.raises(InviteRefusedError) as caught:
        join(invite, tmp_path / "silo")
    assert caught.value.reason == "version_mismatch"
    assert "upgrade the coordinator" in str(caught.value)
    monkeypatch.undo()
    # The invite is not spent.
    assert join(invite, tmp_path / "silo").silo_id == "hospital-b"


def test_a_call_that_the_coordinator_does_not_know(line):
    def later_stub(channel):
        call = channel.unary_unary(
            "/chorale.v1.RoundService/OfALaterVersion",
            request_serializer=round_pb2.PollRequest.SerializeToString,
            response_deserializer=round_pb2.PollResponse.FromString,
        )
        return SimpleNamespace(OfALaterVersion=call)

    stub = line._line.stub(later_stub)
    with pytest.raises(NotServedError, match="ask the admin to upgrade") as caught:
        line._once(stub.OfALaterVersion, round_pb2.PollRequest())
    assert isinstance(caught.value, TransportError)
    assert not caught.value.refused


def test_the_doctors_show_both(coordinator, identity, monkeypatch):
    assert call_once(coordinator.data_dir).version == this_version()
    # The harness has no rosters: the refusal, too, says which version it is.
    assert call_roster(identity).version in {this_version(), None}
    verdict = judge_versions(identity, this_version())
    assert (verdict.outcome.value, str(this_version()) in verdict.found) == ("ok", True)
    older = judge_versions(identity, UNANNOUNCED)
    assert older.outcome.value == "warning"
    assert "certificate is not renewed and ends on" in older.found
    later = judge_versions(identity, LATER)
    assert (later.outcome.value, later.fix) == ("failed", "upgrade this silo")
    silo_says(monkeypatch, LATER)
    called = call_roster(identity)
    assert called.verdict.outcome.value == "failed"
    assert "version_mismatch" in called.verdict.found
    assert called.version == this_version()
