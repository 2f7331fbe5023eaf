"""Transcripts of suite v2: verified to the end, and each lie ends at the check named after it."""

from dataclasses import replace

import pytest

from federation.errors import TranscriptCheck as C
from federation.errors import TranscriptError
from federation.transcript.file import (
    decode_transcript,
    encode_transcript,
    transcript_from_proto,
    transcript_to_proto,
)
from federation.transcript.transcript import verify_transcript
from secagg import suite
from secagg.descriptor import sign_descriptor
from secagg.messages import DebitHead
from secagg.transcript import context, members
from tests.kit.federation.records import one_sum, resummed
from tests.kit.federation.transcripts import ROOT_PUBLIC_KEY, cut, released
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY, signing_key

ALL = tuple(check for check in C if check is not C.FORMAT)
GOOD, TOTAL = released(5, 1, {"masked_input": ["silo-003"]}, suite=2)
OTHER, _ = released(5, 1, {"masked_input": ["silo-003"]}, suite=2, seed="other")
V1, _ = released(4, 1)


def verify(transcript, total=TOTAL):
    found = verify_transcript(transcript, ROOT_PUBLIC_KEY, total=total)
    return tuple(passed.check for passed in found)


def resigned(**changes):
    """The first upload's header with other contents, under its silo's own signature."""
    descriptor = GOOD.descriptor.descriptor
    u2 = members(context(descriptor, GOOD.bundles), GOOD.share_roots)
    header = replace(GOOD.upload_headers[0], **changes)
    signed = header.signed_bytes(u2.ctx, u2.sha256)
    header = replace(header, signature=suite.sign(signing_key(header.silo_id), signed))
    return replace(GOOD, upload_headers=(header, *GOOD.upload_headers[1:]))


def test_it_verifies_as_a_file_too():
    assert verify(decode_transcript(encode_transcript(GOOD))) == ALL
    assert transcript_to_proto(GOOD).version == 2
    for phases in range(4):
        aborted = decode_transcript(encode_transcript(cut(GOOD, phases)))
        assert verify(aborted, None) == ALL[: (2, 4, 6, 8)[phases]]


def named(record):
    return replace(GOOD, record=record.sign(COORDINATOR_KEY))


LIES = {
    "a root of another attempt": (
        replace(GOOD, share_roots=(OTHER.share_roots[0], *GOOD.share_roots[1:])),
        C.SHARE_HEADERS,
    ),
    "a root over fewer leaves": (
        replace(
            GOOD, share_roots=(replace(GOOD.share_roots[0], leaf_count=3), *GOOD.share_roots[1:])
        ),
        C.SHARE_HEADERS,
    ),
    "a charge that does not rise": (
        resigned(debit=DebitHead(seq=GOOD.bundles[0].ledger_seq, sha256=bytes(32))),
        C.UPLOAD_HEADERS,
    ),
    "a rejection by who is dealt nothing": (resigned(rejected=("silo-004",)), C.UPLOAD_HEADERS),
    "a record of another part": (
        named(replace(GOOD.record, parts=one_sum(part=1, survivors=GOOD.record.survivors))),
        C.RECORD_SURVIVORS,
    ),
    "a record of another suite": (named(replace(GOOD.record, suite=1)), C.RECORD),
    "a record of another sum": (named(resummed(GOOD.record, sum_sha256=bytes(32))), C.SUM),
}


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_lie_ends_at_its_check(lie):
    transcript, check = LIES[lie]
    passed = []
    with pytest.raises(TranscriptError) as caught:
        passed.extend(
            one.check for one in verify_transcript(transcript, ROOT_PUBLIC_KEY, total=TOTAL)
        )
    assert caught.value.check is check


def test_too_few_declarers_of_the_plans_families_end_it():
    """The coordinator's states would not have gone on; an auditor counts again."""
    with pytest.raises(TranscriptError, match="contributors") as caught:
        verify(_with_plan_of("wordle"), None)
    assert caught.value.check is C.BUNDLES


def _with_plan_of(family):
    """A transcript whose D names a family that nobody declares, signed by everybody again."""
    descriptor = replace(GOOD.descriptor.descriptor, families=(family,))
    bundles = tuple(
        replace(
            bundle,
            signature=suite.sign(
                signing_key(bundle.silo_id), bundle.signed_bytes(descriptor.sha256)
            ),
        )
        for bundle in GOOD.bundles
    )
    return replace(
        cut(GOOD, 1), descriptor=sign_descriptor(descriptor, COORDINATOR_KEY), bundles=bundles
    )


def test_r1_has_the_form_of_its_suite():
    for changes in ({"share_headers": V1.share_headers}, {"share_roots": ()}):
        with pytest.raises(TranscriptError):
            replace(GOOD, **changes)
    with pytest.raises(TranscriptError):
        replace(V1, share_roots=GOOD.share_roots)
    message = transcript_to_proto(GOOD)
    message.version = 1
    with pytest.raises(TranscriptError, match="version"):
        transcript_from_proto(message)
