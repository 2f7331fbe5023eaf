"""All tries of a task: what is counted, what is missing, and that imitation sees nothing of it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from evolution.errors import MemoryContentError
from evolution.memory.memory import Memory
from evolution.trajectory import Group, Task
from tests.kit.evolution.trajectories import won

DAY_S = 86_400


def lost(task_id=1, **rest):
    return won(task_id, success=False, **rest)


def task(task_id, **rest):
    return Task(environment="craft", task_id=task_id, **rest)


def test_a_group_holds_every_try_and_says_how_many_are_missing(path):
    tries = [won(2, word=9), lost(2, word=8), lost(2, word=8), lost(1)]
    with Memory(path) as memory:
        begun = [task(2)] * 4 + [task(1)] * 2 + [task(3)] * 2
        memory.explore(begun, round_index=0, adapter_sha256="ab")
        memory.add(tries[:3])
        memory.add(tries[3:])
        # The same round once more, as after a crash.
        memory.explore(begun, round_index=0, adapter_sha256="ab")
        assert memory.add(tries[:3]) == memory.add(tries[3:]) == 0
        assert len(memory) == 4
    with Memory(path) as memory:
        groups = memory.groups(round_index=0)
    assert [(g.task, g.round, len(g.trajectories), g.dropped) for g in groups] == [
        (task(1), 0, 1, 1), (task(2), 0, 3, 1), (task(3), 0, 0, 2),
    ]  # fmt: skip
    assert sorted(map(repr, groups[1].trajectories)) == sorted(map(repr, tries[:3]))
    assert [g.comparable for g in groups] == [False, True, False]


def test_groups_are_apart_by_round_adapter_and_beginning_and_follow_the_window(path):
    later = replace(task(1), prefix=("get 1 log",))
    written = replace(task(1), variant="with less wood")
    tries = [
        won(1, round_index=0),
        won(1, round_index=1),
        replace(won(1, round_index=1), adapter_sha256="cd"),
        replace(won(1, round_index=1), task=later),
        replace(won(1, round_index=1), task=written),
    ]
    with Memory(path) as memory:
        memory.add(tries)
        memory.explore([later, later], round_index=1, adapter_sha256="ab")
        found = memory.groups(round_index=1, window=0)
        assert [g.trajectories for g in found] == [
            (tries[0],), (tries[1],), (tries[2],), (tries[3],), (tries[4],),
        ]  # fmt: skip
        assert [g.dropped for g in found] == [0, 0, 0, 1, 0]
        assert [g.task for g in memory.groups(round_index=1)[2:]] == [later, written]
        assert len(memory.groups(round_index=1)) == 4
        assert memory.groups(round_index=7) == []
        # Where an episode began is a part of what it is: none of these is a duplicate.
        assert memory.select(round_index=9) == [tries[0], tries[3], tries[4]]
        best = memory.select(round_index=9, best_per_task=True)
        assert best == [tries[0], tries[3], tries[4]]
        assert memory.explored(round_index=1)[0].task == later
        assert memory.delete_task(task(1)) == 5
        assert memory.explored(round_index=1) == memory.groups(round_index=1, window=0) == []


def test_whatever_failed_changes_nothing_that_is_imitated(tmp_path):
    """Any order of arrival, any caps: the successes are those of a memory without failures."""
    rng = np.random.default_rng(5)
    wins = [
        won(t, steps=1 + (t + r) % 3, word=w, round_index=r)
        for t, r, w in itertools.product(range(4), range(5), (6, 7))
    ]
    losses = [
        lost(t, steps=steps, word=w, round_index=r)
        for t, r, steps, w in itertools.product(range(4), range(5), (1, 2), (5, 8))
    ]
    again = [replace(one, round=one.round + 1, adapter_sha256="cd") for one in wins]
    caps = [
        {},
        {"capacity": 9},
        {"capacity": 7, "capacity_per_task": 2, "failure_capacity": 3},
        {"capacity": None, "capacity_per_task": 3, "failure_capacity_per_task": 1},
    ]
    for number, (options, repeat) in enumerate(itertools.product(caps, range(2))):
        # Successes arrive in one order in both; anywhere between them comes everything else.
        wins = [wins[place] for place in rng.permutation(len(wins))]
        places = {int(p) for p in rng.permutation(len(wins) + len(losses))[: len(wins)]}
        coming, going = iter(wins), iter(losses)
        mixed = [next(coming if p in places else going) for p in range(len(wins) + len(losses))]
        with (
            Memory(tmp_path / f"pure-{number}", **options) as pure,
            Memory(tmp_path / f"mixed-{number}", **options) as full,
        ):
            for one in wins:
                pure.add([one])
            for one in mixed:
                full.add([one])
                if repeat:
                    full.add([one])
            for window, best in itertools.product((0, 1, 3), (False, True)):
                choice = {"round_index": 4, "window": window, "best_per_task": best}
                assert full.select(**choice) == pure.select(**choice) != []
            if not options:
                full.add(again)
                assert full.select(round_index=9) == pure.select(round_index=9)


def test_the_caps_of_failures_are_their_own(path):
    with Memory(path, capacity=2, failure_capacity=4, failure_capacity_per_task=3) as memory:
        memory.add([lost(1, word=w, round_index=w) for w in range(5, 10)])
        rounds = [t.round for g in memory.groups(round_index=99, window=0) for t in g.trajectories]
        assert rounds == [7, 8, 9]
        memory.add([lost(2, word=w, round_index=w) for w in range(5, 8)])
        memory.add([won(3), won(4), won(5)])
        (count,) = memory.counts()
        assert (count.solved, count.failed) == (2, 4)
    # A smaller cap of a task is kept from the start on, whatever is added next.
    with Memory(path, failure_capacity_per_task=1) as memory:
        assert [len(g.trajectories) for g in memory.groups(round_index=9, window=0)] == [1] * 4
    for wrong in ("failure_capacity", "failure_capacity_per_task", "max_age_days"):
        with pytest.raises(MemoryContentError):
            Memory(path, **{wrong: 0})


def test_a_task_that_stores_much_costs_no_other_task_a_try(path):
    options = {"capacity": None, "failure_capacity": None, "failure_capacity_per_task": 2}
    with Memory(path, **options) as memory:
        memory.add([lost(2), won(2, word=9)])
        before = memory.groups(round_index=99, window=0)
        memory.add([lost(1, word=w, steps=1 + w % 4, round_index=w) for w in range(5, 40)])
        found = memory.groups(round_index=99, window=0)
        assert [g for g in found if g.task.task_id == 2] == before
        assert sum(len(g.trajectories) for g in found if g.task.task_id == 1) == 2


def test_what_is_too_old_goes_but_for_demonstrations(path):
    now = [1_000.0 * DAY_S]
    options = {"max_age_days": 10, "clock": lambda: now[0]}
    with Memory(path, **options) as memory:
        memory.add_expert([won(9, round_index=-1, subject="eve")])
        memory.explore([task(1, subject="zoe")], round_index=0, adapter_sha256="ab")
        now[0] += 9 * DAY_S
        # As old as the exploring it came from, however long that took.
        memory.add([won(1, subject="zoe"), lost(1, subject="zoe")])
        memory.explore([task(2)], round_index=1, adapter_sha256="ab")
        memory.add([won(2, round_index=1)])
        assert memory.known_tasks() == {("craft", 1), ("craft", 2), ("craft", 9)}
        now[0] += 2 * DAY_S
        memory.add([won(3, round_index=1)])
        assert memory.known_tasks() >= {("craft", 1)}, "storing alone lets nothing go"
        memory.explore([task(4)], round_index=2, adapter_sha256="ab")
        assert memory.known_tasks() == {("craft", n) for n in (2, 3, 4, 9)}
    assert b"zoe" not in path.read_bytes()
    now[0] += 11 * DAY_S
    with Memory(path, **options) as memory:
        assert memory.known_tasks() == {("craft", 9)}
    with Memory(path, **{**options, "clock": lambda: 0.0}) as memory:
        assert memory.known_tasks() == {("craft", 9)}, "a clock that goes back lets nothing go"


def test_everything_that_was_played_in_a_window_once_each_as_it_was_played_last(path):
    with Memory(path) as memory:
        memory.add([won(1), lost(1, word=8), lost(1, word=8), lost(2, round_index=1)])
        memory.add([won(1, round_index=2)])
        found = memory.played(round_index=2)
        assert {(t.task.task_id, t.success, t.round) for t in found} == {
            (1, True, 2), (1, False, 0), (2, False, 1),
        }  # fmt: skip
        assert found == sorted(found, key=lambda t: (t.task.task_id, t.conversation_sha256))
        assert [t.round for t in memory.played(round_index=1, window=1)] == [1]


def test_a_try_that_cannot_be_read_is_missing_where_tasks_stand_apart(path):
    with Memory(path) as memory:
        memory.explore([task(1)] * 2 + [task(2)] * 2, round_index=0, adapter_sha256="ab")
        memory.add([won(1), lost(1, word=8)])
        memory.add([won(2), lost(2, word=8)])
        memory._db.execute("UPDATE tried SET payload = 'x' WHERE task_id = 1 AND success")
        (one, other) = memory.groups(round_index=0, tasks_apart=True)
        assert (len(one.trajectories), one.dropped) == (1, 1)
        assert isinstance(other, Group)
        assert (len(other.trajectories), other.dropped) == (2, 0)


def test_a_beginning_without_bounds_is_refused(path):
    endless = replace(won(1), task=task(1, variant="x" * (1 << 17)))
    with Memory(path) as memory:
        with pytest.raises(MemoryContentError, match="too long"):
            memory.add([endless])
        with pytest.raises(MemoryContentError, match="too long"):
            memory.explore([endless.task], round_index=0, adapter_sha256="ab")
        with pytest.raises(MemoryContentError, match="reset"):
            memory.add_expert([replace(won(1), task=task(1, prefix=("go",)))])
        assert memory.known_tasks() == set()
