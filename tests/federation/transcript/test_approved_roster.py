"""Transcripts of rounds under an approved roster, and what a member is shown before it approves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chorale.v1 import membership_pb2
from federation.errors import TranscriptCheck, TranscriptError
from federation.membership.roster_change import (
    RosterProposal,
    change_between,
    fingerprint,
    roster_proposal_from_proto,
)
from federation.transcript.file import transcript_from_proto, transcript_to_proto
from federation.transcript.transcript import verify_transcript
from secagg.errors import MalformedMessageError
from secagg.roster import SignedRoster, approve_roster
from secagg.suite import verification_key
from secagg.wire import roster_to_proto
from tests.kit.federation.transcript_changes import changed, leaves
from tests.kit.federation.transcripts import ROOT_PUBLIC_KEY, released
from tests.kit.secagg.secagg_samples import make_roster, signed_roster, signing_key

GOOD, _ = released(5, 1, {})
ROSTER = GOOD.roster.roster
BEFORE = replace(ROSTER, epoch=ROSTER.epoch - 1, entries=ROSTER.entries[:4])


def approved_transcript():
    """The same attempt, whose roster came about by three of four members and not by the root."""
    approvals = tuple(
        approve_roster(BEFORE, ROSTER, entry.silo_id, signing_key(entry.silo_id))
        for entry in BEFORE.entries[:3]
    )
    return replace(
        GOOD,
        roster=SignedRoster(roster=ROSTER, signature=b"", approvals=approvals),
        earlier_rosters=(signed_roster(BEFORE),),
    )


def check(transcript):
    return [passed.check for passed in verify_transcript(transcript, ROOT_PUBLIC_KEY)]


def test_a_transcript_carries_how_its_roster_came_about():
    transcript = approved_transcript()
    assert transcript_from_proto(transcript_to_proto(transcript)) == transcript
    assert check(transcript) == check(GOOD)
    for broken in (
        replace(transcript, earlier_rosters=()),
        replace(
            transcript, roster=replace(transcript.roster, approvals=transcript.roster.approvals[:2])
        ),
        replace(transcript, earlier_rosters=(signed_roster(make_roster(4, epoch=1)),)),
    ):
        with pytest.raises(TranscriptError) as caught:
            check(broken)
        assert caught.value.check is TranscriptCheck.ROSTER


def test_every_field_of_the_rosters_is_covered():
    good = transcript_to_proto(approved_transcript())
    paths = [path for path in leaves(good) if path[0][0] in {"roster", "earlier_rosters"}]
    assert len(paths) > 30
    for path in paths:
        message = type(good)()
        message.CopyFrom(good)
        holder = message
        for name, index in path[:-1]:
            holder = getattr(holder, name)
            holder = holder if index is None else holder[index]
        name, _index = path[-1]
        setattr(holder, name, changed(getattr(holder, name)))
        with pytest.raises(TranscriptError) as caught:
            check(transcript_from_proto(message))
        assert caught.value.check in {TranscriptCheck.ROSTER, TranscriptCheck.FORMAT}, path


def test_a_transcript_has_a_bounded_history():
    message = transcript_to_proto(approved_transcript())
    for _ in range(33):
        message.earlier_rosters.add().CopyFrom(message.earlier_rosters[0])
    with pytest.raises(TranscriptError) as caught:
        transcript_from_proto(message)
    assert caught.value.check is TranscriptCheck.FORMAT


def test_a_member_is_shown_every_change_with_fingerprints():
    before, after = make_roster(4, epoch=3), make_roster(5, epoch=4)
    new_key = verification_key(signing_key("new"))
    entries = (replace(after.entries[0], verification_key=new_key), *after.entries[2:])
    change = change_between(before, replace(after, entries=entries, colluding=2))
    assert (change.added, change.removed, change.rekeyed) == (
        ("silo-004",),
        ("silo-001",),
        ("silo-000",),
    )
    text = "\n".join(change.lines)
    assert fingerprint(new_key) in text
    assert fingerprint(after.entries[4].verification_key) in text
    assert "epoch 3 -> 4, 4 -> 4 silos" in text
    assert "may collude (c): 1 -> 2   CHANGED" in text
    other = change_between(
        before, replace(before, epoch=4, coordinator_key=new_key, federation="x")
    )
    assert sum("CHANGED" in line for line in other.lines) == 2
    assert "the members stay as they are" in other.lines
    uri = replace(before.entries[0], spiffe_uri="spiffe://example.org/silo/elsewhere")
    moved = change_between(before, replace(before, entries=(uri, *before.entries[1:])))
    assert moved.rekeyed == ("silo-000",)
    assert "elsewhere" in "\n".join(moved.lines)


def test_a_coordinators_word_about_a_proposal_is_bounded():
    assert roster_proposal_from_proto(membership_pb2.GetRosterProposalResponse()) is None
    roster = make_roster(4)
    unsigned = roster_to_proto(signed_roster(roster))
    unsigned.signature = b""
    message = membership_pb2.GetRosterProposalResponse(
        roster=unsigned, approvals_needed=3, approved_by=["silo-000"]
    )
    assert roster_proposal_from_proto(message) == RosterProposal(
        roster=roster, needed=3, approved_by=("silo-000",)
    )
    for changes in (
        {"roster": roster_to_proto(signed_roster(roster))},
        {"approvals_needed": 201},
        {"approved_by": ["Not\x1b[31m an id"]},
        {"approved_by": ["a"] * 201},
    ):
        fields = {"roster": unsigned, "approvals_needed": 3, "approved_by": [], **changes}
        with pytest.raises(MalformedMessageError):
            roster_proposal_from_proto(membership_pb2.GetRosterProposalResponse(**fields))
