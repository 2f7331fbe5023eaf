from __future__ import annotations

import sqlite3
import stat

import pytest

from evolution.errors import MemoryContentError, MemoryCorruptError
from evolution.memory.memory import Memory
from evolution.trajectory import Task
from tests.kit.evolution.trajectories import won


def test_what_goes_in_comes_out_after_a_restart(path):
    stored = [won(1, steps=2), won(2)]
    with Memory(path) as memory:
        assert memory.add(stored) == 2
    with Memory(path) as memory:
        assert memory.select(round_index=0) == stored
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_adding_again_changes_nothing_and_order_does_not_matter(tmp_path):
    stored = [won(t, steps=s, word=w) for t in (3, 1, 2) for s in (2, 1) for w in (9, 8)]
    with Memory(tmp_path / "a") as a, Memory(tmp_path / "b") as b:
        assert a.add(stored) == len(stored)
        assert a.add(stored) == 0
        # Played again in a later round: a try of its own, and nothing more to imitate.
        before = a.select(round_index=9)
        assert a.add([won(3, steps=2, word=9, round_index=7)]) == 1
        assert a.select(round_index=9) == before
        for trajectory in reversed(stored):
            b.add([trajectory])
        assert a.select(round_index=9) == b.select(round_index=9)
        assert len(a) == len(stored) + 1


def test_same_conversation_on_another_task_is_another_entry(path):
    with Memory(path) as memory:
        assert memory.add([won(1), won(2)]) == 2


def test_window_keeps_the_last_rounds(path):
    with Memory(path) as memory:
        memory.add([won(r, round_index=r) for r in range(6)])

        def rounds(**choice):
            return [t.round for t in memory.select(**choice)]

        assert rounds(round_index=4, window=2) == [3, 4]
        assert rounds(round_index=5, window=1) == [5]
        assert rounds(round_index=4) == [0, 1, 2, 3, 4]


def test_best_per_task_is_the_shortest(path):
    with Memory(path) as memory:
        memory.add([won(1, steps=3), won(1, steps=2), won(1, steps=2, word=6), won(2, steps=4)])
        best = memory.select(round_index=0, best_per_task=True)
        assert [(t.task.task_id, len(t.steps)) for t in best] == [(1, 2), (2, 4)]
        assert len(memory.select(round_index=0)) == 4


def test_best_per_task_looks_at_the_window_only(path):
    with Memory(path) as memory:
        memory.add([won(1, steps=1, round_index=0), won(1, steps=3, round_index=5)])
        best = memory.select(round_index=5, window=1, best_per_task=True)
        assert [len(t.steps) for t in best] == [3]


def test_cap_drops_old_rounds_then_long_trajectories(path):
    with Memory(path, capacity=3) as memory:
        memory.add([won(1, round_index=0), won(2, round_index=1)])
        memory.add([won(3, steps=5, round_index=2), won(4, steps=1, round_index=2)])
        assert [t.task.task_id for t in memory.select(round_index=9)] == [2, 3, 4]
        memory.add([won(5, steps=2, round_index=2), won(6, steps=3, round_index=2)])
        assert [t.task.task_id for t in memory.select(round_index=9)] == [4, 5, 6]
    with pytest.raises(MemoryContentError):
        Memory(path, capacity=0)


def test_deleting_a_subject_leaves_no_trace_in_the_file(path):
    with Memory(path) as memory:
        memory.add([won(1, subject="patient-4711"), won(2, subject="patient-1"), won(3)])
        assert b"patient-4711" in path.read_bytes()
        assert memory.delete_subject("patient-4711") == 1
        assert memory.delete_subject("patient-4711") == 0
        with pytest.raises(MemoryContentError):
            memory.delete_subject("")
        assert [t.task.task_id for t in memory.select(round_index=0)] == [2, 3]
    assert b"patient-4711" not in path.read_bytes()
    assert b"patient-1" in path.read_bytes()


def test_deleting_a_task_takes_all_its_tries(path):
    with Memory(path) as memory:
        memory.add([won(1), won(1, steps=2), won(2)])
        assert memory.delete_task(Task(environment="craft", task_id=1)) == 2
        assert memory.delete_task(Task(environment="maze", task_id=2)) == 0
        assert len(memory) == 1


def test_a_trajectory_without_a_step_is_refused_and_nothing_is_stored(path):
    with Memory(path) as memory:
        with pytest.raises(MemoryContentError):
            memory.add([won(1), won(2, steps=0)])
        assert len(memory) == 0


@pytest.mark.parametrize("content", [b"not a database at all, but long enough" * 40, b"SQLite"])
def test_a_file_that_is_not_a_database_is_a_typed_error(path, content):
    path.write_bytes(content)
    with pytest.raises(MemoryCorruptError):
        Memory(path)


def test_damaged_pages_are_a_typed_error(path):
    with Memory(path) as memory:
        memory.add([won(t, steps=8) for t in range(60)])
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(MemoryCorruptError):
        Memory(path)


def test_foreign_databases_and_unreadable_rows_are_typed_errors(tmp_path, path):
    foreign = sqlite3.connect(tmp_path / "foreign")
    foreign.execute("CREATE TABLE t (x)")
    foreign.close()
    with pytest.raises(MemoryCorruptError, match="not a memory"):
        Memory(tmp_path / "foreign")
    with Memory(path) as memory:
        memory.add([won(1)])
    for payload in ("{", "{}", '{"task": {"unknown": 1}}', "[]"):
        meddler = sqlite3.connect(path)
        with meddler:
            meddler.execute("UPDATE tried SET payload = ?", (payload,))
        meddler.close()
        with Memory(path) as memory, pytest.raises(MemoryCorruptError):
            memory.select(round_index=0)


@pytest.mark.parametrize(
    "payload", ["{", "{}", "[]", b"\xff\xfe", "[" * 100_000, '{"task": {"unknown": 1}}', "moved"]
)
def test_where_tasks_stand_apart_an_unreadable_row_costs_no_other_task_a_row(path, payload):
    with Memory(path) as memory:
        memory.add([won(1), won(2), won(3)])
        others = [won(1), won(3)]
        meddler = sqlite3.connect(path)
        if payload == "moved":
            (payload,) = meddler.execute("SELECT payload FROM tried WHERE task_id = 3").fetchone()
        with meddler:
            meddler.execute("UPDATE tried SET payload = ? WHERE task_id = 2", (payload,))
        meddler.close()
        assert memory.select(round_index=0, tasks_apart=True) == others
        with pytest.raises(MemoryCorruptError):
            memory.select(round_index=0)
