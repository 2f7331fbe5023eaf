"""What the store keeps of an attempt is a transcript that anyone can verify."""

import asyncio

import numpy as np
import pytest

from federation.chain.groups import groups_of
from federation.errors import TranscriptCheck
from federation.transcript.file import decode_transcript, encode_transcript
from federation.transcript.transcript import Outcome, verify_transcript
from secagg.suite import verification_key
from server.attempt.transcripts import build_transcript
from server.errors import NotPublishedError
from server.figures import Phase
from server.run import attempts
from tests.kit.secagg.secagg_samples import ROOT_KEY, silo_names
from tests.kit.server import world as sw

NAMES = silo_names(4)
ROOT = verification_key(ROOT_KEY)


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path) as made:
        yield made


def verified(transcript, total=None):
    again = decode_transcript(encode_transcript(transcript))
    assert again == transcript
    return [passed.check for passed in verify_transcript(again, ROOT, total=total)]


def exported(world, run_id, round_number, **which):
    transcript = build_transcript(world.store, run_id, round_number, **which)
    total = None
    if transcript.record is not None and transcript.record.sum_sha256:
        total = world.context.blobs.get(transcript.record.sum_sha256)
    return transcript, verified(transcript, total)


def test_each_round_of_a_run_has_a_transcript_that_verifies(world):
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=2)))
    for round_number in (1, 2):
        transcript, passed = exported(world, run_id, round_number)
        assert transcript.outcome is Outcome.RELEASED
        assert passed == [check for check in TranscriptCheck if check != "format"]
        assert transcript.record == world.store.records.list(run_id)[round_number]
        assert [bundle.silo_id for bundle in transcript.bundles] == list(NAMES)
        assert len(transcript.agreements) == 4
    # Shares and ciphertexts are nobody's to keep.
    content = encode_transcript(transcript)
    assert b'"share"' not in content
    assert b'"ciphertext"' not in content


def test_each_step_of_a_round_has_a_transcript_that_verifies(world):
    run_id = asyncio.run(world.run(sw.stepped_toml(steps=2, rounds=2)))
    records = world.store.records.list(run_id)
    for position, (round_number, step) in enumerate([(1, 0), (1, 1), (2, 0), (2, 1)], start=1):
        transcript, passed = exported(world, run_id, round_number, step=step)
        assert transcript.record == records[position]
        assert transcript.descriptor.descriptor.identity.step == step
        assert passed[-1] is TranscriptCheck.SUM


def test_each_sum_of_a_round_has_a_transcript_of_its_own(tmp_path):
    """Four groups, one quarantined: it released nothing though its step has a record of sums."""
    table = b"[aggregation.groups]\ncount = 4\n[privacy]\n"
    plan = sw.plan_toml(mode="silo", noise=0.001).replace(b"[privacy]\n", table)

    async def main(world):
        run_id = await world.conductor.start_run(plan, sw.INITIAL, "t")
        groups = groups_of(
            world.silos, 4, run_id=run_id, round_number=1,
            roster_sha256=world.roster.roster.sha256,
        )  # fmt: skip
        loud = np.full(sw.DIMENSION + 3, 2**28, dtype=np.uint32)
        world.silos[groups[2][0]].poison = loud
        await world.ended()
        return run_id, groups

    with sw.World(tmp_path, silos=12) as world:
        run_id, groups = asyncio.run(main(world))
        (record,) = world.store.records.list(run_id)[1:]
        with pytest.raises(NotPublishedError, match=r"4 sums, .*: say --part 0 or 1 or 2 or 3"):
            build_transcript(world.store, run_id, 1)
        with pytest.raises(NotPublishedError, match="no part 4"):
            build_transcript(world.store, run_id, 1, part=4)
        for part, group in enumerate(groups):
            transcript = build_transcript(world.store, run_id, 1, part=part)
            assert transcript.descriptor.descriptor.identity.part == part
            named = record.part_of(part)
            total = None if named is None else world.context.blobs.get(named.sum_sha256)
            last = verified(transcript, total)[-1]
            assert tuple(header.silo_id for header in transcript.upload_headers) == group
            ends = (Outcome.SKIPPED, TranscriptCheck.PARENT)
            assert (transcript.outcome, last) == (
                ends if part == 2 else (Outcome.RELEASED, TranscriptCheck.SUM)
            )


@pytest.mark.parametrize(
    ("die_at", "sizes"),
    [
        ("advertise_keys", (3, 3, 3, 3)),
        ("share_keys", (4, 3, 3, 3)),
        ("upload", (4, 4, 3, 3)),
        ("check_consistency", (4, 4, 4, 3)),
        ("unmask", (4, 4, 4, 4)),
    ],
)
def test_losses_show_in_the_transcript_and_it_verifies(world, die_at, sizes):
    world.silos[NAMES[3]].die_at = (die_at, 1)
    run_id = asyncio.run(world.run(sw.plan_toml()))
    transcript, passed = exported(world, run_id, 1)
    lists = ("bundles", "r1", "upload_headers", "agreements")
    assert tuple(len(getattr(transcript, name)) for name in lists) == sizes
    assert passed[-1] is TranscriptCheck.SUM


@pytest.mark.parametrize(
    ("die_at", "phases"), [("advertise_keys", 0), ("share_keys", 1), ("upload", 2)]
)
def test_an_aborted_attempt_is_kept_beside_the_one_that_followed(world, die_at, phases):
    """Two of four die: too few to go on, and both come back for the second attempt."""
    for name in NAMES[2:]:
        world.silos[name].die_at = (die_at, 1)

    def come_back():
        for name in NAMES[2:]:
            if world.silos[name].dead and world.driver.current.attempt == 2:
                world.silos[name].come_back()

    world.before_wait = come_back
    run_id = asyncio.run(world.run(sw.plan_toml(spare=1)))
    aborted, passed = exported(world, run_id, 1, attempt=1)
    assert (aborted.outcome, aborted.phases) == (Outcome.ABORTED, phases)
    assert aborted.record is None
    assert len(passed) == (2, 4, 6)[phases]
    released, passed = exported(world, run_id, 1)
    assert released.outcome is Outcome.RELEASED
    assert released.descriptor.descriptor.identity.attempt == 2
    assert passed[-1] is TranscriptCheck.SUM


def test_a_skipped_round_keeps_what_was_agreed(world):
    """Two die before R4: the sum stays masked for good, and the record says so."""
    for name in NAMES[2:]:
        world.silos[name].die_at = ("unmask", 1)
    run_id = asyncio.run(world.run(sw.plan_toml()))
    transcript, passed = exported(world, run_id, 1)
    assert (transcript.outcome, transcript.phases) == (Outcome.SKIPPED, 4)
    assert passed[-3:] == [
        TranscriptCheck.AGREEMENTS,
        TranscriptCheck.RECORD,
        TranscriptCheck.PARENT,
    ]


def test_what_never_was_is_a_typed_error(world):
    run_id = asyncio.run(world.run(sw.plan_toml()))
    for arguments in (("run-x", 1), (run_id, 2), (run_id, 0)):
        with pytest.raises(NotPublishedError):
            build_transcript(world.store, *arguments)
    for which in ({"attempt": 2}, {"step": 1}):
        with pytest.raises(NotPublishedError):
            build_transcript(world.store, run_id, 1, **which)


@pytest.mark.parametrize("how", ["failed", "aborted"])
def test_an_attempt_whose_run_ended_after_survivors_were_declared_has_no_record(
    world, monkeypatch, how
):
    """Nothing is signed that closes its round, and the transcript says so."""

    def broken(**_):
        raise ZeroDivisionError

    unmasking = asyncio.Event()

    def before_wait():
        if world.driver.current.phase is Phase.UNMASK:
            unmasking.set()

    world.before_wait = before_wait

    async def scenario():
        run_id = await world.conductor.start_run(sw.plan_toml(), sw.INITIAL, "t")
        if how == "aborted":
            await asyncio.wait_for(unmasking.wait(), 10)
            await world.conductor.abort_run(run_id)
        else:
            await world.ended()
        return run_id

    monkeypatch.setattr(attempts, "aggregate", broken)
    run_id = asyncio.run(scenario())
    transcript, passed = exported(world, run_id, 1)
    assert transcript.outcome is Outcome.ENDED
    assert transcript.record is None
    assert passed[-1] is TranscriptCheck.AGREEMENTS
    assert str(transcript.outcome) == "ended_without_record"
