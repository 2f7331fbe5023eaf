"""The tables of a silo's memory, and files of earlier schemas.

Schema 1 had the successes alone. Schema 2 added what was explored, schema 3 the demonstrations.
Schema 4 keeps every try: ``trajectory`` becomes ``tried``, and ``explored`` knows how many tries
were begun. Opening an older file brings it to this schema in one transaction:

- What was explored is empty where the file did not say it: only successes could be filled in, so
  older contents belong to no unit. How many tries there were is unknown and 0.
- No older row is a demonstration unless it was one.
- Older rows are successes. What was not written down about them stays at its default: no step's
  reward is made up, so theirs is 0, and it is ``success`` that says how they ended. No group holds
  an old success beside an old failure, so no advantage comes out of these zeros.
- Nobody knows how old they are: their age counts from the upgrade.

``tried.imitated`` marks the rows that imitation reads: successes, of which equal conversations
count once however often they were played. It is decided when a row arrives, within its own task.
All other rows are failures, and successes that were played before; they are capped apart, so that
nothing of them can displace, reorder or repeat what is imitated.

Invariant: a file is of one schema or of the next, whatever crashes when and whoever else opens it.

Covered: new files, files of every earlier schema. Not covered: going back to an earlier version.
"""

from __future__ import annotations

import sqlite3
from typing import Final

__all__ = [
    "ALL_TRIED",
    "APPLICATION_ID",
    "COUNTS",
    "DELETE_SUBJECT",
    "DELETE_TASK",
    "EVICT",
    "EVICT_OF_TASK",
    "EXPIRE",
    "EXPLORED",
    "INSERT_DEMONSTRATION",
    "INSERT_EXPLORED",
    "INSERT_TRIED",
    "IS_KNOWN",
    "KNOWN_TASKS",
    "OVERFULL_TASKS",
    "SCHEMA_VERSION",
    "SELECT",
    "is_ours",
    "prepare",
]

APPLICATION_ID: Final = 0x43484F52
"""``CHOR``: tells our files from other SQLite files."""
SCHEMA_VERSION: Final = 4

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
_EXPLORED_2 = """
CREATE TABLE explored (
  round INTEGER NOT NULL,
  adapter_sha256 TEXT NOT NULL,
  environment TEXT NOT NULL,
  task_id INTEGER NOT NULL,
  subject TEXT NOT NULL,
  PRIMARY KEY (round, adapter_sha256, environment, task_id)
) WITHOUT ROWID
"""
_EXPLORED_4 = """
CREATE TABLE explored (
  round INTEGER NOT NULL,
  adapter_sha256 TEXT NOT NULL,
  environment TEXT NOT NULL,
  task_id INTEGER NOT NULL,
  start TEXT NOT NULL,
  subject TEXT NOT NULL,
  tries INTEGER NOT NULL,
  begun_unix_s INTEGER NOT NULL,
  PRIMARY KEY (round, adapter_sha256, environment, task_id, start)
) WITHOUT ROWID
"""
_TRIED = """
CREATE TABLE tried (
  environment TEXT NOT NULL,
  task_id INTEGER NOT NULL,
  start TEXT NOT NULL,
  conversation_sha256 TEXT NOT NULL,
  round INTEGER NOT NULL,
  adapter_sha256 TEXT NOT NULL,
  subject TEXT NOT NULL,
  origin TEXT NOT NULL,
  success INTEGER NOT NULL,
  reward REAL NOT NULL,
  imitated INTEGER NOT NULL,
  copies INTEGER NOT NULL,
  steps INTEGER NOT NULL,
  tokens INTEGER NOT NULL,
  begun_unix_s INTEGER NOT NULL,
  payload TEXT NOT NULL,
  PRIMARY KEY (environment, task_id, conversation_sha256, round, adapter_sha256)
) WITHOUT ROWID
"""
_IN_ORDER = """
CREATE INDEX tried_in_order ON tried (
  imitated, round DESC, steps, tokens, conversation_sha256, environment, task_id, adapter_sha256)
"""
# A payload that is no JSON stays, unread as it was, and names no adapter.
_KEEP_SUCCESSES = """
INSERT INTO tried
SELECT environment, task_id, '', conversation_sha256, round,
  CASE WHEN typeof(payload) = 'text' AND json_valid(payload)
    THEN coalesce(CAST(json_extract(payload, '$.adapter_sha256') AS TEXT), '') ELSE '' END,
  subject, 'explored', 1, 0.0, 1, 1, steps, tokens, CAST(strftime('%s', 'now') AS INTEGER), payload
FROM trajectory
"""
_KEEP_EXPLORED = """
INSERT INTO explored
SELECT round, adapter_sha256, environment, task_id, '', subject, 0,
  CAST(strftime('%s', 'now') AS INTEGER)
FROM explored_before
"""
_STEPS_TO: Final = {
    1: (_CONVERSATIONS.format(name="trajectory"),),
    2: (_EXPLORED_2,),
    3: (_CONVERSATIONS.format(name="demonstration"),),
    4: (
        _TRIED,
        _KEEP_SUCCESSES,
        _IN_ORDER,
        "DROP TABLE trajectory",
        "ALTER TABLE explored RENAME TO explored_before",
        _EXPLORED_4,
        _KEEP_EXPLORED,
        "DROP TABLE explored_before",
    ),
}
"""How a file of the schema before becomes one of this schema."""

INSERT_TRIED: Final = """
INSERT INTO tried VALUES (
  :environment, :task_id, :start, :conversation_sha256, :round, :adapter_sha256, :subject, :origin,
  :success, :reward,
  :success AND NOT EXISTS (SELECT 1 FROM tried WHERE imitated AND environment = :environment
    AND task_id = :task_id AND conversation_sha256 = :conversation_sha256),
  :copies, :steps, :tokens, :begun_unix_s, :payload)
ON CONFLICT (environment, task_id, conversation_sha256, round, adapter_sha256) DO UPDATE SET
  copies = max(copies, excluded.copies), imitated = max(imitated, excluded.imitated)
"""
"""A round that is repeated plays the same tries again: copies are no sum over its repetitions."""
IS_KNOWN: Final = """
SELECT 1 FROM tried WHERE environment = :environment AND task_id = :task_id
  AND conversation_sha256 = :conversation_sha256 AND round = :round
  AND adapter_sha256 = :adapter_sha256
"""
INSERT_DEMONSTRATION: Final = """
INSERT OR IGNORE INTO demonstration VALUES (
  :environment, :task_id, :conversation_sha256, :subject, :round, :steps, :tokens, :payload)
"""
INSERT_EXPLORED: Final = "INSERT OR IGNORE INTO explored VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
DELETE_SUBJECT: Final = (
    "DELETE FROM explored WHERE subject = ?",
    "DELETE FROM tried WHERE subject = ?",
    "DELETE FROM demonstration WHERE subject = ?",
)
"""What was explored first, then what is counted as gone."""
DELETE_TASK: Final = (
    "DELETE FROM explored WHERE environment = ? AND task_id = ?",
    "DELETE FROM tried WHERE environment = ? AND task_id = ?",
    "DELETE FROM demonstration WHERE environment = ? AND task_id = ?",
)
"""The same of one task."""
EXPIRE: Final = (
    "DELETE FROM explored WHERE begun_unix_s < ?",
    "DELETE FROM tried WHERE begun_unix_s < ?",
)
"""What is older; demonstrations have no age."""
# As bytes: text that is not UTF-8 would fail the query and with it every row.
SELECT: Final = """
SELECT environment, task_id, start, conversation_sha256, CAST(payload AS BLOB), steps, tokens,
  0 AS expert FROM tried WHERE imitated AND round BETWEEN ? AND ?
UNION ALL
SELECT environment, task_id, '' AS start, conversation_sha256, CAST(payload AS BLOB), steps, tokens,
  1 AS expert FROM demonstration WHERE ?
ORDER BY environment, task_id, start, steps, tokens, conversation_sha256, expert
"""
ALL_TRIED: Final = """
SELECT environment, task_id, start, round, adapter_sha256, copies, CAST(payload AS BLOB) FROM tried
WHERE round BETWEEN ? AND ?
ORDER BY environment, task_id, start, round, adapter_sha256, steps, tokens, conversation_sha256
"""
EXPLORED: Final = """
SELECT environment, task_id, start, round, adapter_sha256, subject, tries FROM explored
WHERE round BETWEEN ? AND ? ORDER BY environment, task_id, start, round, adapter_sha256
"""
KNOWN_TASKS: Final = """
SELECT environment, task_id FROM explored UNION SELECT environment, task_id FROM tried
UNION SELECT environment, task_id FROM demonstration
"""
COUNTS: Final = """
SELECT environment, sum(explored), sum(solved), sum(demonstrations), count(DISTINCT task_id) FROM (
  SELECT environment, task_id, copies AS explored, copies * success AS solved, 0 AS demonstrations
    FROM tried
  UNION ALL SELECT environment, task_id, 0, 0, 1 FROM demonstration)
GROUP BY environment ORDER BY environment
"""
EVICT: Final = """
DELETE FROM tried
WHERE (environment, task_id, conversation_sha256, round, adapter_sha256) IN (
  SELECT environment, task_id, conversation_sha256, round, adapter_sha256 FROM tried
  WHERE imitated = ?
  ORDER BY round DESC, steps, tokens, conversation_sha256, environment, task_id, adapter_sha256
  LIMIT -1 OFFSET ?)
"""
EVICT_OF_TASK: Final = """
DELETE FROM tried WHERE environment = :environment AND task_id = :task_id
AND (conversation_sha256, round, adapter_sha256) IN (
  SELECT conversation_sha256, round, adapter_sha256 FROM tried
  WHERE environment = :environment AND task_id = :task_id AND imitated = :imitated
  ORDER BY round DESC, steps, tokens, conversation_sha256, adapter_sha256
  LIMIT -1 OFFSET :kept)
"""
OVERFULL_TASKS: Final = """
SELECT environment, task_id FROM tried WHERE imitated = ?
GROUP BY environment, task_id HAVING count(*) > ?
"""


def is_ours(db: sqlite3.Connection) -> bool:
    """Whether a database is empty, or a memory of this schema or an earlier one."""
    identity, version, tables = _found(db)
    empty = (identity, version, tables) == (0, 0, 0)
    return empty or (identity == APPLICATION_ID and 1 <= version <= SCHEMA_VERSION)


def prepare(db: sqlite3.Connection) -> None:
    """Bring a file to this schema; ``is_ours`` has said yes.

    Raises:
        sqlite3.DatabaseError: The file cannot be written or is damaged.
    """
    if _found(db)[1] == SCHEMA_VERSION:
        return
    with db:
        db.execute("BEGIN IMMEDIATE")
        # Another process may have done it while this one waited for its turn.
        version = _found(db)[1]
        for number in range(version + 1, SCHEMA_VERSION + 1):
            for statement in _STEPS_TO[number]:
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _found(db: sqlite3.Connection) -> tuple[int, int, int]:
    # One statement sees one state of the file; three could see that another process changed it.
    identity, version, tables = db.execute(
        "SELECT application_id, user_version, schema_version"
        " FROM pragma_application_id, pragma_user_version, pragma_schema_version"
    ).fetchone()
    return int(identity), int(version), int(tables)
