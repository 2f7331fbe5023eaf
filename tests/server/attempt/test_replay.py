"""An attempt made again from its journal is the attempt that it was."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from secagg import client
from secagg.errors import SecAggError
from secagg.messages import KeyBundle
from server.attempt.accumulator import Accumulator
from server.errors import LostAttemptError, StorageFullError, StoreError, WrongPhaseError
from server.figures import STEPS, Phase
from tests.kit.server.memory_journal import MemoryJournal
from tests.kit.server.played import NAMES, Played

PUBLIC = ("phase", "active", "dropped", "survivors", "waiting_for", "received_bytes", "may_retry")


def require_same(played, before):
    for name in PUBLIC:
        assert getattr(played.attempt, name) == getattr(before, name), name
    for silo in NAMES:
        assert played.attempt.instruction(silo) == before.instruction(silo)


@pytest.mark.parametrize("lost_in", [None, *STEPS[:3]])
@pytest.mark.parametrize("phase", STEPS)
def test_the_journal_makes_the_same_attempt_again(played, phase, lost_in):
    for step in STEPS:
        gone = (NAMES[2],) if step is lost_in else ()
        if step is phase:
            # In the middle of the phase: two have answered.
            for name in sorted(played.attempt.waiting_for - set(gone))[:2]:
                played.act(name)
            require_same(played, played.restart())
        played.step(*gone)
        if step is phase:
            require_same(played, played.restart())
        if step is not STEPS[-1]:
            played.attempt.close_phase()
    survivors = NAMES if lost_in is None else tuple(n for n in NAMES if n != NAMES[2])
    np.testing.assert_array_equal(played.total(), played.cohort.expected(survivors))
    # And once more, after the last phase was closed.
    before = played.restart()
    assert played.attempt.dropped == before.dropped
    assert not played.attempt.waiting_for
    np.testing.assert_array_equal(played.total(), played.cohort.expected(survivors))


def test_a_repeat_is_known_after_a_restart_and_another_message_is_not(played):
    played.until(Phase.SHARE_KEYS).step(*NAMES[1:])
    rows = played.journal.history().messages
    played.restart()
    for message in rows:
        if isinstance(message, KeyBundle):
            played.attempt.receive_bundle(played.identity, message)
    boxes = rows[-1]
    played.attempt.receive_boxes(played.identity, boxes)
    with pytest.raises(SecAggError):
        played.attempt.receive_boxes(played.identity, replace(boxes, signature=bytes(64)))
    with pytest.raises(WrongPhaseError):
        played.attempt.receive_bundle(played.identity, replace(rows[0], ledger_seq=99))
    assert len(played.journal.rows) == 6


def test_an_upload_goes_on_at_its_offset_after_a_restart(uploading):
    header, content = uploading.masked[NAMES[0]]
    uploading.attempt.open_upload(uploading.identity, header).append(0, content[:10])
    uploading.restart()
    assert uploading.attempt.upload_offset(uploading.identity, NAMES[0]) == 10
    uploading.send(NAMES[0])
    uploading.step()
    uploading.attempt.close_phase()
    uploading.until(Phase.UNMASK).step()
    np.testing.assert_array_equal(uploading.total(), uploading.cohort.expected(NAMES))


def test_after_a_restart_a_late_upload_does_not_look_folded(uploading):
    attempt, identity = uploading.attempt, uploading.identity
    header, content = uploading.masked[NAMES[0]]
    attempt.open_upload(identity, header).append(0, content)
    uploading.step(NAMES[0])
    attempt.close_phase()
    uploading.restart()
    assert uploading.attempt.survivors == NAMES[1:]
    assert not list(uploading.directory.glob("*.masked"))
    for late in (
        lambda: uploading.attempt.upload_offset(identity, NAMES[0]),
        lambda: uploading.attempt.open_upload(identity, header),
    ):
        with pytest.raises(WrongPhaseError):
            late()
    assert uploading.attempt.upload_offset(identity, NAMES[1]) == 4 * uploading.words


def test_bytes_that_are_all_here_but_not_in_the_sum_are_asked_for_again(uploading):
    attempt, identity = uploading.attempt, uploading.identity
    header, content = uploading.masked[NAMES[0]]
    upload = attempt.open_upload(identity, header)
    upload.append(0, content)
    assert attempt.whole_uploads() == {NAMES[0]: upload}
    # While the fold waits for its turn the bytes are safe.
    upload.queued = True
    assert attempt.fold_queued(NAMES[0])
    assert attempt.upload_offset(identity, NAMES[0]) == len(content)
    upload.queued = False
    assert attempt.upload_offset(identity, NAMES[0]) == 0
    uploading.send(NAMES[0])
    assert NAMES[0] not in attempt.waiting_for
    assert not attempt.fold_queued(NAMES[0])


class Failing(MemoryJournal):
    """The database is away."""

    away = False

    def accepted(self, message):
        self.check()
        super().accepted(message)

    def folded(self, silo_id, generation):
        self.check()
        super().folded(silo_id, generation)

    def closed(self, phase, members):
        self.check()
        super().closed(phase, members)

    def check(self):
        if self.away:
            raise StoreError("the database failed")


def test_nothing_is_acknowledged_that_was_not_written_down(tmp_path):
    played = Played(tmp_path)
    played.journal = journal = Failing()
    played.attempt = played.attempt_on(Accumulator(played.directory, length=played.words))
    played.states[NAMES[0]], bundle = client.begin(played.cohort.setup(NAMES[0]))
    journal.away = True
    with pytest.raises(StoreError):
        played.attempt.receive_bundle(played.identity, bundle)
    assert journal.rows == []
    journal.away = False
    # The silo repeats it, and now it is written.
    played.attempt.receive_bundle(played.identity, bundle)
    assert len(journal.rows) == 1
    played.step(NAMES[0])
    played.until(Phase.MASKED_INPUT)
    played.states[NAMES[0]], _ = played.states[NAMES[0]].handle(played.message(NAMES[0]))
    vector = (played.cohort.plain(NAMES[0]) % 2**32).astype("<u4")
    played.states[NAMES[0]], header = played.states[NAMES[0]].mask(vector)
    played.masked[NAMES[0]] = (header, vector.tobytes())
    journal.away = True
    with pytest.raises(StoreError):
        played.send(NAMES[0])
    journal.away = False
    upload = played.attempt.open_upload(played.identity, header)
    upload.append(0, vector.tobytes())
    journal.away = True
    with pytest.raises(StoreError):
        played.attempt.fold_upload(played.identity, NAMES[0])
    assert NAMES[0] in played.attempt.waiting_for
    journal.away = False
    played.attempt.fold_upload(played.identity, NAMES[0])
    played.step()
    played.until(Phase.UNMASK).step()
    np.testing.assert_array_equal(played.total(), played.cohort.expected(NAMES))
    played.attempt.close()


def test_a_phase_that_could_not_be_written_as_closed_shows_nobody_what_follows(tmp_path):
    played = Played(tmp_path)
    played.journal = journal = Failing()
    played.attempt = played.attempt_on(Accumulator(played.directory, length=played.words))
    played.step()
    journal.away = True
    with pytest.raises(StoreError):
        played.attempt.close_phase()
    assert played.attempt.phase is Phase.ADVERTISE_KEYS
    assert played.message(NAMES[0]) == played.cohort.descriptor
    played.attempt.close()


def test_after_the_last_phase_is_closed_no_share_is_taken(played):
    played.until(Phase.UNMASK).step(NAMES[4])
    state = played.states[NAMES[4]]
    _, shares = state.handle(played.message(NAMES[4]))
    played.attempt.stop_collecting()
    with pytest.raises(WrongPhaseError):
        played.attempt.receive_unmasking(played.identity, shares)
    np.testing.assert_array_equal(played.total(), played.cohort.expected(NAMES))


def test_a_journal_that_does_not_fit_is_refused(played):
    played.until(Phase.SHARE_KEYS).step()
    history = played.journal.history()
    fresh = played.attempt_on(Accumulator(played.directory, length=played.words))
    with pytest.raises(LostAttemptError, match="other members"):
        fresh.replay(replace(history, messages=history.messages[3:]))


def test_what_was_not_written_when_it_came_is_written_before_its_phase_closes(tmp_path):
    """The silo never repeats it: live U1 has it, so the journal must."""
    played = Played(tmp_path)
    played.journal = journal = Failing()
    played.attempt = played.attempt_on(Accumulator(played.directory, length=played.words))
    played.step(NAMES[0])
    journal.away = True
    with pytest.raises(StoreError):
        played.act(NAMES[0])
    with pytest.raises(StoreError):
        played.attempt.close_phase()
    journal.away = False
    assert len(journal.rows) == 4
    played.attempt.close_phase()
    assert journal.members == [NAMES]
    require_same(played, played.restart())
    played.until(Phase.UNMASK).step()
    np.testing.assert_array_equal(played.total(), played.cohort.expected(NAMES))
    played.attempt.close()


@pytest.mark.parametrize("phase", STEPS)
def test_a_phase_whose_closing_was_not_written_takes_nothing_and_closes_later(tmp_path, phase):
    played = Played(tmp_path)
    played.journal = journal = Failing()
    played.attempt = attempt = played.attempt_on(Accumulator(played.directory, length=played.words))
    played.until(phase)
    if phase is Phase.MASKED_INPUT:
        played.masking()
        late = played.masked[NAMES[0]]
        attempt.open_upload(played.identity, late[0]).append(0, late[1])
    played.step(NAMES[0])
    close = attempt.stop_collecting if phase is STEPS[-1] else attempt.close_phase
    journal.away = True
    for _ in range(2):
        with pytest.raises(StoreError):
            close()
    journal.away = False
    fold = partial(attempt.fold_upload, played.identity)
    answer = fold if phase is Phase.MASKED_INPUT else played.act
    with pytest.raises(WrongPhaseError):
        answer(NAMES[0])
    close()
    assert journal.members[-1] == NAMES[1:]
    require_same(played, played.restart())
    if phase is not STEPS[-1]:
        played.until(Phase.UNMASK).step()
    survivors = NAMES[1:] if phase in STEPS[:3] else NAMES
    np.testing.assert_array_equal(played.total(), played.cohort.expected(survivors))
    played.attempt.close()


def test_a_journal_with_a_member_too_many_is_refused_as_well(played):
    played.step(NAMES[0])
    played.attempt.close_phase()
    closed = played.journal.history()
    late = client.begin(played.cohort.setup(NAMES[0]))[1]
    fresh = played.attempt_on(Accumulator(played.directory, length=played.words))
    with pytest.raises(LostAttemptError, match="advertise_keys was closed with other members"):
        fresh.replay(replace(closed, messages=(*closed.messages, late)))


def test_unmasking_goes_on_after_the_disk_was_full(played, monkeypatch):
    played.until(Phase.UNMASK).step()
    real, left = Accumulator.release, [StorageFullError("full")]

    def release(accumulator, unmask):
        if left:
            raise left.pop()
        return real(accumulator, unmask)

    monkeypatch.setattr(Accumulator, "release", release)
    with pytest.raises(StorageFullError):
        played.attempt.unmask()
    np.testing.assert_array_equal(played.total(), played.cohort.expected(NAMES))
