"""Files of earlier schemas: opened in place, whole or not at all."""

from __future__ import annotations

import json
import sqlite3
import time

import pytest

from evolution.errors import MemoryCorruptError
from evolution.memory import schema
from evolution.memory.memory import Memory
from evolution.trajectory import Task
from tests.kit.evolution.trajectories import won

OLDER = (1, 2, 3)
TRAJECTORY = """
CREATE TABLE trajectory (
  environment TEXT NOT NULL, task_id INTEGER NOT NULL, conversation_sha256 TEXT NOT NULL,
  subject TEXT NOT NULL, round INTEGER NOT NULL, steps INTEGER NOT NULL, tokens INTEGER NOT NULL,
  payload TEXT NOT NULL, PRIMARY KEY (environment, task_id, conversation_sha256)
) WITHOUT ROWID
"""
EXPLORED = """
CREATE TABLE explored (
  round INTEGER NOT NULL, adapter_sha256 TEXT NOT NULL, environment TEXT NOT NULL,
  task_id INTEGER NOT NULL, subject TEXT NOT NULL,
  PRIMARY KEY (round, adapter_sha256, environment, task_id)
) WITHOUT ROWID
"""


DEMONSTRATION = TRAJECTORY.replace("TABLE trajectory", "TABLE demonstration")


def payload(one):
    """The text of a trajectory as every release before this schema wrote it."""
    return json.dumps(
        {
            "adapter_sha256": one.adapter_sha256,
            "final_observation": one.final_observation,
            "round": one.round,
            "steps": [
                {
                    "observation": step.observation,
                    "action": step.action,
                    "context_ids": step.context_ids,
                    "action_ids": step.action_ids,
                    "action_logprobs": step.action_logprobs,
                }
                for step in one.steps
            ],
            "task": {"environment": "craft", "task_id": one.task.task_id, "subject": "zoe"},
        }
    )


def row(one):
    return (
        "craft", one.task.task_id, one.conversation_sha256, "zoe", one.round, len(one.steps),
        one.token_count, payload(one),
    )  # fmt: skip


def write(path, version):
    """A file as the version wrote it: a success, from 2 on an explored task, in 3 an expert's."""
    one = won(1, subject="zoe")
    file = sqlite3.connect(path)
    with file:
        file.execute(TRAJECTORY)
        file.execute("INSERT INTO trajectory VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row(one))
        if version >= 2:
            file.execute(EXPLORED)
            file.execute("INSERT INTO explored VALUES (0, 'ab', 'craft', 1, 'zoe')")
        if version >= 3:
            shown = won(5, subject="zoe", round_index=-1)
            file.execute(DEMONSTRATION)
            file.execute("INSERT INTO demonstration VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row(shown))
        file.execute("PRAGMA application_id = 1128812370")
        file.execute(f"PRAGMA user_version = {version}")
    file.close()
    return one


@pytest.mark.parametrize("version", OLDER)
def test_an_older_file_gains_what_it_lacks_and_loses_nothing(path, version):
    old = write(path, version)
    for _ in range(2):
        with Memory(path) as memory:
            assert memory.select(round_index=0) == [old]
            assert [t.task.task_id for t in memory.experts()] == ([5] if version == 3 else [])
            assert len(memory.explored(round_index=9)) == (version >= 2)
            assert memory._db.execute("PRAGMA user_version").fetchone() == (4,)
            (count,) = memory.counts()
            assert (count.explored, count.solved, count.failed) == (1, 1, 0)
            # Nobody wrote down what it was rewarded with, or how many tries there were beside it.
            (group,) = memory.groups(round_index=0)
            assert group.trajectories == (old,)
            assert (old.success, old.reward, group.dropped) == (True, 0.0, 0)
    with Memory(path) as memory:
        assert memory.add_expert([won(2)]) == 1
        assert memory.delete_subject("zoe") == (2 if version == 3 else 1)
        assert memory.explored(round_index=9) == []
    assert b"zoe" not in path.read_bytes()


@pytest.mark.parametrize("version", OLDER)
def test_a_file_of_an_old_schema_ends_with_the_columns_of_a_fresh_one(tmp_path, version):
    def columns(path):
        with Memory(path) as memory:
            return memory._db.execute(
                "SELECT t.name, c.name, c.type, c.pk FROM sqlite_schema t"
                " JOIN pragma_table_info(t.name) c ORDER BY t.name, c.cid"
            ).fetchall()

    write(tmp_path / "old", version)
    assert columns(tmp_path / "old") == columns(tmp_path / "fresh")
    assert len(columns(tmp_path / "fresh")) == 8 + 8 + 16


def test_a_file_of_a_later_schema_is_refused(path):
    with Memory(path) as memory:
        memory._db.execute("PRAGMA user_version = 5")
    with pytest.raises(MemoryCorruptError, match="version"):
        Memory(path)


@pytest.mark.parametrize("version", OLDER)
def test_an_upgrade_that_stops_halfway_is_repeated(path, monkeypatch, version):
    old = write(path, version)
    broken = {**schema._STEPS_TO, 4: (*schema._STEPS_TO[4], "CREATE TABLE no; no")}
    with monkeypatch.context() as patch:
        patch.setattr(schema, "_STEPS_TO", broken)
        with pytest.raises(MemoryCorruptError):
            Memory(path)
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA user_version").fetchone() == (version,)
    raw.close()
    with Memory(path) as memory:
        assert memory.select(round_index=0) == [old]
        assert memory.add_expert([won(2)]) == 1
        memory.explore([Task(environment="craft", task_id=9)], round_index=1, adapter_sha256="a")


@pytest.mark.parametrize("version", [0, *OLDER])
def test_two_processes_may_open_an_older_file_at_once(path, version):
    """One of them adds the tables between the other's look at the file and its turn to write."""
    if version:
        write(path, version)
    one, other = (sqlite3.connect(path, isolation_level=None) for _ in range(2))
    turns = []

    def before(statement):
        if statement == "BEGIN IMMEDIATE" and not turns:
            turns.append(statement)
            schema.prepare(other)

    one.set_trace_callback(before)
    schema.prepare(one)
    one.close()
    other.close()
    assert turns
    with Memory(path) as memory:
        assert len(memory) == bool(version)


@pytest.mark.parametrize("kept", ["{", "[]", b"\xff", '{"adapter_sha256": {}}'])
def test_an_old_row_that_cannot_be_read_does_not_stop_the_others(path, kept):
    old = write(path, 3)
    file = sqlite3.connect(path)
    with file:
        broken = (*row(won(2))[:-1], kept)
        file.execute("INSERT INTO trajectory VALUES (?, ?, ?, ?, ?, ?, ?, ?)", broken)
    file.close()
    with Memory(path) as memory:
        assert memory.select(round_index=0, tasks_apart=True) == [old]
        with pytest.raises(MemoryCorruptError):
            memory.select(round_index=0)


def test_the_age_of_what_an_older_release_kept_counts_from_the_upgrade(path):
    write(path, 3)
    now = time.time()
    with Memory(path, max_age_days=1, clock=lambda: now) as memory:
        assert len(memory) == 1
    with Memory(path, max_age_days=1, clock=lambda: now + 2 * 86_400) as memory:
        assert len(memory) == len(memory.explored(round_index=9)) == 0
        assert len(memory.experts()) == 1


def test_what_an_older_release_solved_is_not_imitated_twice_when_its_round_is_repeated(path):
    old = write(path, 3)
    with Memory(path) as memory:
        assert memory.add([won(1, subject="zoe")]) == 0
        memory.add([won(1, subject="zoe", round_index=1), won(1, subject="zoe", success=False)])
        assert memory.select(round_index=9) == [old]
