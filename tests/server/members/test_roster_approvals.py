"""The coordinator's collection of approvals: what it keeps, forgets, refuses and publishes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from secagg import suite
from secagg.errors import MalformedMessageError
from secagg.roster import (
    MAX_APPROVED_IN_A_ROW,
    approval_statement,
    approve_roster,
    follow_rosters,
)
from server.errors import RosterError
from tests.kit.secagg.secagg_samples import (
    make_roster,
    signed_roster,
    signing_key,
    silo_names,
)
from tests.kit.server.approvals_desk import FIVE, ROOT, SIX, Desk

NAMES = silo_names(6)


@pytest.fixture
def desk(tmp_path):
    made = Desk(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def rostered(desk):
    desk.publish(signed_roster(FIVE))
    desk.approvals.propose(SIX)
    return desk


def test_enough_approvals_make_a_roster_that_silos_accept(rostered):
    assert (rostered.approvals.current().needed, rostered.by()) == (4, [])
    for name in (NAMES[3], NAMES[0], NAMES[2]):
        rostered.approve(name, SIX)
        rostered.approve(name, SIX)
    assert rostered.by() == [NAMES[0], NAMES[2], NAMES[3]]
    with pytest.raises(RosterError, match="3 of 5 silos approved epoch 2, 4 are needed"):
        rostered.approvals.approved()
    rostered.approve(NAMES[4], SIX)
    signed = rostered.approvals.approved()
    assert follow_rosters((signed_roster(FIVE), signed), ROOT, 0) == SIX
    rostered.publish(signed)
    assert rostered.approvals.current() is None
    assert rostered.store.rosters.before(signed) == (signed_roster(FIVE),)
    # Each approval once, however often it was sent.
    assert rostered.audited() == [NAMES[3], NAMES[0], NAMES[2], NAMES[4]]


@pytest.mark.parametrize(
    "changes",
    [
        {"signature": bytes(64)},
        {"epoch": 3},
        {"sha256": bytes(32)},
        {"signature": suite.sign(signing_key(NAMES[0]), SIX.signed_bytes())},
    ],
)
def test_what_is_not_an_approval_of_the_proposal_is_refused(rostered, changes):
    with pytest.raises(RosterError):
        rostered.approve(NAMES[0], SIX, **changes)
    assert rostered.by() == []


def test_malformed_approvals_are_refused(rostered):
    with pytest.raises(MalformedMessageError):
        rostered.approve(NAMES[0], SIX, signature=b"short")


def test_strangers_and_newcomers_have_no_say(rostered):
    for name in (NAMES[5], "stranger"):
        with pytest.raises(RosterError, match="not an approval"):
            rostered.approve(name, SIX)
    # One silo in another's name.
    signature = suite.sign(signing_key(NAMES[1]), approval_statement(FIVE, SIX))
    with pytest.raises(RosterError):
        rostered.approve(NAMES[0], SIX, signature=signature)


def test_a_new_proposal_forgets_the_approvals_of_the_old_one(rostered):
    for name in NAMES[:4]:
        rostered.approve(name, SIX)
    rostered.approvals.propose(SIX)
    assert len(rostered.by()) == 4
    seven = make_roster(7, epoch=2)
    rostered.approvals.propose(seven)
    assert rostered.by() == []
    with pytest.raises(RosterError, match="another roster is proposed"):
        rostered.approve(NAMES[0], SIX)
    rostered.approvals.propose(SIX)
    assert rostered.by() == []


def test_a_published_roster_makes_older_proposals_worthless(rostered):
    for name in NAMES[:4]:
        rostered.approve(name, SIX)
    stale = rostered.approvals.approved()
    rostered.publish(signed_roster(make_roster(4, epoch=2)))
    with pytest.raises(RosterError, match="no roster is proposed"):
        rostered.approvals.approved()
    with pytest.raises(RosterError):
        rostered.approvals.verified(stale, ROOT)


@pytest.mark.parametrize(
    "changes", [{"colluding": 2}, {"epoch": 3}, {"coordinator_key": b"\x07" * 32}]
)
def test_what_takes_the_root_cannot_be_approved(rostered, changes):
    roster = replace(SIX, **changes)
    rostered.approvals.propose(roster)
    assert rostered.approvals.current().needed == 0
    with pytest.raises(RosterError):
        rostered.approve(NAMES[0], roster)
    with pytest.raises(RosterError):
        rostered.approvals.approved()


def test_the_first_roster_is_the_roots(desk):
    assert desk.approvals.current() is None
    desk.approvals.propose(FIVE)
    assert desk.approvals.current().needed == 0
    with pytest.raises(RosterError, match="signed by the root"):
        desk.approve(NAMES[0], FIVE)
    with pytest.raises(RosterError, match="signed by the root"):
        desk.approvals.approved()


def test_a_silo_that_was_away_gets_what_lies_between_and_never_too_much(desk):
    desk.publish(signed_roster(make_roster(4, epoch=1)))
    for epoch in range(2, MAX_APPROVED_IN_A_ROW + 2):
        before, after = make_roster(4, epoch=epoch - 1), make_roster(4, epoch=epoch)
        desk.approvals.propose(after)
        for name in NAMES[:3]:
            approval = approve_roster(before, after, name, signing_key(name))
            desk.approvals.approve(
                name, epoch=epoch, sha256=after.sha256, signature=approval.signature
            )
        desk.publish(desk.approvals.approved())
    current = desk.store.rosters.current()
    everything = desk.store.rosters.before(current)
    assert [one.roster.epoch for one in everything] == list(range(1, MAX_APPROVED_IN_A_ROW + 1))
    assert follow_rosters((*everything, current), ROOT, 0) == current.roster
    recent = desk.store.rosters.before(current, from_epoch=MAX_APPROVED_IN_A_ROW - 1)
    assert len(recent) == 2
    known = recent[0].roster
    assert follow_rosters((*recent, current), ROOT, known.epoch, known.sha256) == current.roster
    # One more, and a newcomer's way back to the root's word would have no bound.
    after = make_roster(5, epoch=current.roster.epoch + 1)
    desk.approvals.propose(after)
    assert desk.approvals.current().needed == 0
    with pytest.raises(RosterError, match="the root signs the next"):
        desk.approve(NAMES[0], after, current.roster)
    desk.publish(signed_roster(after))
    assert desk.store.rosters.before(desk.store.rosters.current()) == ()
