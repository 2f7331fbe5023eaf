"""Rosters from the admin's side: what is proposed, what is published, what is in the audit log."""

import json

import pytest

from federation.membership.invite import silo_spiffe_uri
from secagg import suite
from secagg.roster import approve_roster, sign_roster, verify_roster
from server.errors import FederationTermsError, RosterError
from server.members.roster_file import read_roster, roster_message, write_roster
from server.members.rosters import MAX_EPOCH, Rosters
from server.store.federation import FederationRow
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY, ROOT_KEY, signing_key, silo_names
from tests.kit.server.approvals_desk import Desk
from tests.kit.server.store_samples import silo_row

ROOT = suite.verification_key(ROOT_KEY)
NAMES = silo_names(6)


@pytest.fixture
def desk(tmp_path):
    made = Desk(tmp_path)
    made.store.federation.create(FederationRow(name="fed"))
    made.rosters = Rosters(
        store=made.store,
        audit=made.audit,
        root_key=ROOT,
        coordinator_key=suite.verification_key(COORDINATOR_KEY),
    )
    for name in NAMES[:5]:
        enrol(made, name)
    yield made
    made.store.close()


def enrol(desk, name):
    desk.store.silos.enrol(
        silo_row(
            name,
            spiffe_uri=silo_spiffe_uri("fed", name),
            verification_key=suite.verification_key(signing_key(name)),
            certificate_expiry_unix_s=2**33,
            enrolled_unix_s=0,
        )
    )


def founded(desk, colluding=0):
    first = sign_roster(desk.rosters.propose(colluding, admin="ada"), ROOT_KEY)
    desk.rosters.publish(first, admin="ada")
    return first


def events(desk):
    return [json.loads(line)["event"] for line in desk.audit.tail(100)]


def test_publishing_the_roster_in_force_again_changes_nothing(desk):
    first = founded(desk)
    enrol(desk, NAMES[5])
    proposed = desk.rosters.propose(0, admin="ada")
    for name in NAMES[:4]:
        approval = approve_roster(first.roster, proposed, name, signing_key(name))
        desk.approvals.approve(name, epoch=2, sha256=proposed.sha256, signature=approval.signature)
    before = events(desk)
    assert desk.rosters.publish(first, admin="ada") == first.roster
    assert events(desk) == before
    assert len(desk.approvals.current().approvals) == 4
    assert desk.rosters.publish(None, admin="ada") == proposed


@pytest.mark.parametrize("change", ["propose", "approve", "publish"])
def test_a_change_that_the_audit_log_cannot_name_has_not_happened(desk, monkeypatch, change):
    first = founded(desk)
    enrol(desk, NAMES[5])
    proposed = None if change == "propose" else desk.rosters.propose(0, admin="ada")

    def act():
        if change == "propose":
            desk.rosters.propose(0, admin="mallory")
        elif change == "approve":
            desk.approve(NAMES[0], proposed, first.roster)
        else:
            desk.rosters.publish(sign_roster(proposed, ROOT_KEY), admin="mallory")

    def full(*_rest, **_details):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(desk.audit, "append", full)
        with pytest.raises(OSError, match="No space"):
            act()
    assert desk.store.rosters.current() == first
    if change == "propose":
        assert desk.approvals.current() is None
    else:
        assert desk.by() == []


def test_c_is_that_of_the_roster_in_force(desk):
    assert desk.rosters.propose(0, admin="ada").colluding == 1
    founded(desk, colluding=2)
    assert desk.rosters.propose(0, admin="ada").colluding == 2
    assert desk.rosters.propose(1, admin="ada").colluding == 1
    with pytest.raises((RosterError, FederationTermsError)):
        desk.rosters.propose(5, admin="ada")


def test_after_a_restore_the_root_signs_a_roster_that_silos_ahead_accept(desk):
    founded(desk)
    # Silos know epoch 4; this coordinator was restored to 1.
    ahead = sign_roster(desk.rosters.propose(0, admin="ada", epoch=4), ROOT_KEY)
    following = sign_roster(desk.rosters.propose(0, admin="ada"), ROOT_KEY)
    with pytest.raises(Exception, match="not newer than 4"):
        verify_roster(following, ROOT, 4, ahead.roster.sha256, ahead.roster)
    newer = desk.rosters.propose(0, admin="ada", epoch=5)
    # It is not the next one, so no member may approve it.
    assert desk.approvals.current().needed == 0
    signed = sign_roster(newer, ROOT_KEY)
    assert verify_roster(signed, ROOT, 4, ahead.roster.sha256, ahead.roster) == newer
    assert desk.rosters.publish(signed, admin="ada").epoch == 5
    assert desk.rosters.propose(0, admin="ada").epoch == 6
    for epoch in (1, 5, MAX_EPOCH + 1, 2**63):
        with pytest.raises(RosterError, match=f"epoch {epoch} is not from 6"):
            desk.rosters.propose(0, admin="ada", epoch=epoch)


def test_an_approved_roster_goes_through_a_file_and_is_published_again(desk, tmp_path):
    first = founded(desk)
    enrol(desk, NAMES[5])
    proposed = desk.rosters.propose(0, admin="ada")
    for name in NAMES[:4]:
        desk.approve(name, proposed, first.roster)
    desk.rosters.publish(None, admin="ada")
    approved = desk.store.rosters.current()
    path = tmp_path / "roster.json"
    write_roster(path, roster_message(approved))
    (tmp_path / "restored").mkdir()
    again = Desk(tmp_path / "restored")
    again.store.federation.create(FederationRow(name="fed"))
    for name in NAMES:
        enrol(again, name)
    again.rosters = Rosters(
        store=again.store,
        audit=again.audit,
        root_key=ROOT,
        coordinator_key=suite.verification_key(COORDINATOR_KEY),
    )
    again.rosters.publish(first, admin="ada")
    again.rosters.publish(read_roster(path), admin="ada")
    assert again.store.rosters.current() == approved
    again.store.close()
