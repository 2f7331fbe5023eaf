"""Demonstrations in the memory: D_train[k, 0] = D_expert (Fed-SE, algorithm 1)."""

from __future__ import annotations

import itertools

import pytest

from evolution.errors import MemoryContentError
from evolution.memory.memory import Memory, MemoryCount
from evolution.methods.expert import EXPERT_ROUND
from evolution.trajectory import Task
from tests.kit.evolution.trajectories import won


def shown(task_id, **rest):
    return won(task_id, round_index=EXPERT_ROUND, **rest)


def ids(trajectories):
    return [t.task.task_id for t in trajectories]


def test_demonstrations_are_in_every_window_and_only_where_asked_for(path):
    with Memory(path) as memory:
        assert memory.add_expert([shown(7), shown(8)]) == 2
        assert memory.add_expert([shown(8), shown(7)]) == 0
        memory.add([won(1, round_index=3), won(2, round_index=5)])
        for window, seen in ((0, [1, 2]), (1, [2]), (3, [1, 2])):
            assert ids(memory.select(round_index=5, window=window)) == seen
            with_them = memory.select(round_index=5, window=window, use_expert=True)
            assert ids(with_them) == [*seen, 7, 8]
        assert ids(memory.select(round_index=99, window=1, use_expert=True)) == [7, 8]
    with Memory(path) as memory:
        assert ids(memory.experts()) == [7, 8]


def test_the_best_of_a_task_is_the_best_of_the_agents_own(path):
    with Memory(path) as memory:
        memory.add([won(1, steps=3), won(1, steps=2), won(2, steps=1)])
        memory.add_expert([shown(1, steps=1), shown(1, steps=5), shown(2, steps=4), shown(3)])
        found = memory.select(round_index=0, best_per_task=True, use_expert=True)
        assert [(t.task.task_id, len(t.steps)) for t in found] == [
            (1, 1), (1, 2), (1, 5), (2, 1), (2, 4), (3, 1),
        ]  # fmt: skip


def test_the_union_holds_one_conversation_once_whatever_came_first(tmp_path):
    sets = {
        "add": [won(1), won(1, word=6), won(2, steps=2)],
        "add_expert": [shown(1), shown(2), shown(3)],
    }
    training_sets = []
    for number, order in enumerate(itertools.permutations(sets)):
        with Memory(tmp_path / str(number)) as memory:
            for name in order:
                assert getattr(memory, name)(sets[name]) == 3
            union = memory.select(round_index=0, use_expert=True)
            thinned = memory.select(round_index=0, use_expert=True, best_per_task=True)
            assert len(union) == len({(t.task, t.conversation_sha256) for t in union}) == 5
            # The one that both hold is the agent's own, with the round it was played in.
            assert [t.round for t in union if t.task.task_id == 1] == [0, 0]
            assert memory.select(round_index=0) == sorted(
                sets["add"], key=lambda t: (t.task.task_id, len(t.steps), t.conversation_sha256)
            )
            training_sets.append((union, thinned, memory.experts()))
    assert training_sets[0] == training_sets[1]


def test_no_cap_evicts_a_demonstration_and_none_evicts_a_success(path):
    with Memory(path, capacity=2, capacity_per_task=1, expert_capacity=4) as memory:
        memory.add_expert([shown(1, steps=9), shown(1, steps=8), shown(2)])
        memory.add([won(t, round_index=5) for t in (1, 2, 3, 4)])
        assert len(memory) == 2
        assert len(memory.experts()) == 3
        with pytest.raises(MemoryContentError, match="more than the 4"):
            memory.add_expert([shown(3), shown(4)])
        assert ids(memory.experts()) == [1, 1, 2]
        assert memory.add_expert([shown(3)]) == 1
        assert len(memory) == 2
    with pytest.raises(MemoryContentError):
        Memory(path, expert_capacity=0)


def test_only_successes_with_steps_are_demonstrations(path):
    with Memory(path) as memory:
        for bad in (shown(2, success=False), shown(2, steps=0)):
            with pytest.raises(MemoryContentError):
                memory.add_expert([shown(1), bad])
        assert memory.experts() == []


def test_deleting_a_subject_or_a_task_takes_its_demonstrations(path):
    with Memory(path) as memory:
        memory.add_expert([shown(1, subject="patient-4711"), shown(2), shown(3)])
        memory.add([won(1, steps=2, subject="patient-4711"), won(2, steps=3)])
        assert b"patient-4711" in path.read_bytes()
        assert memory.delete_subject("patient-4711") == 2
        assert memory.delete_task(Task(environment="craft", task_id=2)) == 2
        assert ids(memory.select(round_index=0, use_expert=True)) == [3]
    assert b"patient-4711" not in path.read_bytes()


def test_counts_and_known_tasks(path):
    with Memory(path) as memory:
        assert memory.counts() == []
        memory.add_expert([shown(1), shown(2)])
        memory.add([won(1), won(1, steps=2), won(3)])
        memory.explore([Task(environment="maze", task_id=4)], round_index=0, adapter_sha256="a")
        memory.add([won(3, success=False, word=8)] * 2)
        assert memory.counts() == [
            MemoryCount(
                environment="craft", explored=5, solved=3, failed=2, demonstrations=2, tasks=3
            )
        ]
        assert memory.known_tasks() == {("craft", 1), ("craft", 2), ("craft", 3), ("maze", 4)}
