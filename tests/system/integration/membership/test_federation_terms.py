"""One federation for a coordinator, created once, and terms that no roster and no plan passes."""

from __future__ import annotations

import json

import grpc
import pytest

from chorale.v1 import admin_pb2 as pb
from chorale.v1 import round_pb2, round_pb2_grpc
from server.cli.client import start_parts
from silo_agent.identity.join import join
from tests.kit.paths import ROOT
from tests.kit.processes.server_harness import Coordinator

EXAMPLES = ROOT / "deploy" / "examples"
PLAN = EXAMPLES / "plan-silo-dp.toml"
CONSTANT = EXAMPLES / "plan-constant.toml"


@pytest.fixture
def coordinator(tmp_path):
    running = Coordinator(tmp_path, federation=None)
    yield running
    running.close()


def create(admin, name="oncology", **terms):
    values = {"min_silos": 4, "colluding": 1, "epsilon_cap": 8.0, "delta": 1e-5, **terms}
    request = pb.CreateFederationRequest(name=name, **values)
    return admin.CreateFederation(request, timeout=60)


def reason_of(call):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return dict(caught.value.trailing_metadata())["chorale-reason"]


def invite(admin, silo_id="hospital-a", federation=""):
    request = pb.CreateInviteRequest(silo_id=silo_id, ttl_s=600, federation=federation)
    return admin.CreateInvite(request, timeout=60).invite


def start(admin, plan, federation=""):
    parts = start_parts(plan=plan, adapter=b"a", submit_token="t", federation=federation)
    return admin.StartRun(parts, timeout=60).run_id


def test_nothing_is_joined_or_run_before_there_is_a_federation(coordinator, admin):
    plan = PLAN.read_bytes()
    for call in (
        lambda: invite(admin),
        lambda: admin.ProposeRoster(pb.ProposeRosterRequest(), timeout=60),
        lambda: start(admin, plan),
        lambda: admin.GetFederation(pb.GetFederationRequest(), timeout=60),
    ):
        assert reason_of(call) == "federation_unknown"
    assert coordinator.conductor.started == []


def test_it_is_created_once_and_its_terms_stay(coordinator, admin):
    create(admin)
    found = admin.GetFederation(pb.GetFederationRequest(), timeout=60)
    terms = (found.name, found.min_silos, found.colluding, found.epsilon_cap, found.delta)
    assert terms == ("oncology", 4, 1, 8.0, 1e-5)
    create(admin)
    assert reason_of(lambda: create(admin, epsilon_cap=9.0)) == "federation_exists"
    assert reason_of(lambda: create(admin, name="cardiology")) == "federation_exists"
    events = [json.loads(line) for line in coordinator.audit.tail(50)]
    (created,) = [event for event in events if event["event"] == "federation_created"]
    assert created["details"] == {
        "admin": "admin",
        "federation": "oncology",
        "min_silos": 4,
        "colluding": 1,
        "epsilon_cap": "8.0",
        "delta": "1e-05",
    }


@pytest.mark.parametrize(
    "terms",
    [
        {"name": "Oncology"},
        {"name": "coordinator"},
        {"name": ""},
        {"name": "a" * 64},
        {"min_silos": 2},
        {"min_silos": 201},
        {"colluding": 0},
        {"colluding": 4},
        {"epsilon_cap": 0.0},
        {"epsilon_cap": -1.0},
        {"epsilon_cap": float("nan")},
        {"epsilon_cap": float("inf")},
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": float("nan")},
    ],
)
def test_terms_that_make_no_sense_are_refused(coordinator, admin, terms):
    assert reason_of(lambda: create(admin, **terms)) == "federation_terms"
    assert coordinator.store.federation.current() is None


def test_silos_join_it_by_its_name_and_no_other(coordinator, admin, tmp_path):
    create(admin)
    assert reason_of(lambda: invite(admin, federation="cardiology")) == "federation_unknown"
    identity = join(invite(admin, federation="oncology"), tmp_path / "silo")
    assert identity.federation == "oncology"
    address = coordinator.config.dial_coordinator
    with grpc.secure_channel(address, identity.channel_credentials()) as channel:
        answer = round_pb2_grpc.RoundServiceStub(channel).Poll(round_pb2.PollRequest(), timeout=60)
    assert answer.instruction_id == "hospital-a"


def test_a_roster_has_the_silos_and_the_c_that_were_agreed_on(coordinator, admin, tmp_path):
    create(admin, min_silos=5, colluding=2)
    for index in range(4):
        join(invite(admin, f"hospital-{index}"), tmp_path / str(index))
    few = pb.ProposeRosterRequest(colluding=1)
    assert reason_of(lambda: admin.ProposeRoster(few, timeout=60)) == "federation_terms"
    for index in range(4, 7):
        join(invite(admin, f"hospital-{index}"), tmp_path / str(index))
    assert reason_of(lambda: admin.ProposeRoster(few, timeout=60)) == "federation_terms"
    agreed = admin.ProposeRoster(pb.ProposeRosterRequest(), timeout=60).roster
    assert (agreed.colluding, len(agreed.entries)) == (2, 7)


def test_a_plan_states_no_more_than_was_agreed_on(coordinator, admin):
    create(admin, epsilon_cap=4.0, delta=1e-6)
    plan = PLAN.read_text()
    assert reason_of(lambda: start(admin, plan.encode())) == "federation_terms"
    without = CONSTANT.read_bytes()
    assert reason_of(lambda: start(admin, without)) == "federation_terms"
    capped = edited(plan, "epsilon_cap", "4.0")
    assert reason_of(lambda: start(admin, capped.encode())) == "federation_terms"
    within = edited(capped, "delta", "1e-6").encode()
    assert reason_of(lambda: start(admin, within, "cardiology")) == "federation_unknown"
    assert start(admin, within, "oncology") == "run-1"
    assert coordinator.conductor.started == [(within, b"a", "t")]


def test_a_plan_lets_no_fewer_silos_make_a_sum_than_was_agreed_on(coordinator, admin):
    create(admin, min_silos=4, epsilon_cap=None)
    few = CONSTANT.read_text()
    with pytest.raises(grpc.RpcError) as caught:
        start(admin, few.encode())
    assert dict(caught.value.trailing_metadata())["chorale-reason"] == "federation_terms"
    assert "n_min: the plan lets 3 silos make a sum" in caught.value.details()
    assert coordinator.conductor.started == []
    assert start(admin, edited(few, "n_min", "4").encode()) == "run-1"


def test_what_the_audit_log_cannot_name_is_not_made(coordinator, admin, monkeypatch):
    def full(*_rest, **_details):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(coordinator.audit, "append", full)
        with pytest.raises(grpc.RpcError):
            create(admin)
    assert coordinator.store.federation.current() is None
    create(admin)
    with monkeypatch.context() as patch:
        patch.setattr(coordinator.audit, "append", full)
        with pytest.raises(grpc.RpcError):
            invite(admin)
    assert coordinator.store.invites.open() == ()
    events = [json.loads(line)["event"] for line in coordinator.audit.tail(50)]
    assert events.count("federation_created") == 1
    assert "invite_created" not in events


def edited(plan, key, value):
    lines = plan.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.split("=")[0].strip() == key]
    lines[at] = f"{key} = {value}"
    return "\n".join(lines) + "\n"
