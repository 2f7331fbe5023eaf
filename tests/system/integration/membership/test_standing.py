"""How a silo stands bites on its next call over a connection that is open all the time."""

from __future__ import annotations

import itertools
import json

import grpc
import pytest

from chorale.v1 import (
    admin_pb2,
    membership_pb2,
    membership_pb2_grpc,
    round_pb2,
    round_pb2_grpc,
)
from silo_agent.identity.join import InviteRefusedError, join

pytestmark = pytest.mark.xdist_group("standing")

NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def real_time(coordinator):
    yield
    coordinator.clock.offset_s = 0.0


class Silo:
    """One silo with a channel that stays open."""

    def __init__(self, coordinator, directory):
        self.name = f"silo-{next(NUMBERS)}"
        self.coordinator, self.directory = coordinator, directory
        self.identity = join(coordinator.invite(self.name), directory)
        self.channel = grpc.secure_channel(
            coordinator.config.dial_coordinator, self.identity.channel_credentials()
        )
        assert self.call() == ""

    def call(self):
        """The reason of a refusal; empty if the call was admitted."""
        stub = round_pb2_grpc.RoundServiceStub(self.channel)
        try:
            assert stub.Poll(round_pb2.PollRequest(), timeout=60).instruction_id == self.name
        except grpc.RpcError as error:
            return dict(error.trailing_metadata()).get("chorale-reason", error.code().name)
        return ""

    def leave(self, *, revoke):
        membership_pb2_grpc.MembershipServiceStub(self.channel).Leave(
            membership_pb2.LeaveRequest(revoke=revoke), timeout=60
        )

    @property
    def barred(self):
        return self.coordinator.liveness.barred(self.name)


@pytest.fixture
def silo(coordinator, tmp_path):
    made = Silo(coordinator, tmp_path / "silo")
    yield made
    made.channel.close()


def states(admin):
    answer = admin.ListSilos(admin_pb2.ListSilosRequest(), timeout=60)
    return {one.silo_id: one.state for one in answer.silos}


def last_event(coordinator):
    record = json.loads(coordinator.audit.tail(1)[0])
    return record["event"], record["details"]


def refused(call, reason):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert dict(caught.value.trailing_metadata())["chorale-reason"] == reason


def suspend(admin, silo_id, reason=""):
    admin.SuspendSilo(admin_pb2.SuspendSiloRequest(silo_id=silo_id, reason=reason), timeout=60)


def reinstate(admin, silo_id):
    admin.ReinstateSilo(admin_pb2.ReinstateSiloRequest(silo_id=silo_id), timeout=60)


def revoke(admin, silo_id, reason=""):
    admin.RevokeSilo(admin_pb2.RevokeSiloRequest(silo_id=silo_id, reason=reason), timeout=60)


def test_suspension_and_its_end_bite_on_the_next_call(coordinator, admin, silo):
    woken = coordinator.changes
    suspend(admin, silo.name, "an audit")
    assert silo.call() == "silo_suspended"
    assert silo.barred
    assert coordinator.changes == woken + 1
    assert states(admin)[silo.name] == "suspended"
    assert last_event(coordinator) == (
        "silo_suspended",
        {"silo": silo.name, "admin": "admin", "reason": "an audit"},
    )
    reinstate(admin, silo.name)
    assert silo.call() == ""
    assert not silo.barred
    assert states(admin)[silo.name] == "enrolled"
    assert last_event(coordinator) == ("silo_reinstated", {"silo": silo.name, "admin": "admin"})


def test_revocation_bites_on_the_next_call_and_for_good(coordinator, admin, silo):
    revoke(admin, silo.name, "gone")
    assert silo.call() == "certificate_revoked"
    assert silo.barred
    assert states(admin)[silo.name] == "revoked"
    assert last_event(coordinator) == (
        "silo_revoked",
        {"silo": silo.name, "admin": "admin", "reason": "gone"},
    )
    refused(lambda: reinstate(admin, silo.name), "silo_standing")
    refused(lambda: suspend(admin, silo.name), "silo_standing")
    assert silo.call() == "certificate_revoked"


def test_only_an_invite_from_after_the_revocation_brings_a_silo_back(
    coordinator, admin, silo, tmp_path
):
    kept = coordinator.invite(silo.name)
    revoke(admin, silo.name)
    with pytest.raises(InviteRefusedError):
        join(kept, silo.directory)
    again = join(coordinator.invite(silo.name), silo.directory)
    assert silo.call() == "certificate_revoked"
    assert not silo.barred
    with grpc.secure_channel(
        coordinator.config.dial_coordinator, again.channel_credentials()
    ) as channel:
        stub = round_pb2_grpc.RoundServiceStub(channel)
        assert stub.Poll(round_pb2.PollRequest(), timeout=60).instruction_id == silo.name


def test_joining_again_is_no_way_around_a_suspension(coordinator, admin, silo):
    kept = coordinator.invite(silo.name)
    suspend(admin, silo.name)
    again = join(kept, silo.directory)
    with grpc.secure_channel(
        coordinator.config.dial_coordinator, again.channel_credentials()
    ) as channel:
        refused(
            lambda: round_pb2_grpc.RoundServiceStub(channel).Poll(
                round_pb2.PollRequest(), timeout=60
            ),
            "silo_suspended",
        )
    assert silo.barred


def test_a_silo_that_leaves_is_not_counted_on_and_not_proposed(coordinator, admin, tmp_path):
    silos = [Silo(coordinator, tmp_path / f"{number}") for number in range(4)]
    leaver = silos[0]

    def proposed():
        answer = admin.ProposeRoster(admin_pb2.ProposeRosterRequest(colluding=1), timeout=60)
        return {entry.silo_id for entry in answer.roster.entries}

    assert leaver.name in proposed()
    leaver.leave(revoke=False)
    assert leaver.barred
    assert last_event(coordinator) == (
        "silo_left",
        {"silo": leaver.name, "certificate": "kept"},
    )
    # It may still fetch what is published.
    assert leaver.call() == ""
    assert states(admin)[leaver.name] == "left"
    assert leaver.name not in proposed()
    before = coordinator.audit.head_index
    leaver.leave(revoke=False)
    assert coordinator.audit.head_index == before
    leaver.leave(revoke=True)
    assert leaver.call() == "certificate_revoked"
    for one in silos:
        one.channel.close()


def test_leaving_with_revocation_ends_the_certificate(coordinator, admin, silo):
    silo.leave(revoke=True)
    assert silo.call() == "certificate_revoked"
    assert last_event(coordinator) == (
        "silo_left",
        {"silo": silo.name, "certificate": "revoked"},
    )
    refused(lambda: silo.leave(revoke=False), "certificate_revoked")


def test_expiry_bites_on_an_open_connection(coordinator, silo):
    assert silo.call() == ""
    ends = silo.identity.certificate_expiry_unix_s
    begins = silo.identity.leaf.not_valid_before_utc.timestamp()
    for moment, reason in (
        (ends - 2, ""),
        (ends + 1, "certificate_expired"),
        (begins - 2, "certificate_expired"),
        (begins + 1, ""),
    ):
        coordinator.clock.offset_s = 0.0
        coordinator.clock.offset_s = moment - coordinator.clock()
        assert silo.call() == reason, moment


def test_the_standing_survives_a_restart(coordinator, admin, silo, tmp_path):
    gone = Silo(coordinator, tmp_path / "gone")
    suspend(admin, silo.name)
    gone.leave(revoke=False)
    coordinator.restart()
    assert silo.call() == "silo_suspended"
    assert silo.barred
    assert gone.barred
    assert not coordinator.liveness.barred("somebody-else")
    gone.channel.close()


@pytest.mark.parametrize("silo_id", ["nobody", "", "../..", "x" * 5000, "a\nb"])
def test_a_stranger_cannot_be_changed(coordinator, admin, silo_id):
    before = coordinator.audit.head_index
    for call in (suspend, revoke, reinstate):
        refused(lambda call=call: call(admin, silo_id), "silo_unknown")
    assert coordinator.audit.head_index == before


def test_a_reason_is_bounded(coordinator, admin, silo):
    refused(lambda: suspend(admin, silo.name, "x" * 201), "silo_standing")
    refused(lambda: revoke(admin, silo.name, "x" * 1_000_000), "silo_standing")
    assert silo.call() == ""


def test_a_change_that_the_audit_log_cannot_name_is_not_made(coordinator, admin, silo, monkeypatch):
    def full(*_arguments, **_details):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(coordinator.audit, "append", full)
        for call in (suspend, revoke):
            with pytest.raises(grpc.RpcError):
                call(admin, silo.name)
        with pytest.raises(grpc.RpcError):
            silo.leave(revoke=True)
    assert silo.call() == ""
    assert not silo.barred
