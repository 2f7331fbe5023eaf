from __future__ import annotations

import sqlite3
import stat

import pytest

from evolution.errors import BufferContentError, BufferCorruptError
from evolution.memory.buffer import SuccessBuffer
from evolution.trajectory import Task
from tests.kit.evolution.trajectories import won


def test_what_goes_in_comes_out_after_a_restart(path):
    stored = [won(1, steps=2), won(2)]
    with SuccessBuffer(path) as buffer:
        assert buffer.add(stored) == 2
    with SuccessBuffer(path) as buffer:
        assert buffer.select(round_index=0) == stored
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_adding_again_changes_nothing_and_order_does_not_matter(tmp_path):
    stored = [won(t, steps=s, word=w) for t in (3, 1, 2) for s in (2, 1) for w in (9, 8)]
    with SuccessBuffer(tmp_path / "a") as a, SuccessBuffer(tmp_path / "b") as b:
        assert a.add(stored) == len(stored)
        assert a.add(stored) == 0
        assert a.add([won(3, steps=2, word=9, round_index=7)]) == 0
        for trajectory in reversed(stored):
            b.add([trajectory])
        assert a.select(round_index=9) == b.select(round_index=9)
        assert len(a) == len(stored)


def test_same_conversation_on_another_task_is_another_entry(path):
    with SuccessBuffer(path) as buffer:
        assert buffer.add([won(1), won(2)]) == 2


def test_window_keeps_the_last_rounds(path):
    with SuccessBuffer(path) as buffer:
        buffer.add([won(r, round_index=r) for r in range(6)])

        def rounds(**choice):
            return [t.round for t in buffer.select(**choice)]

        assert rounds(round_index=4, window=2) == [3, 4]
        assert rounds(round_index=5, window=1) == [5]
        assert rounds(round_index=4) == [0, 1, 2, 3, 4]


def test_best_per_task_is_the_shortest(path):
    with SuccessBuffer(path) as buffer:
        buffer.add([won(1, steps=3), won(1, steps=2), won(1, steps=2, word=6), won(2, steps=4)])
        best = buffer.select(round_index=0, best_per_task=True)
        assert [(t.task.task_id, len(t.steps)) for t in best] == [(1, 2), (2, 4)]
        assert len(buffer.select(round_index=0)) == 4


def test_best_per_task_looks_at_the_window_only(path):
    with SuccessBuffer(path) as buffer:
        buffer.add([won(1, steps=1, round_index=0), won(1, steps=3, round_index=5)])
        best = buffer.select(round_index=5, window=1, best_per_task=True)
        assert [len(t.steps) for t in best] == [3]


def test_cap_drops_old_rounds_then_long_trajectories(path):
    with SuccessBuffer(path, capacity=3) as buffer:
        buffer.add([won(1, round_index=0), won(2, round_index=1)])
        buffer.add([won(3, steps=5, round_index=2), won(4, steps=1, round_index=2)])
        assert [t.task.task_id for t in buffer.select(round_index=9)] == [2, 3, 4]
        buffer.add([won(5, steps=2, round_index=2), won(6, steps=3, round_index=2)])
        assert [t.task.task_id for t in buffer.select(round_index=9)] == [4, 5, 6]
    with pytest.raises(BufferContentError):
        SuccessBuffer(path, capacity=0)


def test_deleting_a_subject_leaves_no_trace_in_the_file(path):
    with SuccessBuffer(path) as buffer:
        buffer.add([won(1, subject="patient-4711"), won(2, subject="patient-1"), won(3)])
        assert b"patient-4711" in path.read_bytes()
        assert buffer.delete_subject("patient-4711") == 1
        assert buffer.delete_subject("patient-4711") == 0
        with pytest.raises(BufferContentError):
            buffer.delete_subject("")
        assert [t.task.task_id for t in buffer.select(round_index=0)] == [2, 3]
    assert b"patient-4711" not in path.read_bytes()
    assert b"patient-1" in path.read_bytes()


def test_deleting_a_task_takes_all_its_tries(path):
    with SuccessBuffer(path) as buffer:
        buffer.add([won(1), won(1, steps=2), won(2)])
        assert buffer.delete_task(Task(environment="craft", task_id=1)) == 2
        assert buffer.delete_task(Task(environment="maze", task_id=2)) == 0
        assert len(buffer) == 1


def test_failures_and_empty_trajectories_are_refused_and_nothing_is_stored(path):
    with SuccessBuffer(path) as buffer:
        for bad in (won(2, success=False), won(2, steps=0)):
            with pytest.raises(BufferContentError):
                buffer.add([won(1), bad])
        assert len(buffer) == 0


@pytest.mark.parametrize("content", [b"not a database at all, but long enough" * 40, b"SQLite"])
def test_a_file_that_is_not_a_database_is_a_typed_error(path, content):
    path.write_bytes(content)
    with pytest.raises(BufferCorruptError):
        SuccessBuffer(path)


def test_damaged_pages_are_a_typed_error(path):
    with SuccessBuffer(path) as buffer:
        buffer.add([won(t, steps=8) for t in range(60)])
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(BufferCorruptError):
        SuccessBuffer(path)


def test_foreign_databases_and_unreadable_rows_are_typed_errors(tmp_path, path):
    foreign = sqlite3.connect(tmp_path / "foreign")
    foreign.execute("CREATE TABLE t (x)")
    foreign.close()
    with pytest.raises(BufferCorruptError, match="not a success buffer"):
        SuccessBuffer(tmp_path / "foreign")
    with SuccessBuffer(path) as buffer:
        buffer.add([won(1)])
    for payload in ("{", "{}", '{"task": {"unknown": 1}}', "[]"):
        meddler = sqlite3.connect(path)
        with meddler:
            meddler.execute("UPDATE trajectory SET payload = ?", (payload,))
        meddler.close()
        with SuccessBuffer(path) as buffer, pytest.raises(BufferCorruptError):
            buffer.select(round_index=0)


@pytest.mark.parametrize(
    "payload", ["{", "{}", "[]", b"\xff\xfe", "[" * 100_000, '{"task": {"unknown": 1}}', "moved"]
)
def test_where_tasks_stand_apart_an_unreadable_row_costs_no_other_task_a_row(path, payload):
    with SuccessBuffer(path) as buffer:
        buffer.add([won(1), won(2), won(3)])
        others = [won(1), won(3)]
        meddler = sqlite3.connect(path)
        if payload == "moved":
            (payload,) = meddler.execute(
                "SELECT payload FROM trajectory WHERE task_id = 3"
            ).fetchone()
        with meddler:
            meddler.execute("UPDATE trajectory SET payload = ? WHERE task_id = 2", (payload,))
        meddler.close()
        assert buffer.select(round_index=0, tasks_apart=True) == others
        with pytest.raises(BufferCorruptError):
            buffer.select(round_index=0)
