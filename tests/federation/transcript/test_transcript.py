"""A good transcript verifies, and each lie fails at the check that is named after it."""

from dataclasses import replace

import pytest

from chorale.v1 import transcript_pb2
from federation.errors import TranscriptCheck, TranscriptError
from federation.transcript.file import (
    MAX_FILE_BYTES,
    decode_transcript,
    encode_transcript,
    parse_transcript,
    transcript_from_proto,
    transcript_to_proto,
)
from federation.transcript.transcript import Outcome, verify_transcript
from secagg.descriptor import sign_descriptor
from secagg.suite import verification_key
from tests.kit.federation.records import resummed
from tests.kit.federation.transcript_changes import changed, leaves
from tests.kit.federation.transcripts import ROOT_PUBLIC_KEY, changed_sum, cut, released
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY, signing_key

C = TranscriptCheck
ALL = tuple(check for check in C if check is not C.FORMAT)
GOOD, TOTAL = released(5, 1, {"masked_input": ["silo-003"]})
LISTS = {
    "bundles": C.BUNDLES,
    "share_headers": C.SHARE_HEADERS,
    "upload_headers": C.UPLOAD_HEADERS,
    "agreements": C.AGREEMENTS,
}


def verify(transcript, *, root=ROOT_PUBLIC_KEY, total=None):
    return tuple(passed.check for passed in verify_transcript(transcript, root, total=total))


def fails(transcript, check, **options):
    """The named check fails, and every check before it has been made and holds."""
    before = []
    with pytest.raises(TranscriptError) as caught:
        before.extend(
            passed.check
            for passed in verify_transcript(
                transcript, options.get("root", ROOT_PUBLIC_KEY), total=options.get("total")
            )
        )
    assert caught.value.check is check
    assert str(caught.value).startswith(f"{check.value}: ")
    return before


def test_a_good_transcript_passes_every_check_in_order():
    assert verify(GOOD, total=TOTAL) == ALL
    assert verify(GOOD) == ALL[:-1]


@pytest.mark.parametrize(
    ("n", "c", "drops"),
    [
        (3, 1, {}),
        (4, 1, {"advertise_keys": ["silo-000"]}),
        (5, 1, {"share_keys": ["silo-004"]}),
        (10, 3, {"masked_input": ["silo-001"], "consistency_check": ["silo-002", "silo-009"]}),
    ],
)
def test_transcripts_with_losses_at_any_step_verify(n, c, drops):
    transcript, total = released(n, c, drops)
    assert verify(decode_transcript(encode_transcript(transcript)), total=total) == ALL


def test_the_file_and_the_message_carry_everything():
    assert decode_transcript(encode_transcript(GOOD)) == GOOD
    assert parse_transcript(transcript_to_proto(GOOD).SerializeToString()) == GOOD
    # For people and other programs: plain field names, digests in base64.
    text = encode_transcript(GOOD).decode()
    assert '"share_headers": [' in text
    assert text.count('"masked_sha256"') == 4


@pytest.mark.parametrize("phases", range(4))
def test_an_aborted_attempt_is_checked_as_far_as_it_came(phases):
    aborted = cut(GOOD, phases)
    passed = verify(decode_transcript(encode_transcript(aborted)))
    assert passed == ALL[: (2, 4, 6, 8)[phases]]
    fails(aborted, C.SUM, total=TOTAL)


def test_a_skipped_round_is_backed_by_a_record_that_says_so():
    parent = GOOD.parent
    record = replace(
        GOOD.record,
        kind="skipped",
        adapter_sha256=parent.adapter_sha256,
        parts=(),
    ).sign(COORDINATOR_KEY)
    skipped = replace(cut(GOOD, 3), outcome=Outcome.SKIPPED, record=record, parent=parent)
    assert verify(skipped) == (*ALL[:8], C.RECORD, C.PARENT)
    fails(skipped, C.SUM, total=TOTAL)
    fails(replace(skipped, record=GOOD.record), C.RECORD)
    fails(replace(GOOD, record=record), C.RECORD)


# Every field, one at a time ----------------------------------------------------------------------


def corrupted(path):
    message = transcript_to_proto(GOOD)
    holder = message
    for name, index in path[:-1]:
        holder = getattr(holder, name)
        holder = holder if index is None else holder[index]
    name, index = path[-1]
    if index is None:
        setattr(holder, name, changed(getattr(holder, name)))
    else:
        getattr(holder, name)[index] = changed(getattr(holder, name)[index])
    return message


PATHS = tuple(leaves(transcript_to_proto(GOOD)))


def test_the_walk_reaches_every_part_of_the_document():
    # Its roster is the root's; the approved one has a test of its own.
    assert {path[0][0] for path in PATHS} == {
        field.name for field in transcript_pb2.Transcript.DESCRIPTOR.fields
    } - {"earlier_rosters", "share_roots"}
    assert len(PATHS) > 250


@pytest.mark.parametrize("part", sorted({path[0][0] for path in PATHS}))
def test_each_single_field_corruption_fails_at_its_check(part):
    named = {
        "version": {C.FORMAT},
        "outcome": {C.FORMAT},
        "phases": {C.FORMAT},
        "roster": {C.ROSTER},
        "descriptor": {C.DESCRIPTOR},
        "bundles": {C.BUNDLES},
        "share_headers": {C.SHARE_HEADERS},
        # Whose upload it is, is checked before the signature.
        "upload_headers": {C.SURVIVORS, C.UPLOAD_HEADERS},
        "agreements": {C.AGREEMENTS},
        "record": {C.RECORD},
        "parent": {C.PARENT},
    }[part]
    for path in (path for path in PATHS if path[0][0] == part):
        if path[-1][0] == "suite" and path[0][0] in {"record", "parent"}:
            # Of suite v1 it is absent, which says what 1 says.
            continue
        with pytest.raises(TranscriptError) as caught:
            verify(transcript_from_proto(corrupted(path)), total=TOTAL)
        # A value out of its bounds is not even read.
        assert caught.value.check in named | {C.FORMAT}, path
        if path[-1][0] == "signature":
            assert caught.value.check in named, path


# Lies that are signed, or moved from elsewhere ---------------------------------------------------

OTHER, OTHER_TOTAL = released(5, 1, {"masked_input": ["silo-003"]}, seed="other")


def signed_record(**changes):
    return replace(GOOD, record=replace(GOOD.record, **changes).sign(COORDINATOR_KEY))


def signed_sum(**changes):
    return replace(GOOD, record=resummed(GOOD.record, **changes).sign(COORDINATOR_KEY))


def signed_descriptor(**changes):
    descriptor = replace(GOOD.descriptor.descriptor, **changes)
    return replace(GOOD, descriptor=sign_descriptor(descriptor, COORDINATOR_KEY))


def without(field, index):
    items = list(getattr(GOOD, field))
    del items[index]
    return replace(GOOD, **{field: tuple(items)})


def swapped(field):
    first, second, *rest = getattr(GOOD, field)
    return replace(GOOD, **{field: (second, first, *rest)})


def doubled(field):
    first, *rest = getattr(GOOD, field)
    return replace(GOOD, **{field: (first, first, *rest)})


LIES = {
    "another root": (GOOD, C.ROSTER, {"root": verification_key(signing_key("mallory"))}),
    "t lowered": (signed_descriptor(threshold=3), C.DESCRIPTOR, {}),
    "c lowered": (signed_descriptor(colluding=0), C.DESCRIPTOR, {}),
    "noise below its floor": (
        signed_descriptor(noise_mechanism="discrete_gaussian", noise_sigma=1.0),
        C.DESCRIPTOR,
        {},
    ),
    "cohort cut": (signed_descriptor(cohort=("silo-000", "silo-001")), C.DESCRIPTOR, {}),
    # D signed anew is another D: nobody's bundle is for it.
    "another D": (signed_descriptor(plan_sha256=b"q" * 32), C.BUNDLES, {}),
    "a bundle twice": (doubled("bundles"), C.BUNDLES, {}),
    "bundles out of order": (swapped("bundles"), C.BUNDLES, {}),
    # A silo left out changes ctx, which every later signature is over.
    "a bundle left out": (without("bundles", 4), C.SHARE_HEADERS, {}),
    "bundles of another attempt": (replace(GOOD, bundles=OTHER.bundles), C.SHARE_HEADERS, {}),
    "R1 of another attempt": (
        replace(GOOD, share_headers=OTHER.share_headers),
        C.SHARE_HEADERS,
        {},
    ),
    "an R1 header twice": (doubled("share_headers"), C.SHARE_HEADERS, {}),
    # A silo left out of U2 changes H(U2), which uploads are signed for.
    "an R1 header left out": (without("share_headers", 3), C.UPLOAD_HEADERS, {}),
    "an upload twice": (doubled("upload_headers"), C.SURVIVORS, {}),
    "uploads out of order": (swapped("upload_headers"), C.SURVIVORS, {}),
    "too few uploads": (
        replace(GOOD, upload_headers=GOOD.upload_headers[:3]),
        C.SURVIVORS,
        {},
    ),
    "uploads of another attempt": (
        replace(GOOD, upload_headers=OTHER.upload_headers),
        C.UPLOAD_HEADERS,
        {},
    ),
    "an agreement twice": (doubled("agreements"), C.AGREEMENTS, {}),
    "t - 1 agreements": (without("agreements", 0), C.AGREEMENTS, {}),
    "agreements of another attempt": (replace(GOOD, agreements=OTHER.agreements), C.AGREEMENTS, {}),
    "record not signed": (
        replace(GOOD, record=replace(GOOD.record, signature=bytes(64))),
        C.RECORD,
        {},
    ),
    "record signed by a silo": (
        replace(GOOD, record=GOOD.record.sign(signing_key("silo-000"))),
        C.RECORD,
        {},
    ),
    "record of another run": (signed_record(run_id="run-2"), C.RECORD, {}),
    "record of another round": (signed_record(round=5), C.RECORD, {}),
    "record of another plan": (signed_record(plan_sha256=b"q" * 32), C.RECORD, {}),
    "record of another base": (signed_record(base_model_sha256=b"q" * 32), C.RECORD, {}),
    "record leaves a survivor out": (
        signed_sum(survivors=GOOD.record.survivors[:3]),
        C.RECORD_SURVIVORS,
        {},
    ),
    "record adds a silo": (
        signed_sum(survivors=(*GOOD.record.survivors[:3], "silo-003", "silo-004")),
        C.RECORD_SURVIVORS,
        {},
    ),
    "record of another D": (signed_sum(descriptor_sha256=b"q" * 32), C.RECORD_DESCRIPTOR, {}),
    "record with another parent record": (
        signed_record(record_parent_sha256=b"q" * 32),
        C.PARENT,
        {},
    ),
    "record with another parent adapter": (signed_record(parent_sha256=b"q" * 32), C.PARENT, {}),
    "parent not signed": (
        replace(GOOD, parent=replace(GOOD.parent, signature=bytes(64))),
        C.PARENT,
        {},
    ),
    "record of another sum": (signed_sum(sum_sha256=b"q" * 32), C.SUM, {"total": TOTAL}),
    "another sum": (GOOD, C.SUM, {"total": changed_sum(TOTAL)}),
    "a sum cut short": (GOOD, C.SUM, {"total": TOTAL[:-4]}),
}


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_signed_lie_fails_at_its_check(lie):
    transcript, check, options = LIES[lie]
    before = fails(transcript, check, **options)
    assert before == list(ALL[: ALL.index(check)])


def test_an_aggregation_that_started_from_another_adapter_is_found():
    parent = replace(GOOD.parent, adapter_sha256=b"q" * 32, parent_sha256=b"q" * 32)
    parent = parent.sign(COORDINATOR_KEY)
    record = replace(GOOD.record, parent_sha256=b"q" * 32, record_parent_sha256=parent.sha256).sign(
        COORDINATOR_KEY
    )
    fails(replace(GOOD, parent=parent, record=record), C.PARENT)


# The file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"phases": 5},
        {"phases": 3},
        {"bundles": ()},
        {"agreements": ()},
        {"record": None},
        {"parent": None},
        {"outcome": Outcome.ABORTED},
        {"outcome": Outcome.RELEASED, "phases": 3, "agreements": ()},
    ],
)
def test_parts_that_cannot_belong_together_are_refused(change):
    with pytest.raises(TranscriptError) as caught:
        replace(GOOD, **change)
    assert caught.value.check is C.FORMAT


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff\xfe",
        b'{"version": 1, "unknown": 2}',
        b'{"version": 2}',
        b'{"version": 1, "outcome": "released"}',
        b"[" * 100_000,
        b'{"roster": ' * 1000,
    ],
    ids=range(9),
)
def test_what_is_no_transcript_is_a_typed_error(content):
    with pytest.raises(TranscriptError) as caught:
        decode_transcript(content)
    assert caught.value.check is C.FORMAT


def test_files_beyond_the_limit_are_not_parsed():
    with pytest.raises(TranscriptError, match="at most"):
        decode_transcript(b" " * (MAX_FILE_BYTES + 1))


def test_bytes_that_are_no_message_are_a_typed_error():
    with pytest.raises(TranscriptError) as caught:
        parse_transcript(b"\xff" * 40)
    assert caught.value.check is C.FORMAT


def test_an_attempt_whose_run_ended_shows_who_agreed_and_no_record():
    for phases in (3, 4):
        ended = replace(cut(GOOD, phases), outcome=Outcome.ENDED, record=None, parent=None)
        assert verify(decode_transcript(encode_transcript(ended))) == ALL[: 8 if phases == 3 else 9]
        fails(ended, C.SUM, total=TOTAL)
    for wrong in ({"record": GOOD.record, "parent": GOOD.parent}, {}):
        with pytest.raises(TranscriptError, match="format"):
            replace(cut(GOOD, 3 if wrong else 2), outcome=Outcome.ENDED, **wrong)
