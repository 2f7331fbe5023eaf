"""The roster: root signature, epoch, unique members."""

from dataclasses import replace

import pytest

from secagg import suite
from secagg.errors import Check, MalformedMessageError, VerificationError
from secagg.roster import SignedRoster, root_key_sha256, sign_roster, verify_roster
from tests.kit.secagg.ed25519_keys import SMALL, UNREDUCED
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY, ROOT_KEY, make_roster, signed_roster

_ROOT = suite.verification_key(ROOT_KEY)


def test_a_signed_roster_is_accepted():
    roster = make_roster()
    assert verify_roster(signed_roster(roster), _ROOT, 0) == roster
    assert roster.entry("silo-001").silo_id == "silo-001"
    assert roster.entry("stranger") is None
    assert len(root_key_sha256(_ROOT)) == 32


@pytest.mark.parametrize("signer", [COORDINATOR_KEY])
def test_the_coordinator_cannot_sign_a_roster(signer):
    with pytest.raises(VerificationError) as caught:
        verify_roster(sign_roster(make_roster(), signer), _ROOT, 0)
    assert caught.value.check is Check.ROSTER_SIGNATURE


@pytest.mark.parametrize(
    "changes", [{"federation": "other"}, {"epoch": 4}, {"colluding": 2}, {"entries": None}]
)
def test_every_field_is_signed(changes):
    signed = signed_roster(make_roster())
    if "entries" in changes:
        changes = {"entries": signed.roster.entries[:-1]}
    altered = replace(signed, roster=replace(signed.roster, **changes))
    with pytest.raises(VerificationError) as caught:
        verify_roster(altered, _ROOT, 0)
    assert caught.value.check is Check.ROSTER_SIGNATURE


def test_an_old_epoch_is_refused():
    signed = signed_roster(make_roster(epoch=3))
    for last_epoch in (3, 4):
        with pytest.raises(VerificationError) as caught:
            verify_roster(signed, _ROOT, last_epoch)
        assert caught.value.check is Check.ROSTER_EPOCH


def test_only_the_same_roster_is_accepted_again():
    roster = make_roster(epoch=3)
    assert verify_roster(signed_roster(roster), _ROOT, 3, roster.sha256) == roster
    other = make_roster(n=4, epoch=3)
    with pytest.raises(VerificationError) as caught:
        verify_roster(signed_roster(other), _ROOT, 3, roster.sha256)
    assert caught.value.check is Check.ROSTER_EPOCH
    with pytest.raises(VerificationError):
        verify_roster(signed_roster(roster), _ROOT, 4, roster.sha256)


def _twin(roster, **changes):
    first, second, *rest = roster.entries
    return replace(roster, entries=(first, replace(second, **changes), *rest))


def test_members_are_unique_and_ordered():
    roster = make_roster()
    first = roster.entries[0]
    for changes in (
        {"silo_id": first.silo_id},
        {"spiffe_uri": first.spiffe_uri},
        {"verification_key": first.verification_key},
        {"verification_key": roster.coordinator_key},
    ):
        with pytest.raises(MalformedMessageError):
            _twin(roster, **changes)
    with pytest.raises(MalformedMessageError):
        replace(roster, entries=roster.entries[::-1])


@pytest.mark.parametrize(
    "changes",
    [
        {"silo_id": "Silo"},
        {"silo_id": "-silo"},
        {"silo_id": ""},
        {"silo_id": "a" * 64},
        {"silo_id": "silo\n"},
        {"spiffe_uri": "https://example.org/silo"},
        {"spiffe_uri": "spiffe://example.org"},
        {"verification_key": bytes(31)},
    ],
)
def test_entries_are_bounded(changes):
    with pytest.raises(MalformedMessageError):
        replace(make_roster().entries[0], **changes)


@pytest.mark.parametrize("key", [SMALL[0], SMALL[1], SMALL[-1], UNREDUCED[3]], ids=bytes.hex)
def test_nobody_is_in_a_roster_by_a_key_that_anybody_can_sign_for(key):
    """Neither a silo nor the coordinator, whoever signed the roster."""
    roster = make_roster()
    with pytest.raises(MalformedMessageError, match="roster key of silo-000 is of small order"):
        replace(roster.entries[0], verification_key=key)
    with pytest.raises(MalformedMessageError, match="coordinator_key is of small order"):
        replace(roster, coordinator_key=key)


def test_a_root_key_that_anybody_can_sign_for_signed_nothing():
    """The neutral element as the pinned root: this signature holds for every roster, in OpenSSL."""
    neutral = (1).to_bytes(32, "little")
    forged = SignedRoster(roster=make_roster(), signature=neutral + bytes(32))
    with pytest.raises(VerificationError) as caught:
        verify_roster(forged, neutral, last_epoch=0)
    assert caught.value.check is Check.ROSTER_SIGNATURE


@pytest.mark.parametrize("changes", [{"epoch": 0}, {"colluding": 0}, {"entries": ()}])
def test_rosters_are_bounded(changes):
    with pytest.raises(MalformedMessageError):
        replace(make_roster(), **changes)
