"""Attempts of suite v2: leaves instead of boxes, and uploads that open with their leaf list."""

import numpy as np
import pytest

from secagg.errors import Check, VerificationError
from server.errors import WrongPhaseError
from server.figures import STEPS, Phase
from tests.kit.server.played import NAMES, Played


@pytest.fixture
def played(tmp_path):
    made = Played(tmp_path, suite=2)
    yield made
    made.attempt.close()


@pytest.fixture
def uploading(played):
    return played.masking()


def finish(played):
    played.step()
    played.attempt.close_phase()
    played.until(Phase.UNMASK).step()
    return played.total()


@pytest.mark.parametrize("step", [None, *STEPS])
def test_the_sum_is_that_of_the_survivors_whoever_drops_where(played, step):
    for phase in STEPS:
        played.step(*(NAMES[4:] if step is phase else ()))
        if phase is not STEPS[-1]:
            played.attempt.close_phase()
    survivors = NAMES[:4] if step in STEPS[:3] else NAMES
    assert played.attempt.survivors == survivors
    np.testing.assert_array_equal(played.total(), played.cohort.expected(survivors))


@pytest.mark.parametrize("change", [lambda x: b"", lambda x: x[:-1], lambda x: bytes(len(x))])
def test_an_upload_without_its_leaf_list_is_refused_and_may_come_again(uploading, change):
    attempt, identity = uploading.attempt, uploading.identity
    header, content = uploading.masked[NAMES[0]]
    leaves = uploading.leaves[NAMES[0]]
    with pytest.raises(VerificationError) as refused:
        attempt.open_upload(identity, header, change(leaves)).append(0, content)
    assert (refused.value.check, refused.value.silo) == (Check.DIGEST_LEAF, NAMES[0])
    assert attempt.upload_offset(identity, NAMES[0]) == 0
    uploading.send(NAMES[0])
    np.testing.assert_array_equal(finish(uploading), uploading.cohort.expected(NAMES))


def test_altered_bytes_are_refused_at_their_chunk(uploading):
    attempt, identity = uploading.attempt, uploading.identity
    header, content = uploading.masked[NAMES[0]]
    upload = attempt.open_upload(identity, header, uploading.leaves[NAMES[0]])
    with pytest.raises(VerificationError) as refused:
        upload.append(0, bytes([content[0] ^ 1]) + content[1:])
    assert (refused.value.check, refused.value.silo) == (Check.DIGEST_LEAF, NAMES[0])
    assert NAMES[0] in attempt.waiting_for
    uploading.send(NAMES[0])
    np.testing.assert_array_equal(finish(uploading), uploading.cohort.expected(NAMES))


def test_an_upload_that_is_whole_after_a_restart_enters_the_sum_once(uploading):
    identity = uploading.identity
    header, content = uploading.masked[NAMES[0]]
    leaves = uploading.leaves[NAMES[0]]
    uploading.attempt.open_upload(identity, header, leaves).append(0, content)
    uploading.restart()
    assert list(uploading.attempt.whole_uploads()) == [NAMES[0]]
    uploading.attempt.fold_upload(identity, NAMES[0])
    uploading.attempt.fold_upload(identity, NAMES[0])
    assert uploading.attempt.upload_offset(identity, NAMES[0]) == len(content)
    with pytest.raises(WrongPhaseError, match="complete"):
        uploading.attempt.open_upload(identity, header, leaves)
    np.testing.assert_array_equal(finish(uploading), uploading.cohort.expected(NAMES))
