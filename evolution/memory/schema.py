"""The tables of the success buffer, and files of earlier schemas.

Schema 1 had the successes alone. Schema 2 added what was explored, schema 3 the demonstrations.
Opening an older file adds what it lacks, empty, in one transaction: only successes could be filled
in as explored, so older contents belong to no unit, and no older row is a demonstration.

Invariant: a file is of one schema or of the next, whatever crashes when and whoever else opens it.

Covered: new files, files of every earlier schema. Not covered: going back to an earlier version.
"""

from __future__ import annotations

import sqlite3
from typing import Final

__all__ = [
    "APPLICATION_ID",
    "COUNTS",
    "DELETE_SUBJECT",
    "DELETE_TASK",
    "EVICT",
    "EVICT_PER_TASK",
    "INSERT",
    "KNOWN_TASKS",
    "SCHEMA_VERSION",
    "SELECT",
    "is_ours",
    "prepare",
]

APPLICATION_ID: Final = 0x43484F52
"""``CHOR``: tells our files from other SQLite files."""
SCHEMA_VERSION: Final = 3

_CONVERSATIONS = """
CREATE TABLE {name} (
  environment TEXT NOT NULL,
  task_id INTEGER NOT NULL,
  conversation_sha256 TEXT NOT NULL,
  subject TEXT NOT NULL,
  round INTEGER NOT NULL,
  steps INTEGER NOT NULL,
  tokens INTEGER NOT NULL,
  payload TEXT NOT NULL,
  PRIMARY KEY (environment, task_id, conversation_sha256)
) WITHOUT ROWID
"""
_EXPLORED = """
CREATE TABLE explored (
  round INTEGER NOT NULL,
  adapter_sha256 TEXT NOT NULL,
  environment TEXT NOT NULL,
  task_id INTEGER NOT NULL,
  subject TEXT NOT NULL,
  PRIMARY KEY (round, adapter_sha256, environment, task_id)
) WITHOUT ROWID
"""
_ADDED_IN: Final = {
    1: _CONVERSATIONS.format(name="trajectory"),
    2: _EXPLORED,
    3: _CONVERSATIONS.format(name="demonstration"),
}
"""What each schema has that the one before it has not."""

INSERT: Final = {
    "trajectory": "INSERT OR IGNORE INTO trajectory VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    "demonstration": "INSERT OR IGNORE INTO demonstration VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
}
DELETE_SUBJECT: Final = (
    "DELETE FROM explored WHERE subject = ?",
    "DELETE FROM trajectory WHERE subject = ?",
    "DELETE FROM demonstration WHERE subject = ?",
)
"""What was explored first, then what is counted as gone."""
DELETE_TASK: Final = (
    "DELETE FROM explored WHERE environment = ? AND task_id = ?",
    "DELETE FROM trajectory WHERE environment = ? AND task_id = ?",
    "DELETE FROM demonstration WHERE environment = ? AND task_id = ?",
)
"""The same of one task."""
# As bytes: text that is not UTF-8 would fail the query and with it every row.
SELECT: Final = """
SELECT environment, task_id, conversation_sha256, CAST(payload AS BLOB), steps, tokens, 0 AS expert
  FROM trajectory WHERE round BETWEEN ? AND ?
UNION ALL
SELECT environment, task_id, conversation_sha256, CAST(payload AS BLOB), steps, tokens, 1 AS expert
  FROM demonstration WHERE ?
ORDER BY environment, task_id, steps, tokens, conversation_sha256, expert
"""
KNOWN_TASKS: Final = """
SELECT environment, task_id FROM explored UNION SELECT environment, task_id FROM trajectory
UNION SELECT environment, task_id FROM demonstration
"""
COUNTS: Final = """
SELECT environment, sum(1 - expert), sum(expert), count(DISTINCT task_id) FROM (
  SELECT environment, task_id, 0 AS expert FROM trajectory
  UNION ALL SELECT environment, task_id, 1 FROM demonstration)
GROUP BY environment ORDER BY environment
"""
EVICT: Final = """
DELETE FROM trajectory WHERE (environment, task_id, conversation_sha256) IN (
  SELECT environment, task_id, conversation_sha256 FROM trajectory
  ORDER BY round DESC, steps, tokens, conversation_sha256, environment, task_id
  LIMIT -1 OFFSET ?)
"""
EVICT_PER_TASK: Final = """
DELETE FROM trajectory WHERE (environment, task_id, conversation_sha256) IN (
  SELECT environment, task_id, conversation_sha256 FROM (
    SELECT environment, task_id, conversation_sha256, row_number() OVER (
      PARTITION BY environment, task_id
      ORDER BY round DESC, steps, tokens, conversation_sha256) AS place
    FROM trajectory)
  WHERE place > ?)
"""


def is_ours(db: sqlite3.Connection) -> bool:
    """Whether a database is empty, or a buffer of this schema or an earlier one."""
    identity, version, tables = _found(db)
    empty = (identity, version, tables) == (0, 0, 0)
    return empty or (identity == APPLICATION_ID and 1 <= version <= SCHEMA_VERSION)


def prepare(db: sqlite3.Connection) -> None:
    """Add the tables that a buffer lacks; ``is_ours`` has said yes.

    Raises:
        sqlite3.DatabaseError: The file cannot be written or is damaged.
    """
    if _found(db)[1] == SCHEMA_VERSION:
        return
    with db:
        db.execute("BEGIN IMMEDIATE")
        # Another process may have added them while this one waited for its turn.
        version = _found(db)[1]
        for number in range(version + 1, SCHEMA_VERSION + 1):
            db.execute(_ADDED_IN[number])
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _found(db: sqlite3.Connection) -> tuple[int, int, int]:
    # One statement sees one state of the file; three could see that another process changed it.
    identity, version, tables = db.execute(
        "SELECT application_id, user_version, schema_version"
        " FROM pragma_application_id, pragma_user_version, pragma_schema_version"
    ).fetchone()
    return int(identity), int(version), int(tables)
