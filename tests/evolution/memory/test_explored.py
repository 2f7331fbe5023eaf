"""What was explored, and caps per task."""

from __future__ import annotations

import pytest

from evolution.errors import MemoryContentError
from evolution.memory.memory import Memory
from evolution.trajectory import Task
from tests.kit.evolution.trajectories import won


def task(task_id, subject=""):
    return Task(environment="craft", task_id=task_id, subject=subject)


def ids(entries):
    return [entry.task.task_id for entry in entries]


def test_exploration_is_kept_per_round_whatever_came_of_it(path):
    with Memory(path) as memory:
        memory.explore([task(3), task(1), task(1)], round_index=1, adapter_sha256="a")
        memory.explore([task(2)], round_index=2, adapter_sha256="b")
        memory.explore([task(1), task(3)], round_index=1, adapter_sha256="a")
    with Memory(path) as memory:
        assert len(memory) == 0
        assert ids(memory.explored(round_index=2)) == [1, 2, 3]
        assert ids(memory.explored(round_index=2, window=1)) == [2]
        assert ids(memory.explored(round_index=1, window=1)) == [1, 3]
        assert {e.adapter_sha256 for e in memory.explored(round_index=1)} == {"a"}
        memory.explore([task(1)], round_index=1, adapter_sha256="c")
        assert ids(memory.explored(round_index=1)) == [1, 1, 3]


def test_forgetting_a_subject_or_a_task_forgets_that_it_was_explored(path):
    with Memory(path) as memory:
        tasks = [task(1, "zoe"), task(2, "zoe"), task(3, "eve")]
        memory.explore(tasks, round_index=1, adapter_sha256="a")
        assert memory.delete_subject("zoe") == 0
        assert ids(memory.explored(round_index=1)) == [3]
        memory.delete_task(task(3))
        assert memory.explored(round_index=1) == []
    assert b"zoe" not in path.read_bytes()


def test_a_cap_per_task_never_touches_another_task(path):
    def crowd(count):
        return [won(1, round_index=index, word=5 + index) for index in range(count)]

    with Memory(path, capacity=None, capacity_per_task=2) as memory:
        memory.add([won(2), *crowd(1)])
        before = [t for t in memory.select(round_index=99) if t.task.task_id == 2]
        memory.add(crowd(9))
        kept = memory.select(round_index=99)
        assert [t for t in kept if t.task.task_id == 2] == before
        assert sorted(t.round for t in kept if t.task.task_id == 1) == [7, 8]
    with pytest.raises(MemoryContentError):
        Memory(path, capacity_per_task=0)
