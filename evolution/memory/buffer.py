"""The success buffer: what this silo's agent did right, kept on the silo's own disk.

The D_train of Fed-SE (arXiv 2512.08870, algorithm 1): the union of all rounds' successes. It adds
what an operator needs: a cap, deletion by subject or task, and a file that can be looked into.
D_train[k, 0], the expert set, is kept beside the successes as *demonstrations*. Invariants:

1. A trajectory is identified by (environment, task id, hash of its conversation). Adding it again
   changes nothing, so a round that is repeated after a crash leaves no trace.
2. Only successes are accepted.
3. ``select`` depends on the set of stored trajectories alone, not on the order they arrived in.
4. Above a cap, the oldest rounds go first, and within a round the longest trajectories. A cap on
   the whole buffer lets one task push out another's, so record-level privacy has a cap per task.
   Demonstrations are outside both caps and never evicted; what would be more than
   ``expert_capacity`` of them is refused, because an operator who gave them must know.
5. What was explored is written down before it is played and apart from what succeeded: the set of
   units that may be sampled must not depend on success.
6. Contents are JSON in SQLite: nothing stored can run code. The file is readable by its owner
   only, and deleted rows are overwritten (``secure_delete``).
7. A demonstration is never taken for something explored, nor the other way round, whichever came
   first. Where both are the same conversation, a training set holds it once.

Covered: one process at a time, from any one thread at a time; restart after a crash at any point;
files of earlier schemas (``evolution/memory/schema.py``).
Not covered: encryption at rest (use an encrypted volume), several writers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from evolution.errors import BufferContentError, BufferCorruptError, BufferStoreError
from evolution.memory.entries import BufferCount, Explored, row_of
from evolution.memory.schema import (
    COUNTS,
    DELETE_SUBJECT,
    DELETE_TASK,
    EVICT,
    EVICT_PER_TASK,
    INSERT,
    KNOWN_TASKS,
    SELECT,
    is_ours,
    prepare,
)
from evolution.memory.trajectory_json import decode_trajectory
from evolution.trajectory import Task, Trajectory

__all__ = [
    "BufferContentError",
    "BufferCorruptError",
    "BufferCount",
    "BufferStoreError",
    "Explored",
    "SuccessBuffer",
]

_log = structlog.get_logger(__name__)


class SuccessBuffer:
    """See the module."""

    def __init__(
        self,
        path: str | Path,
        *,
        capacity: int | None = 20_000,
        capacity_per_task: int | None = None,
        expert_capacity: int = 20_000,
    ) -> None:
        """Open a buffer, creating it if absent.

        The capacities are the most trajectories kept, in all and of one task (None for no limit),
        and the most demonstrations accepted.

        Raises:
            BufferCorruptError: The file exists but is damaged or is something else.
            BufferContentError: A capacity is not positive.
        """
        room = min(n for n in (capacity, capacity_per_task, expert_capacity, 1) if n is not None)
        if room < 1:
            raise BufferContentError(f"a buffer needs room for at least one entry, not {room}")
        self._path = Path(path)
        self._capacity = capacity
        self._capacity_per_task = capacity_per_task
        self._expert_capacity = expert_capacity
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
        if not is_ours(self._db):
            raise BufferCorruptError(f"{self._path} is not a success buffer of this version")
        prepare(self._db)
        verdict = self._db.execute("PRAGMA quick_check").fetchone()[0]
        if verdict != "ok":
            raise BufferCorruptError(f"{self._path}: {verdict}")

    def add(self, trajectories: Iterable[Trajectory]) -> int:
        """Store successes, then enforce the caps; returns how many were new.

        Duplicates are fine.

        Raises:
            BufferContentError: One of them is no success or has no step. None is stored then.
        """
        rows = [row_of(trajectory) for trajectory in trajectories]
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            added = self._insert("trajectory", rows)
            if self._capacity_per_task is not None:
                self._db.execute(EVICT_PER_TASK, (self._capacity_per_task,))
            if self._capacity is not None:
                self._db.execute(EVICT, (self._capacity,))
        return added

    def add_expert(self, trajectories: Iterable[Trajectory]) -> int:
        """Store demonstrations; returns how many were new.

        Duplicates are fine.

        Raises:
            BufferContentError: One of them is no success or has no step, or there would be more
                than ``expert_capacity``. None is stored then.
        """
        rows = [row_of(trajectory) for trajectory in trajectories]
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            added = self._insert("demonstration", rows)
            kept = int(self._db.execute("SELECT count(*) FROM demonstration").fetchone()[0])
            if kept > self._expert_capacity:
                raise BufferContentError(
                    f"{kept} demonstrations are more than the {self._expert_capacity} kept"
                )
        return added

    def _insert(self, table: str, rows: list[tuple[str | int, ...]]) -> int:
        before = self._db.total_changes
        self._db.executemany(INSERT[table], rows)
        return self._db.total_changes - before

    def select(
        self,
        *,
        round_index: int,
        window: int = 0,
        best_per_task: bool = False,
        tasks_apart: bool = False,
        use_expert: bool = False,
    ) -> list[Trajectory]:
        """The training set of a round, by environment, task, steps, tokens and conversation.

        Args:
            round_index: The current round; later ones are left out.
            window: How many rounds count, the current one included; 0 means all.
            best_per_task: Keep only the agent's shortest success of each task.
            tasks_apart: Leave out what cannot be read, and nothing else, for what one task stored
                may not decide whether the others are found.
            use_expert: Add every demonstration, whatever the window and however short the agent's
                own successes: the paper's union (algorithm 1).

        Raises:
            BufferCorruptError: A stored trajectory cannot be read, and tasks are not kept apart.
        """
        rows = self._rows(_first(round_index, window), round_index, use_expert=use_expert)
        chosen: list[Trajectory] = []
        last: tuple[str, int] | None = None
        taken: tuple[str, int, str] | None = None
        for environment, task_id, conversation, payload, _, _, expert in rows:
            task, one = (environment, task_id), (environment, task_id, conversation)
            thinned = best_per_task and not expert and last == task
            if not thinned and taken != one:
                try:
                    chosen.append(decode_trajectory(payload, environment, task_id))
                except Exception as error:
                    # Whatever one row does to its reader is its own task's affair.
                    if not tasks_apart:
                        raise BufferCorruptError(f"{self._path}: {error}") from error
                    _log.warning("trajectory_not_read", error=type(error).__name__)
                taken = one
            if not expert:
                last = task
        return chosen

    def experts(self) -> list[Trajectory]:
        """Every demonstration, in the order of ``select``.

        Raises:
            BufferCorruptError: One of them cannot be read.
        """
        try:
            return [
                decode_trajectory(payload, environment, task_id)
                for environment, task_id, _, payload, *_ in self._rows(0, -1, use_expert=True)
            ]
        except Exception as error:
            raise BufferCorruptError(f"{self._path}: {error}") from error

    def _rows(self, first: int, last: int, *, use_expert: bool) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(SELECT, (first, last, use_expert)).fetchall()
        except sqlite3.DatabaseError as error:
            raise BufferCorruptError(f"{self._path}: {error}") from error

    def known_tasks(self) -> set[tuple[str, int]]:
        """Environment and id of every task that was explored, solved or demonstrated.

        Raises:
            BufferCorruptError: The file cannot be read.
        """
        try:
            return set(self._db.execute(KNOWN_TASKS))
        except sqlite3.DatabaseError as error:
            raise BufferCorruptError(f"{self._path}: {error}") from error

    def counts(self) -> list[BufferCount]:
        """What is kept, per environment.

        Raises:
            BufferCorruptError: The file cannot be read.
        """
        try:
            rows = self._db.execute(COUNTS).fetchall()
        except sqlite3.DatabaseError as error:
            raise BufferCorruptError(f"{self._path}: {error}") from error
        return [
            BufferCount(environment=environment, explored=explored, expert=expert, tasks=tasks)
            for environment, explored, expert, tasks in rows
        ]

    def explore(self, tasks: Iterable[Task], *, round_index: int, adapter_sha256: str) -> None:
        """Write down what a released adapter is about to play; again changes nothing."""
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
        """What was played in a window, successful or not, by environment, task, round and adapter.

        The window counts rounds up to the current one, which is included; 0 means all. Later rounds
        are left out.

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
        """Forget everything made of one subject's data; returns how many trajectories went.

        Raises:
            BufferContentError: The subject is empty, which stands for "nobody's".
        """
        if not subject:
            raise BufferContentError("an empty subject would delete what belongs to nobody")
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(DELETE_SUBJECT[0], (subject,))
            return sum(self._db.execute(s, (subject,)).rowcount for s in DELETE_SUBJECT[1:])

    def delete_task(self, task: Task) -> int:
        """Forget everything about one task; returns how many trajectories went."""
        key = (task.environment, task.task_id)
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(DELETE_TASK[0], key)
            return sum(self._db.execute(s, key).rowcount for s in DELETE_TASK[1:])

    def __len__(self) -> int:
        """Successes of the agent; ``counts`` tells of the demonstrations."""
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
