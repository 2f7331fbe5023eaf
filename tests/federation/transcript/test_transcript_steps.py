"""Transcripts of later steps: D, the record and its parent agree on round and step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from federation.errors import TranscriptCheck, TranscriptError
from federation.transcript.file import decode_transcript, encode_transcript
from federation.transcript.transcript import verify_transcript
from secagg.suite import verification_key
from tests.kit.federation.transcripts import released
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY, ROOT_KEY

ROOT = verification_key(ROOT_KEY)
IDENTITY = {"run_id": "run-1", "round": 4, "step": 2, "part": 0, "attempt": 1}


def at(transcript, place, parent_place):
    """The transcript with a signed record and parent of these places, linked to each other."""
    parent = replace(transcript.parent, round=parent_place[0], step=parent_place[1])
    parent = parent.sign(COORDINATOR_KEY)
    record = replace(
        transcript.record, round=place[0], step=place[1], record_parent_sha256=parent.sha256
    )
    return replace(transcript, record=record.sign(COORDINATOR_KEY), parent=parent)


SAMPLE, TOTAL = released(4, 1, identity=IDENTITY)
GOOD = at(SAMPLE, (4, 2), (4, 1))


def test_a_later_step_verifies_and_the_file_keeps_it():
    again = decode_transcript(encode_transcript(GOOD))
    assert again == GOOD
    passed = list(verify_transcript(again, ROOT, total=TOTAL))
    assert passed[-1].check is TranscriptCheck.SUM
    details = {item.check: item.detail for item in passed}
    assert "round 4 step 2 attempt 1" in details[TranscriptCheck.DESCRIPTOR]
    assert details[TranscriptCheck.RECORD] == "round 4 step 2 was aggregated"
    assert details[TranscriptCheck.PARENT].startswith("round 4 step 1, ")


def test_the_record_of_another_step_is_refused():
    for place, parent in (((4, 1), (4, 0)), ((4, 3), (4, 2)), ((4, 0), (3, 5))):
        with pytest.raises(TranscriptError) as caught:
            list(verify_transcript(at(SAMPLE, place, parent), ROOT))
        assert caught.value.check is TranscriptCheck.RECORD
        assert "step" in str(caught.value)


@pytest.mark.parametrize("parent", [(4, 0), (4, 2), (3, 1), (3, 9)])
def test_a_step_follows_the_step_before_it(parent):
    with pytest.raises(TranscriptError) as caught:
        list(verify_transcript(at(SAMPLE, (4, 2), parent), ROOT))
    assert caught.value.check is TranscriptCheck.PARENT


def test_a_first_step_follows_the_last_one_of_the_round_before_whatever_it_was():
    first, total = released(4, 1, identity=IDENTITY | {"step": 0})
    for parent in ((3, 0), (3, 7)):
        list(verify_transcript(at(first, (4, 0), parent), ROOT, total=total))
    for parent in ((2, 0), (4, 1)):
        with pytest.raises(TranscriptError) as caught:
            list(verify_transcript(at(first, (4, 0), parent), ROOT))
        assert caught.value.check is TranscriptCheck.PARENT
