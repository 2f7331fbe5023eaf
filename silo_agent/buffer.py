"""The success buffer: what this silo's agent did right, kept on the silo's own disk.

The D_train of Fed-SE (arXiv 2512.08870, algorithm 1): the union of all rounds' successes. It adds
what an operator needs: a cap, deletion by subject or task, and a file that can be looked into.
Invariants:

1. A trajectory is identified by (environment, task id, hash of its conversation). Adding it again
   changes nothing, so a round that is repeated after a crash leaves no trace.
2. Only successes are accepted.
3. ``select`` depends on the set of stored trajectories alone, not on the order they arrived in.
4. Above a cap, the oldest rounds go first, and within a round the longest trajectories. A cap on
   the whole buffer lets one task push out another's, so record-level privacy has a cap per task.
5. What was explored is written down before it is played and apart from what succeeded: the set of
   units that may be sampled must not depend on success.
6. Contents are JSON in SQLite: nothing stored can run code. The file is readable by its owner
   only, and deleted rows are overwritten (``secure_delete``).

Schema 1 had no record of what was explored. Opening such a file adds an empty one: only successes
could be filled in, so older contents belong to no unit.

Covered: one process at a time, from any one thread at a time; restart after a crash at any point.
Not covered: encryption at rest (use an encrypted volume), several writers.

Errors::

    BufferStoreError
    ├── BufferCorruptError    the file is damaged or not ours
    └── BufferContentError    a trajectory that may not be stored
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from silo_agent.trajectory import Task, Trajectory
from silo_agent.trajectory_json import decode_trajectory, encode_trajectory

__all__ = [
    "BufferContentError",
    "BufferCorruptError",
    "BufferStoreError",
    "Explored",
    "SuccessBuffer",
]

_log = structlog.get_logger(__name__)
_APPLICATION_ID = 0x43484F52  # "CHOR": tells our files from other SQLite files
_SCHEMA_VERSION = 2
_TRAJECTORIES = """
CREATE TABLE trajectory (
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
_EVICT = """
DELETE FROM trajectory WHERE (environment, task_id, conversation_sha256) IN (
  SELECT environment, task_id, conversation_sha256 FROM trajectory
  ORDER BY round DESC, steps, tokens, conversation_sha256, environment, task_id
  LIMIT -1 OFFSET ?)
"""
_EVICT_PER_TASK = """
DELETE FROM trajectory WHERE (environment, task_id, conversation_sha256) IN (
  SELECT environment, task_id, conversation_sha256 FROM (
    SELECT environment, task_id, conversation_sha256, row_number() OVER (
      PARTITION BY environment, task_id
      ORDER BY round DESC, steps, tokens, conversation_sha256) AS place
    FROM trajectory)
  WHERE place > ?)
"""


class BufferStoreError(Exception):
    """Base of everything the buffer can fail with."""


class BufferCorruptError(BufferStoreError):
    """The file is damaged or was not written by this version of the project."""


class BufferContentError(BufferStoreError):
    """The trajectory may not be stored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explored:
    """A task that was played, whatever came of it."""

    task: Task
    """What was played."""
    round: int
    """When."""
    adapter_sha256: str
    """By which released adapter."""


class SuccessBuffer:
    """See the module."""

    def __init__(
        self,
        path: str | Path,
        *,
        capacity: int | None = 20_000,
        capacity_per_task: int | None = None,
    ) -> None:
        """Open a buffer, creating it if absent.

        Args:
            path: The file.
            capacity: Most trajectories kept; None for no limit.
            capacity_per_task: Most trajectories kept of one task; None for no limit.

        Raises:
            BufferCorruptError: The file exists but is damaged or is something else.
            BufferContentError: A capacity is not positive.
        """
        room = min(n for n in (capacity, capacity_per_task, 1) if n is not None)
        if room < 1:
            raise BufferContentError(f"a buffer needs room for at least one entry, not {room}")
        self._path = Path(path)
        self._capacity = capacity
        self._capacity_per_task = capacity_per_task
        self._path.touch(mode=0o600)
        # The daemon trains in a worker thread; one thread at a time uses the connection.
        self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise BufferCorruptError(f"{self._path}: {error}") from error
        except BufferCorruptError:
            self._db.close()
            raise

    def _open(self) -> None:
        self._db.execute("PRAGMA secure_delete = ON")
        self._db.execute("PRAGMA synchronous = FULL")
        found = tuple(
            self._db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version", "schema_version")
        )
        if found == (0, 0, 0):
            self._write_schema(_TRAJECTORIES, _EXPLORED)
        elif found[:2] == (_APPLICATION_ID, 1):
            self._write_schema(_EXPLORED)
        elif found[:2] != (_APPLICATION_ID, _SCHEMA_VERSION):
            raise BufferCorruptError(f"{self._path} is not a success buffer of this version")
        verdict = self._db.execute("PRAGMA quick_check").fetchone()[0]
        if verdict != "ok":
            raise BufferCorruptError(f"{self._path}: {verdict}")

    def _write_schema(self, *tables: str) -> None:
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for table in tables:
                self._db.execute(table)
            self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")

    def add(self, trajectories: Iterable[Trajectory]) -> int:
        """Store successes, then enforce the caps.

        Args:
            trajectories: Successes; duplicates are fine.

        Returns:
            How many were new.

        Raises:
            BufferContentError: One of them is no success or has no step. None is stored then.
        """
        rows = [_row(trajectory) for trajectory in trajectories]
        before = self._db.total_changes
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT OR IGNORE INTO trajectory VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows
            )
            added = self._db.total_changes - before
            if self._capacity_per_task is not None:
                self._db.execute(_EVICT_PER_TASK, (self._capacity_per_task,))
            if self._capacity is not None:
                self._db.execute(_EVICT, (self._capacity,))
        return added

    def select(
        self,
        *,
        round_index: int,
        window: int = 0,
        best_per_task: bool = False,
        tasks_apart: bool = False,
    ) -> list[Trajectory]:
        """The training set of a round.

        Args:
            round_index: The current round; later ones are left out.
            window: How many rounds count, the current one included; 0 means all.
            best_per_task: Keep only the shortest success of each task.
            tasks_apart: Leave out what cannot be read, and nothing else, for what one task stored
                may not decide whether the others are found.

        Returns:
            Trajectories ordered by environment, task, steps, tokens and conversation.

        Raises:
            BufferCorruptError: A stored trajectory cannot be read, and tasks are not kept apart.
        """
        try:
            # As bytes: text that is not UTF-8 would fail the query and with it every row.
            rows = self._db.execute(
                "SELECT environment, task_id, CAST(payload AS BLOB) FROM trajectory"
                " WHERE round BETWEEN ? AND ?"
                " ORDER BY environment, task_id, steps, tokens, conversation_sha256",
                (_first(round_index, window), round_index),
            ).fetchall()
        except sqlite3.DatabaseError as error:
            raise BufferCorruptError(f"{self._path}: {error}") from error
        chosen: list[Trajectory] = []
        last: tuple[str, int] | None = None
        for environment, task_id, payload in rows:
            if not (best_per_task and last == (environment, task_id)):
                try:
                    chosen.append(decode_trajectory(payload, environment, task_id))
                except Exception as error:
                    # Whatever one row does to its reader is its own task's affair.
                    if not tasks_apart:
                        raise BufferCorruptError(f"{self._path}: {error}") from error
                    _log.warning("trajectory_not_read", error=type(error).__name__)
            last = (environment, task_id)
        return chosen

    def explore(self, tasks: Iterable[Task], *, round_index: int, adapter_sha256: str) -> None:
        """Write down what a released adapter is about to play; again changes nothing.

        Args:
            tasks: What is played.
            round_index: When.
            adapter_sha256: The adapter's identity.
        """
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT OR IGNORE INTO explored VALUES (?, ?, ?, ?, ?)",
                [
                    (round_index, adapter_sha256, task.environment, task.task_id, task.subject)
                    for task in tasks
                ],
            )

    def explored(self, *, round_index: int, window: int = 0) -> list[Explored]:
        """What was played in a window, successful or not.

        Args:
            round_index: The current round; later ones are left out.
            window: How many rounds count, the current one included; 0 means all.

        Returns:
            Entries ordered by environment, task, round and adapter.

        Raises:
            BufferCorruptError: The file cannot be read.
        """
        try:
            rows = self._db.execute(
                "SELECT environment, task_id, subject, round, adapter_sha256 FROM explored WHERE"
                " round BETWEEN ? AND ? ORDER BY environment, task_id, round, adapter_sha256",
                (_first(round_index, window), round_index),
            ).fetchall()
        except sqlite3.DatabaseError as error:
            raise BufferCorruptError(f"{self._path}: {error}") from error
        return [
            Explored(
                task=Task(environment=environment, task_id=task_id, subject=subject),
                round=number,
                adapter_sha256=adapter_sha256,
            )
            for environment, task_id, subject, number, adapter_sha256 in rows
        ]

    def delete_subject(self, subject: str) -> int:
        """Forget everything made of one subject's data.

        Args:
            subject: As recorded in the tasks; not empty.

        Returns:
            How many trajectories went.

        Raises:
            BufferContentError: The subject is empty, which stands for "nobody's".
        """
        if not subject:
            raise BufferContentError("an empty subject would delete what belongs to nobody")
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("DELETE FROM explored WHERE subject = ?", (subject,))
            return self._db.execute("DELETE FROM trajectory WHERE subject = ?", (subject,)).rowcount

    def delete_task(self, task: Task) -> int:
        """Forget everything about one task.

        Args:
            task: The task.

        Returns:
            How many trajectories went.
        """
        key = (task.environment, task.task_id)
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("DELETE FROM explored WHERE environment = ? AND task_id = ?", key)
            return self._db.execute(
                "DELETE FROM trajectory WHERE environment = ? AND task_id = ?", key
            ).rowcount

    def __len__(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM trajectory").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _first(round_index: int, window: int) -> int:
    return round_index - window + 1 if window else -1


def _row(trajectory: Trajectory) -> tuple[str | int, ...]:
    if not trajectory.success:
        raise BufferContentError("only successes belong into the buffer")
    if not trajectory.steps:
        raise BufferContentError("a trajectory without a step teaches nothing")
    return (
        trajectory.task.environment,
        trajectory.task.task_id,
        trajectory.conversation_sha256,
        trajectory.task.subject,
        trajectory.round,
        len(trajectory.steps),
        trajectory.token_count,
        encode_trajectory(trajectory),
    )
