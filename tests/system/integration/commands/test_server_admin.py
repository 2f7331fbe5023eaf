"""The admin's RPCs over mutual TLS: rosters that only the root can make, runs, adapters, audit."""

from __future__ import annotations

import hashlib
import json

import grpc
import pytest

from chorale.v1 import admin_pb2 as pb
from chorale.v1 import admin_pb2_grpc
from ops.audit_log import verify_log
from secagg.wire import roster_from_proto
from server.cli.client import start_parts
from server.errors import RootKeyError
from server.members.root import create_root
from server.members.root import sign as sign_roster
from server.members.roster_file import read_roster, roster_message, write_roster
from server.states import RunState
from server.store.blobs.directory import BlobStore
from silo_agent.identity.join import join
from tests.kit.paths import ROOT
from tests.kit.processes.server_harness import Coordinator
from tests.kit.server.store_samples import record

PLAN = ROOT / "deploy" / "examples" / "plan-constant.toml"
pytestmark = pytest.mark.xdist_group("server_admin")


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    directory = tmp_path_factory.mktemp("coordinator")
    running = Coordinator(directory)
    for silo_id in ("hospital-a", "hospital-b", "hospital-c"):
        join(running.invite(silo_id), directory / silo_id)
    yield running
    running.close()


@pytest.fixture
def admin(coordinator):
    with coordinator.admin_channel() as channel:
        yield admin_pb2_grpc.AdminServiceStub(channel)


def propose(admin, colluding=1):
    return admin.ProposeRoster(pb.ProposeRosterRequest(colluding=colluding), timeout=60).roster


def signed(coordinator, message, directory=None):
    message.signature = message.signature or bytes(64)
    roster = roster_from_proto(message).roster
    directory = directory or coordinator.root_dir
    return roster_message(sign_roster(roster, directory, show=str, confirm=lambda: True))


def refused(coordinator, call, reason):
    before = coordinator.counted("chorale_rejected_messages_total", reason=reason)
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert dict(caught.value.trailing_metadata())["chorale-reason"] == reason
    after = coordinator.counted("chorale_rejected_messages_total", reason=reason)
    assert after == before + 1
    return caught.value


def publish(admin, message):
    admin.PublishRoster(pb.PublishRosterRequest(roster=message), timeout=60)


def test_a_roster_goes_out_to_the_root_and_comes_back(coordinator, admin, tmp_path):
    proposal = propose(admin)
    assert not proposal.signature
    assert [entry.silo_id for entry in proposal.entries] == [
        "hospital-a",
        "hospital-b",
        "hospital-c",
    ]
    write_roster(tmp_path / "roster.json", proposal)
    shown = []
    roster = read_roster(tmp_path / "roster.json").roster
    with pytest.raises(RootKeyError, match="not confirmed"):
        sign_roster(roster, coordinator.root_dir, show=shown.append, confirm=lambda: False)
    assert "hospital-b" in shown[0]
    assert f"epoch {proposal.epoch}" in shown[0]
    result = sign_roster(roster, coordinator.root_dir, show=str, confirm=lambda: True)
    publish(admin, roster_message(result))
    assert coordinator.store.rosters.current() == result
    states = {
        silo.silo_id: silo.state
        for silo in admin.ListSilos(pb.ListSilosRequest(), timeout=60).silos
    }
    assert states["hospital-a"] == "rostered"
    assert propose(admin).epoch == proposal.epoch + 1


def test_only_the_root_makes_a_roster(coordinator, admin, tmp_path):
    current = coordinator.store.rosters.current()
    create_root(tmp_path / "other-root")
    unsigned = propose(admin)
    unsigned.signature = bytes(64)
    refused(coordinator, lambda: publish(admin, unsigned), "roster_refused")
    other = signed(coordinator, propose(admin), tmp_path / "other-root")
    refused(coordinator, lambda: publish(admin, other), "roster_refused")
    altered = signed(coordinator, propose(admin))
    altered.colluding = 2
    refused(coordinator, lambda: publish(admin, altered), "roster_refused")
    assert coordinator.store.rosters.current() == current


def test_even_the_root_cannot_publish_strangers_or_the_past(coordinator, admin):
    stranger = propose(admin)
    stranger.entries[1].verification_key = b"\x09" * 32
    error = refused(
        coordinator, lambda: publish(admin, signed(coordinator, stranger)), "roster_refused"
    )
    assert "hospital-b" in error.details()
    elsewhere = propose(admin)
    elsewhere.coordinator_key = b"\x08" * 32
    refused(coordinator, lambda: publish(admin, signed(coordinator, elsewhere)), "roster_refused")
    for _ in range(2):
        publish(admin, signed(coordinator, propose(admin)))
    past = propose(admin)
    past.epoch -= 2
    refused(coordinator, lambda: publish(admin, signed(coordinator, past)), "roster_refused")


def test_too_many_colluders_are_refused(coordinator, admin):
    refused(coordinator, lambda: propose(admin, 2), "roster_refused")
    # Zero stands for what the federation agreed on.
    assert propose(admin, 0).colluding == 1


@pytest.mark.parametrize(("silo_id", "ttl_s"), [("Bad Name", 3600), ("a", 1), ("a", 10**9)])
def test_invites_are_bounded(coordinator, admin, silo_id, ttl_s):
    request = pb.CreateInviteRequest(silo_id=silo_id, ttl_s=ttl_s)
    refused(coordinator, lambda: admin.CreateInvite(request, timeout=60), "enrolment_refused")


def test_runs_go_to_the_conductor(coordinator, admin):
    plan = PLAN.read_bytes()
    parts = start_parts(plan=plan, adapter=b"adapter", submit_token="t")
    assert admin.StartRun(parts, timeout=60).run_id == "run-1"
    opening = pb.StartRunOpening(plan=plan, submit_token="t", adapter_bytes=3)
    cut = [pb.StartRunRequest(opening=opening), pb.StartRunRequest(adapter_chunk=b"ab")]
    with pytest.raises(grpc.RpcError) as refused:
        admin.StartRun(iter(cut), timeout=60)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as refused:
        admin.StartRun(iter(cut[1:]), timeout=60)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert coordinator.conductor.started == [(plan, b"adapter", "t")]
    admin.AbortRun(pb.AbortRunRequest(run_id="run-1"), timeout=60)
    assert coordinator.conductor.aborted == ["run-1"]
    assert admin.PauseRun(pb.PauseRunRequest(run_id="run-1"), timeout=60).state == "paused"
    assert admin.ResumeRun(pb.ResumeRunRequest(run_id="run-1"), timeout=60).behind == "run-0"
    assert (coordinator.conductor.paused, coordinator.conductor.resumed) == (["run-1"], ["run-1"])
    assert set(coordinator.conductor.admins) == {"admin"}
    seen = list(admin.WatchRun(pb.WatchRunRequest(run_id="run-1"), timeout=60))
    assert [status.run.round for status in seen] == [0, 1, 2, 3]


def test_a_rollback_is_noted_once_with_the_admins_name(coordinator, admin):
    store, at = coordinator.store, PLAN.read_bytes()
    row = store.runs.create(
        run_id="run-9",
        name="demo",
        plan=at,
        plan_sha256=hashlib.sha256(at).digest(),
        submit_token="run-9",
        state=RunState.RUNNING,
    )
    for number in (0, 1):
        store.records.append(record(number, run_id=row.run_id))
    asked = pb.RollbackAdapterRequest(run_id="run-9", to_round=0, submit_token="back")
    for _ in range(2):
        answer = admin.RollbackAdapter(asked, timeout=60)
        assert (answer.round, answer.state) == (0, "running")
    events = [json.loads(line) for line in coordinator.audit.tail(9)]
    noted = [event["details"] for event in events if event["event"] == "rollback_asked"]
    assert noted == [{"run": "run-9", "to_round": 0, "admin": "admin"}]
    for change, reason in (
        ({"to_round": 1}, "submit_token"),
        ({"submit_token": "other"}, "rollback_refused"),
        ({"submit_token": "x" * 129}, "submit_token"),
        ({"run_id": "nobody", "submit_token": "new"}, "run_unknown"),
    ):
        other = pb.RollbackAdapterRequest()
        other.CopyFrom(asked)
        for name, value in change.items():
            setattr(other, name, value)
        refused(coordinator, lambda other=other: admin.RollbackAdapter(other, timeout=60), reason)
    store.runs.set_state("run-9", RunState.ABORTED)
    # A token that is known is answered whatever became of the run.
    assert admin.RollbackAdapter(asked, timeout=60).state == "aborted"


def test_adapters_stream_in_chunks(coordinator, admin):
    content = bytes(range(256)) * 10_000
    sha256 = BlobStore(coordinator.config.adapters).put(content)
    parts = list(admin.GetAdapter(pb.GetAdapterRequest(adapter_sha256=sha256), timeout=60))
    assert len(parts) == 3
    assert b"".join(part.content for part in parts) == content
    unknown = pb.GetAdapterRequest(adapter_sha256=b"\x00" * 32)
    refused(coordinator, lambda: list(admin.GetAdapter(unknown, timeout=60)), "blob_unavailable")
    nothing = pb.ListAdaptersRequest(run_id="none")
    refused(coordinator, lambda: admin.ListAdapters(nothing, timeout=60), "run_unknown")


def test_every_change_is_in_the_audit_log_with_its_admin(coordinator, admin):
    admin.CreateInvite(pb.CreateInviteRequest(silo_id="hospital-z", ttl_s=60), timeout=60)
    answer = admin.TailAudit(pb.TailAuditRequest(lines=1), timeout=60)
    record = json.loads(answer.records[0])
    assert record["event"] == "invite_created"
    assert record["details"]["admin"] == "admin"
    assert record["details"]["silo"] == "hospital-z"
    assert verify_log(coordinator.audit.path) == coordinator.audit.head_index + 1


def test_calls_are_measured(coordinator, admin):
    labels = {
        "grpc_type": "unary_unary",
        "grpc_service": "chorale.v1.AdminService",
        "grpc_method": "ListSilos",
    }
    before = coordinator.counted("grpc_server_handled_total", **labels, grpc_code="OK")
    admin.ListSilos(pb.ListSilosRequest(), timeout=60)
    after = coordinator.counted("grpc_server_handled_total", **labels, grpc_code="OK")
    assert after == before + 1
