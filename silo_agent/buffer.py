"""The success buffer: what this silo's agent did right, kept on the silo's own disk.

The D_train of Fed-SE (arXiv 2512.08870, algorithm 1): the union of all rounds' successes. It adds
what an operator needs: a cap, deletion by subject or task, and a file that can be looked into.
Invariants:

1. A trajectory is identified by (environment, task id, hash of its conversation). Adding it again
   changes nothing, so a round that is repeated after a crash leaves no trace.
2. Only successes are accepted.
3. ``select`` depends on the set of stored trajectories alone, not on the order they arrived in.
4. Above the cap, the oldest rounds go first, and within a round the longest trajectories.
5. Contents are JSON in SQLite: nothing stored can run code. The file is readable by its owner
   only, and deleted rows are overwritten (``secure_delete``).

Covered: one process at a time, from any one thread at a time; restart after a crash at any point.
Not covered: encryption at rest (use an encrypted volume), several writers.

Errors::

    BufferStoreError
    ├── BufferCorruptError    the file is damaged or not ours
    └── BufferContentError    a trajectory that may not be stored
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from silo_agent.trajectory import Step, Task, Trajectory

__all__ = ["BufferContentError", "BufferCorruptError", "BufferStoreError", "SuccessBuffer"]

_APPLICATION_ID = 0x43484F52  # "CHOR": tells our files from other SQLite files
_SCHEMA_VERSION = 1
_SCHEMA = """
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


class BufferStoreError(Exception):
    """Base of everything the buffer can fail with."""


class BufferCorruptError(BufferStoreError):
    """The file is damaged or was not written by this version of the project."""


class BufferContentError(BufferStoreError):
    """The trajectory may not be stored."""


class SuccessBuffer:
    """See the module."""

    def __init__(self, path: str | Path, *, capacity: int = 20_000) -> None:
        """Open a buffer, creating it if absent.

        Args:
            path: The file.
            capacity: Most trajectories kept.

        Raises:
            BufferCorruptError: The file exists but is damaged or is something else.
            BufferContentError: The capacity is not positive.
        """
        if capacity < 1:
            raise BufferContentError(f"a buffer needs room for at least one entry, not {capacity}")
        self._path = Path(path)
        self._capacity = capacity
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
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.execute(_SCHEMA)
                self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                self._db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        elif found[:2] != (_APPLICATION_ID, _SCHEMA_VERSION):
            raise BufferCorruptError(f"{self._path} is not a success buffer of this version")
        verdict = self._db.execute("PRAGMA quick_check").fetchone()[0]
        if verdict != "ok":
            raise BufferCorruptError(f"{self._path}: {verdict}")

    def add(self, trajectories: Iterable[Trajectory]) -> int:
        """Store successes, then enforce the cap.

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
            self._db.execute(
                "DELETE FROM trajectory WHERE (environment, task_id, conversation_sha256) IN ("
                "  SELECT environment, task_id, conversation_sha256 FROM trajectory"
                "  ORDER BY round DESC, steps, tokens, conversation_sha256, environment, task_id"
                "  LIMIT -1 OFFSET ?)",
                (self._capacity,),
            )
        return added

    def select(
        self, *, round_index: int, window: int = 0, best_per_task: bool = False
    ) -> list[Trajectory]:
        """The training set of a round.

        Args:
            round_index: The current round; later ones are left out.
            window: How many rounds count, the current one included; 0 means all.
            best_per_task: Keep only the shortest success of each task.

        Returns:
            Trajectories ordered by environment, task, steps, tokens and conversation.

        Raises:
            BufferCorruptError: A stored trajectory cannot be read.
        """
        first = round_index - window + 1 if window else -1
        try:
            rows = self._db.execute(
                "SELECT environment, task_id, payload FROM trajectory WHERE round BETWEEN ? AND ?"
                " ORDER BY environment, task_id, steps, tokens, conversation_sha256",
                (first, round_index),
            ).fetchall()
            chosen: list[Trajectory] = []
            last: tuple[str, int] | None = None
            for environment, task_id, payload in rows:
                if not (best_per_task and last == (environment, task_id)):
                    chosen.append(_trajectory(json.loads(payload)))
                last = (environment, task_id)
        except (sqlite3.DatabaseError, ValueError, KeyError, TypeError) as error:
            raise BufferCorruptError(f"{self._path}: {error}") from error
        return chosen

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
        return self._db.execute("DELETE FROM trajectory WHERE subject = ?", (subject,)).rowcount

    def delete_task(self, task: Task) -> int:
        """Forget everything about one task.

        Args:
            task: The task.

        Returns:
            How many trajectories went.
        """
        return self._db.execute(
            "DELETE FROM trajectory WHERE environment = ? AND task_id = ?",
            (task.environment, task.task_id),
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


def _row(trajectory: Trajectory) -> tuple[str | int, ...]:
    if not trajectory.success:
        raise BufferContentError("only successes belong into the buffer")
    if not trajectory.steps:
        raise BufferContentError("a trajectory without a step teaches nothing")
    payload = {
        "adapter_sha256": trajectory.adapter_sha256,
        "final_observation": trajectory.final_observation,
        "round": trajectory.round,
        "steps": [
            {
                "observation": step.observation,
                "action": step.action,
                "context_ids": step.context_ids,
                "action_ids": step.action_ids,
                "action_logprobs": step.action_logprobs,
            }
            for step in trajectory.steps
        ],
        "task": {
            "environment": trajectory.task.environment,
            "task_id": trajectory.task.task_id,
            "subject": trajectory.task.subject,
        },
    }
    return (
        trajectory.task.environment,
        trajectory.task.task_id,
        trajectory.conversation_sha256,
        trajectory.task.subject,
        trajectory.round,
        len(trajectory.steps),
        trajectory.token_count,
        json.dumps(payload, separators=(",", ":")),
    )


def _trajectory(payload: dict[str, Any]) -> Trajectory:
    return Trajectory(
        task=Task(**payload["task"]),
        steps=tuple(
            Step(
                observation=str(step["observation"]),
                action=str(step["action"]),
                context_ids=tuple(map(int, step["context_ids"])),
                action_ids=tuple(map(int, step["action_ids"])),
                action_logprobs=tuple(map(float, step["action_logprobs"])),
            )
            for step in payload["steps"]
        ),
        final_observation=str(payload["final_observation"]),
        success=True,
        adapter_sha256=str(payload["adapter_sha256"]),
        round=int(payload["round"]),
    )
