"""One attempt, closed phase by phase, with real silos' protocol states and signatures."""

from dataclasses import replace

import numpy as np
import pytest

from secagg import client
from secagg.errors import Check, SecAggError, VerificationError
from secagg.server import CollectUnmasking
from server.attempt.accumulator import Accumulator
from server.attempt.attempt import Attempt
from server.errors import (
    TooFewSilosError,
    UploadError,
    WrongPhaseError,
    WrongRoundError,
)
from server.figures import STEPS, Phase
from tests.kit.secagg.secagg_samples import signed_descriptor
from tests.kit.server.memory_journal import MemoryJournal
from tests.kit.server.played import NAMES, Played


@pytest.mark.parametrize("step", [None, *STEPS])
def test_the_sum_is_that_of_the_survivors_whoever_drops_where(played, step):
    attempt = played.attempt
    for phase in STEPS:
        assert attempt.phase is phase
        assert attempt.deadline_unix_s() == 1000 + 100 * STEPS.index(phase)
        played.step(*(NAMES[4:] if step is phase else ()))
        if phase is not STEPS[-1]:
            attempt.close_phase()
    early = step in STEPS[:3]
    survivors = NAMES[:4] if early else NAMES
    assert attempt.survivors == survivors
    np.testing.assert_array_equal(played.total(), played.cohort.expected(survivors))
    assert attempt.dropped == ({} if step is None else {NAMES[4]: step})
    assert attempt.received_bytes == len(survivors) * 4 * attempt.descriptor.descriptor.words
    if step is not None and step is not STEPS[-1]:
        # Told that it is out, and not waited for.
        assert played.message(NAMES[4]) is None
    assert NAMES[4] not in attempt.waiting_for


@pytest.mark.parametrize("step", STEPS)
def test_with_too_few_answers_a_phase_cannot_close(played, step):
    attempt = played.until(step).attempt
    played.step(*NAMES[3:])
    close = attempt.unmask if step is STEPS[-1] else attempt.close_phase
    # n = 5 and c = 1 need four.
    with pytest.raises(TooFewSilosError, match=step.value):
        close()
    assert attempt.phase is step
    assert attempt.dropped == {}
    assert attempt.may_retry is (step in STEPS[:3])
    # A late answer still lets it close.
    played.act(NAMES[3])
    if step is STEPS[-1]:
        np.testing.assert_array_equal(played.total(), played.cohort.expected(NAMES))
    else:
        attempt.close_phase()
        assert attempt.phase is STEPS[STEPS.index(step) + 1]


def test_messages_of_another_phase_or_identity_change_nothing(played, tmp_path):
    attempt = played.until(Phase.SHARE_KEYS).attempt
    other = Played(
        tmp_path / "other",
        identity={"run_id": "run-1", "round": 5, "step": 0, "part": 0, "attempt": 0},
    )
    bundle = client.begin(played.cohort.setup(NAMES[0]))[1]
    # The same bundle again is a lost answer; another one comes too late.
    attempt.receive_bundle(played.identity, bundle)
    with pytest.raises(WrongPhaseError, match="share_keys"):
        attempt.receive_bundle(played.identity, replace(bundle, ledger_seq=99))
    with pytest.raises(WrongPhaseError):
        attempt.upload_offset(played.identity, NAMES[0])
    state, boxes = played.states[NAMES[0]].handle(played.message(NAMES[0]))
    with pytest.raises(WrongRoundError):
        attempt.receive_boxes(other.identity, boxes)
    assert attempt.waiting_for == frozenset(NAMES)
    attempt.receive_boxes(played.identity, boxes)
    # The same again is a lost answer, not an attack.
    attempt.receive_boxes(played.identity, boxes)
    assert attempt.waiting_for == frozenset(NAMES[1:])
    played.states[NAMES[0]] = state
    other.attempt.close()
    with pytest.raises(WrongPhaseError, match="nothing to unmask"):
        attempt.unmask()


def test_the_last_phase_ends_with_unmask(played):
    played.until(Phase.UNMASK).step()
    with pytest.raises(WrongPhaseError, match="unmask"):
        played.attempt.close_phase()


def test_a_descriptor_that_silos_would_refuse_opens_nothing(played, tmp_path):
    descriptor = replace(played.cohort.descriptor.descriptor, threshold=2)
    with pytest.raises(SecAggError):
        Attempt(
            descriptor=signed_descriptor(descriptor),
            roster=played.cohort.roster,
            families={},
            accumulator=Accumulator(tmp_path / "other", length=3),
            journal=MemoryJournal(),
        )


# Uploads -----------------------------------------------------------------------------------------


def test_an_upload_resumes_and_is_counted_once(uploading):
    attempt, identity = uploading.attempt, uploading.identity
    header, content = uploading.masked[NAMES[0]]
    assert attempt.upload_offset(identity, NAMES[0]) == 0
    first = attempt.open_upload(identity, header)
    first.append(0, content[:10])
    assert attempt.upload_offset(identity, NAMES[0]) == 10
    assert attempt.open_upload(identity, header) is first
    first.append(10, content[10:])
    attempt.fold_upload(identity, NAMES[0])
    attempt.fold_upload(identity, NAMES[0])
    assert attempt.upload_offset(identity, NAMES[0]) == len(content)
    assert attempt.received_bytes == len(content)
    with pytest.raises(WrongPhaseError, match="complete"):
        attempt.open_upload(identity, header)
    uploading.step()
    attempt.close_phase()
    uploading.until(Phase.UNMASK).step()
    np.testing.assert_array_equal(uploading.total(), uploading.cohort.expected(NAMES))


def test_altered_bytes_start_again_and_never_enter_the_sum(uploading):
    attempt, identity = uploading.attempt, uploading.identity
    header, content = uploading.masked[NAMES[0]]
    upload = attempt.open_upload(identity, header)
    upload.append(0, bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(UploadError, match="signed digest"):
        attempt.fold_upload(identity, NAMES[0])
    assert attempt.upload_offset(identity, NAMES[0]) == 0
    assert NAMES[0] in attempt.waiting_for
    uploading.send(NAMES[0])
    assert NAMES[0] not in attempt.waiting_for


def test_a_second_different_upload_is_refused(uploading):
    header, _ = uploading.masked[NAMES[0]]
    uploading.attempt.open_upload(uploading.identity, header)
    from dataclasses import replace

    with pytest.raises((SecAggError, WrongPhaseError)):
        uploading.attempt.open_upload(uploading.identity, replace(header, masked_sha256=bytes(32)))


def test_a_late_upload_is_refused_and_leaves_the_sum_alone(uploading):
    attempt, identity = uploading.attempt, uploading.identity
    header, content = uploading.masked[NAMES[0]]
    upload = attempt.open_upload(identity, header)
    upload.append(0, content[:10])
    uploading.step(NAMES[0])
    attempt.close_phase()
    assert attempt.survivors == NAMES[1:]
    upload.append(10, content[10:])
    for late in (
        lambda: attempt.fold_upload(identity, NAMES[0]),
        lambda: attempt.open_upload(identity, header),
    ):
        with pytest.raises(WrongPhaseError):
            late()
    uploading.until(Phase.UNMASK).step()
    np.testing.assert_array_equal(uploading.total(), uploading.cohort.expected(NAMES[1:]))


def test_a_wrong_share_is_survived_and_a_result_is_memory_of_its_own(played):
    played.until(Phase.UNMASK)
    played.step()
    assert isinstance(played.attempt._state, CollectUnmasking)
    total = played.attempt.unmask()
    played.attempt.close()
    np.testing.assert_array_equal(
        total.view(np.int32).astype(np.int64), played.cohort.expected(NAMES)
    )


def test_a_bundle_of_other_families_than_the_silo_was_ready_with_names_it_and_changes_nothing(
    played,
):
    attempt, liar = played.attempt, NAMES[0]
    setup = played.cohort.setup(liar)
    _, lie = client.begin(replace(setup, families=()))
    with pytest.raises(VerificationError) as caught:
        attempt.receive_bundle(played.identity, lie)
    assert (caught.value.check, caught.value.silo) == (Check.METRICS_FAMILIES, liar)
    assert liar in attempt.waiting_for
    assert played.journal.rows == []
    played.step(liar)
    attempt.close_phase()
    assert attempt.dropped == {liar: Phase.ADVERTISE_KEYS}
