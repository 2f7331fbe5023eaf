"""Files of earlier schemas: opened in place, whole or not at all."""

from __future__ import annotations

import sqlite3

import pytest

from evolution.errors import BufferCorruptError
from evolution.memory import schema as buffer_schema
from evolution.memory.buffer import SuccessBuffer
from evolution.memory.trajectory_json import encode_trajectory
from evolution.trajectory import Task
from tests.kit.evolution.trajectories import won

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


def write(path, version):
    """A file as the version wrote it, with one success and, in 2, one explored task."""
    one = won(1, subject="zoe")
    row = (
        "craft", 1, one.conversation_sha256, "zoe", one.round, len(one.steps), one.token_count,
        encode_trajectory(one),
    )  # fmt: skip
    file = sqlite3.connect(path)
    with file:
        file.execute(TRAJECTORY)
        file.execute("INSERT INTO trajectory VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        if version == 2:
            file.execute(EXPLORED)
            file.execute("INSERT INTO explored VALUES (0, 'ab', 'craft', 1, 'zoe')")
        file.execute("PRAGMA application_id = 1128812370")
        file.execute(f"PRAGMA user_version = {version}")
    file.close()
    return one


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_file_gains_what_it_lacks_and_loses_nothing(path, version):
    old = write(path, version)
    for _ in range(2):
        with SuccessBuffer(path) as buffer:
            assert buffer.select(round_index=0, use_expert=True) == [old]
            assert buffer.experts() == []
            assert len(buffer.explored(round_index=9)) == version - 1
            assert buffer._db.execute("PRAGMA user_version").fetchone() == (3,)
    with SuccessBuffer(path) as buffer:
        assert buffer.add_expert([won(2)]) == 1
        assert buffer.delete_subject("zoe") == 1
        assert buffer.explored(round_index=9) == []


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_an_old_schema_ends_with_the_columns_of_a_fresh_one(tmp_path, version):
    def columns(path):
        with SuccessBuffer(path) as buffer:
            return buffer._db.execute(
                "SELECT t.name, c.name, c.type, c.pk FROM sqlite_schema t"
                " JOIN pragma_table_info(t.name) c ORDER BY t.name, c.cid"
            ).fetchall()

    write(tmp_path / "old", version)
    assert columns(tmp_path / "old") == columns(tmp_path / "fresh")
    assert len(columns(tmp_path / "fresh")) == 8 + 5 + 8


def test_a_file_of_a_later_schema_is_refused(path):
    with SuccessBuffer(path) as buffer:
        buffer._db.execute("PRAGMA user_version = 4")
    with pytest.raises(BufferCorruptError, match="version"):
        SuccessBuffer(path)


@pytest.mark.parametrize("version", [1, 2])
def test_an_upgrade_that_stops_halfway_is_repeated(path, monkeypatch, version):
    old = write(path, version)
    broken = {**buffer_schema._ADDED_IN, 3: "CREATE TABLE demonstration; no"}
    with monkeypatch.context() as patch:
        patch.setattr(buffer_schema, "_ADDED_IN", broken)
        with pytest.raises(BufferCorruptError):
            SuccessBuffer(path)
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA user_version").fetchone() == (version,)
    raw.close()
    with SuccessBuffer(path) as buffer:
        assert buffer.select(round_index=0) == [old]
        assert buffer.add_expert([won(2)]) == 1
        buffer.explore([Task(environment="craft", task_id=9)], round_index=1, adapter_sha256="a")


@pytest.mark.parametrize("version", [0, 1, 2])
def test_two_processes_may_open_an_older_file_at_once(path, version):
    """One of them adds the tables between the other's look at the file and its turn to write."""
    if version:
        write(path, version)
    one, other = (sqlite3.connect(path, isolation_level=None) for _ in range(2))
    turns = []

    def before(statement):
        if statement == "BEGIN IMMEDIATE" and not turns:
            turns.append(statement)
            buffer_schema.prepare(other)

    one.set_trace_callback(before)
    buffer_schema.prepare(one)
    one.close()
    other.close()
    assert turns
    with SuccessBuffer(path) as buffer:
        assert len(buffer) == bool(version)
