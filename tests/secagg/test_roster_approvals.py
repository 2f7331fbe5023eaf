"""Rosters that members approve instead of the root: what counts; every way in that must fail."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from secagg import suite
from secagg.errors import Check, MalformedMessageError, VerificationError
from secagg.parameters import threshold
from secagg.roster import (
    RosterApproval,
    SignedRoster,
    approval_statement,
    approvals_needed,
    approve_roster,
    follow_rosters,
    is_approval,
    require_approvable,
    sign_roster,
    verify_roster,
)
from secagg.wire import roster_from_proto, roster_to_proto
from tests.kit.secagg.secagg_samples import (
    COORDINATOR_KEY,
    ROOT_KEY,
    make_roster,
    signed_roster,
    signing_key,
    silo_names,
)

ROOT = suite.verification_key(ROOT_KEY)
FIVE = make_roster(5, epoch=3)
"""In force: n = 5, c = 1, so k = t = 4."""
SIX = make_roster(6, epoch=4)
"""Proposed: one more."""
NAMES = silo_names(6)
K = 4


def approved(previous, roster, names, **keys):
    """The roster with approvals of these silos, whoever they are."""
    statement = approval_statement(previous, roster)
    return SignedRoster(
        roster=roster,
        signature=b"",
        approvals=tuple(
            RosterApproval(
                silo_id=name,
                signature=suite.sign(
                    keys.get(name.replace("-", "_"), signing_key(name)), statement
                ),
            )
            for name in sorted(names)
        ),
    )


def accept(signed, previous=FIVE, last=None):
    last = previous if last is None else last
    return verify_roster(signed, ROOT, last.epoch, last.sha256, previous)


def refused(check, signed, previous=FIVE, last=None):
    with pytest.raises(VerificationError) as caught:
        accept(signed, previous, last)
    assert caught.value.check is check
    return caught.value


def test_k_is_the_threshold_of_the_roster_in_force():
    for n, c in ((3, 1), (5, 1), (7, 2), (200, 50)):
        k = approvals_needed(make_roster(n, c))
        assert k == threshold(n, c)
        # All colluders are never enough, and two quorums share an honest member.
        assert k >= c + 2
        assert 2 * k > n + c
    with pytest.raises(VerificationError, match="only the root"):
        approvals_needed(make_roster(201, 1))


@pytest.mark.parametrize("names", [NAMES[:4], NAMES[1:5], NAMES[:5]])
def test_enough_members_make_the_next_roster_valid(names):
    signed = approved(FIVE, SIX, names)
    assert accept(signed) == SIX
    assert roster_from_proto(roster_to_proto(signed)) == signed
    # Accepted once, it is known by its digest, so that a silo can restart.
    assert verify_roster(signed, ROOT, SIX.epoch, SIX.sha256) == SIX


def test_members_may_go_and_change_keys_too():
    four = make_roster(4, epoch=4)
    assert accept(approved(FIVE, four, NAMES[:4])) == four
    # Also by the word of the one that goes: it is a member until then.
    assert accept(approved(FIVE, four, NAMES[1:5])) == four
    new = replace(SIX.entries[0], verification_key=suite.verification_key(signing_key("new")))
    rekeyed = replace(FIVE, epoch=4, entries=(new, *FIVE.entries[1:]))
    assert accept(approved(FIVE, rekeyed, NAMES[:4])) == rekeyed


@pytest.mark.parametrize("names", [*combinations(NAMES[:5], K - 1), NAMES[:1]])
def test_fewer_than_k_are_refused(names):
    error = refused(Check.ROSTER_APPROVALS, approved(FIVE, SIX, names))
    assert f"{len(names)} members approved it, {K} are needed" in str(error)


def test_the_coordinator_and_its_colluders_are_refused():
    """c silos with their keys, and the coordinator's own key for everybody else."""
    forged = {name.replace("-", "_"): COORDINATOR_KEY for name in NAMES[1:]}
    refused(Check.ROSTER_APPROVALS, approved(FIVE, SIX, NAMES[:4], **forged))
    refused(Check.ROSTER_APPROVALS, approved(FIVE, SIX, NAMES[:1]))
    refused(Check.ROSTER_SIGNATURE, sign_roster(SIX, COORDINATOR_KEY))


def test_one_member_counts_once():
    good = approved(FIVE, SIX, NAMES[:3])
    with pytest.raises(MalformedMessageError):
        replace(good, approvals=(*good.approvals[:1], *good.approvals))
    message = roster_to_proto(good)
    message.approvals.append(message.approvals[2])
    with pytest.raises(MalformedMessageError):
        roster_from_proto(message)
    # The same signature under another member's name.
    doubled = replace(good.approvals[2], silo_id=NAMES[3])
    error = refused(Check.ROSTER_APPROVALS, replace(good, approvals=(*good.approvals, doubled)))
    assert error.silo == NAMES[3]


def test_approvals_of_another_roster_are_refused():
    other = make_roster(7, epoch=4)
    stolen = replace(approved(FIVE, other, NAMES[:4]), roster=SIX)
    refused(Check.ROSTER_APPROVALS, stolen)


def test_approvals_of_the_same_change_to_another_roster_are_refused():
    """The statement names the roster before: what was approved there is not approved here."""
    elsewhere = make_roster(4, epoch=3)
    stolen = approved(elsewhere, SIX, NAMES[:4])
    refused(Check.ROSTER_APPROVALS, stolen)
    # Nor may the verifier be handed the roster that they are good for.
    refused(Check.ROSTER_APPROVALS, stolen, previous=elsewhere, last=FIVE)
    assert accept(stolen, previous=elsewhere) == SIX


def test_approvals_of_another_epoch_are_refused():
    fifth = replace(SIX, epoch=5)
    refused(Check.ROSTER_EPOCH, approved(FIVE, fifth, NAMES[:4]))
    refused(Check.ROSTER_APPROVALS, replace(approved(FIVE, fifth, NAMES[:4]), roster=SIX))


def test_a_replayed_older_epoch_is_refused():
    old = make_roster(6, epoch=2)
    before = make_roster(5, epoch=1)
    signed = approved(before, old, NAMES[:4])
    assert accept(signed, previous=before) == old
    refused(Check.ROSTER_EPOCH, signed)
    refused(Check.ROSTER_EPOCH, signed, previous=before, last=FIVE)
    # The same epoch with other members.
    same_epoch = approved(make_roster(5, epoch=2), make_roster(6, epoch=3), NAMES[:4])
    refused(Check.ROSTER_EPOCH, same_epoch)


def test_a_removed_member_has_no_say():
    """silo-004 was in epoch 2 and is not in epoch 3."""
    now = make_roster(4, epoch=3)
    # n = 4, c = 1: k = 3.
    with_removed = approved(now, replace(SIX, epoch=4), [NAMES[0], NAMES[1], NAMES[4]])
    assert refused(Check.ROSTER_APPROVALS, with_removed, previous=now).silo == NAMES[4]


def test_a_member_that_the_very_roster_adds_has_no_say():
    error = refused(Check.ROSTER_APPROVALS, approved(FIVE, SIX, [*NAMES[:3], NAMES[5]]))
    assert error.silo == NAMES[5]
    # One bad approval spoils the rest, however many there are.
    refused(Check.ROSTER_APPROVALS, approved(FIVE, SIX, NAMES))


def test_a_member_under_the_key_that_the_very_roster_brings_has_no_say():
    thief = signing_key("thief")
    new = replace(SIX.entries[0], verification_key=suite.verification_key(thief))
    rekeyed = replace(FIVE, epoch=4, entries=(new, *FIVE.entries[1:]))
    refused(Check.ROSTER_APPROVALS, approved(FIVE, rekeyed, NAMES[:4], silo_000=thief))


@pytest.mark.parametrize(
    "changes",
    [
        {"colluding": 2},
        {"coordinator_key": suite.verification_key(signing_key("another coordinator"))},
        {"federation": "another"},
    ],
)
def test_only_the_root_changes_c_the_coordinator_and_the_name(changes):
    roster = replace(SIX, **changes)
    refused(Check.ROSTER_APPROVALS, approved(FIVE, roster, NAMES[:5]))
    assert accept(signed_roster(roster)) == roster


def test_only_the_root_lowers_c():
    seven = make_roster(7, colluding=2, epoch=3)
    lower = make_roster(7, colluding=1, epoch=4)
    signed = approved(seven, lower, silo_names(7))
    refused(Check.ROSTER_APPROVALS, signed, previous=seven)
    with pytest.raises(VerificationError):
        approve_roster(seven, lower, NAMES[0], signing_key(NAMES[0]))


@pytest.mark.parametrize(("n", "colluding"), [(2, 1), (3, 2)])
def test_only_the_root_shrinks_below_what_withstands_c(n, colluding):
    before = make_roster(5, colluding, epoch=3)
    small = make_roster(n, colluding, epoch=4)
    refused(Check.ROSTER_APPROVALS, approved(before, small, NAMES[:5]), previous=before)


def test_the_first_roster_is_the_roots():
    with pytest.raises(VerificationError) as caught:
        verify_roster(approved(FIVE, SIX, NAMES[:4]), ROOT, 0)
    assert caught.value.check is Check.ROSTER_APPROVALS
    # Not even with a roster before it that nobody accepted.
    with pytest.raises(VerificationError):
        verify_roster(approved(FIVE, SIX, NAMES[:4]), ROOT, 0, None, FIVE)


def test_a_roster_has_the_roots_word_or_the_members_and_never_both():
    both = {"signature": signed_roster(SIX).signature}
    with pytest.raises(MalformedMessageError):
        replace(approved(FIVE, SIX, NAMES[:4]), **both)
    with pytest.raises(MalformedMessageError):
        SignedRoster(roster=SIX, signature=b"")
    # A root signature that is not one is not made up for by anything.
    refused(Check.ROSTER_SIGNATURE, SignedRoster(roster=SIX, signature=bytes(64)))


def test_an_approval_is_for_nothing_but_a_roster():
    approval = approve_roster(FIVE, SIX, NAMES[0], signing_key(NAMES[0]))
    assert is_approval(FIVE, SIX, approval)
    assert approval_statement(FIVE, SIX) != SIX.signed_bytes()
    # An approval is not the root's signature, even under the root's key.
    as_root = suite.sign(ROOT_KEY, approval_statement(FIVE, SIX))
    refused(Check.ROSTER_SIGNATURE, SignedRoster(roster=SIX, signature=as_root))


# Chains ------------------------------------------------------------------------------------------


def chain(last, *, first=3):
    """Rosters of epochs first..last, one silo more in each; the first by the root."""
    rosters = [make_roster(5 + epoch - first, epoch=epoch) for epoch in range(first, last + 1)]
    signed = [signed_roster(rosters[0])]
    for before, after in pairwise(rosters):
        names = silo_names(approvals_needed(before))
        signed.append(approved(before, after, names))
    return signed


def follow(signed, last_epoch=0, last_sha256=None):
    return follow_rosters(signed, ROOT, last_epoch, last_sha256)


def test_a_silo_that_was_away_follows_from_the_roster_it_knows_or_the_root():
    signed = chain(7)
    assert follow(signed).epoch == 7
    for known in signed:
        start = signed.index(known)
        assert follow(signed[start:], known.roster.epoch, known.roster.sha256).epoch == 7
    # A newer one by the root needs nothing before it.
    assert (
        follow([signed_roster(make_roster(9, epoch=20))], 7, signed[-1].roster.sha256).epoch == 20
    )


def test_a_chain_with_a_gap_another_order_or_another_start_is_refused():
    signed = chain(7)
    for broken in (signed[:2] + signed[3:], signed[1:], signed[::-1], []):
        with pytest.raises(VerificationError):
            follow(broken)
    # From a fork of what this silo knows.
    other = make_roster(4, epoch=5)
    with pytest.raises(VerificationError):
        follow(signed[2:], 5, other.sha256)
    with pytest.raises(VerificationError):
        follow(signed, 7, other.sha256)
    # An older state, though every link of it is good.
    with pytest.raises(VerificationError) as caught:
        follow(signed[:3], 7, signed[-1].roster.sha256)
    assert caught.value.check is Check.ROSTER_EPOCH


def test_colluders_do_not_get_in_step_by_step():
    """c colluders and the coordinator make a chain of their own; no step of it is accepted."""
    known = signed_roster(FIVE)
    mine = make_roster(6, epoch=4)
    first = approved(FIVE, mine, NAMES[:1])
    # In the second step they own the sixth silo too.
    second = approved(mine, make_roster(7, epoch=5), [NAMES[0], NAMES[5]])
    for steps in ([known, first], [known, first, second]):
        with pytest.raises(VerificationError) as caught:
            follow(steps, FIVE.epoch, FIVE.sha256)
        assert caught.value.check is Check.ROSTER_APPROVALS


def test_what_is_approvable_is_said_before_anybody_signs():
    require_approvable(FIVE, SIX)
    for roster in (FIVE, replace(SIX, epoch=5), replace(SIX, colluding=2)):
        with pytest.raises(VerificationError):
            approve_roster(FIVE, roster, NAMES[0], signing_key(NAMES[0]))


def test_approvals_are_bounded():
    for changes in ({"silo_id": "A"}, {"signature": bytes(63)}):
        with pytest.raises(MalformedMessageError):
            replace(RosterApproval(silo_id="a", signature=bytes(64)), **changes)
    message = roster_to_proto(approved(FIVE, SIX, NAMES[:4]))
    for number in range(201):
        message.approvals.add(silo_id=f"x{number:03d}", signature=bytes(64))
    with pytest.raises(MalformedMessageError, match="more than 200"):
        roster_from_proto(message)
