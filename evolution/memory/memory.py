"""A silo's memory: every try of its agent, kept on the silo's own disk.

What was played is kept whole, with its reward, its outcome and its origin; what a method learns
from is a reader's filter. ``select`` reads the successes for imitation: the D_train of Fed-SE
(arXiv 2512.08870, algorithm 1), the union of all rounds' successes, beside D_train[k, 0], the
expert set, which is kept apart as *demonstrations*. ``groups`` reads all tries of a task in a
round, for methods that compare them. Invariants:

1. A try is identified by (environment, task id, hash of its conversation, round, adapter), and
   identical tries are counted. Adding a round again changes nothing, so a round that is repeated
   after a crash leaves no trace.
2. ``select`` gives a conversation once, with the round it first came in, however often it was
   played. It depends on the set of stored trajectories alone, not on the order they arrived in,
   and on nothing but successes: whatever failed can neither displace, reorder nor repeat them.
3. Above a cap, the oldest rounds go first, and within a round the longest trajectories. Caps are
   separate for what ``select`` reads and for all other tries (failures, and successes that were
   played before). A cap on the whole memory lets one task push out another's, so record-level
   privacy has caps per task. Demonstrations are outside all caps and never evicted; what would be
   more than ``expert_capacity`` of them is refused, because an operator who gave them must know.
4. Nothing but demonstrations is kept for longer than ``max_age_days``. A try is as old as the
   exploring that it came from, and age is looked at when the memory is opened and when exploring
   begins: what one task stores, or how long it takes, does not decide when another's goes.
5. What is explored is written down, with its number of tries, before it is played and apart from
   what came of it: the set of units that may be sampled must not depend on success, and a group
   knows how many of its tries are missing.
6. Contents are JSON in SQLite: nothing stored can run code. The file is readable by its owner
   only, and deleted rows are overwritten (``secure_delete``).
7. A demonstration is never taken for something explored, nor the other way round, whichever came
   first. Where both are the same conversation, a training set holds it once.

Covered: one process at a time, from any one thread at a time; restart after a crash at any point;
files of earlier schemas (``evolution/memory/schema.py``).
Not covered: encryption at rest (use an encrypted volume), several writers; a clock that is set
forward by more than ``max_age_days``, after which everything looks old.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from evolution.errors import MemoryContentError, MemoryCorruptError, MemoryStoreError
from evolution.memory.entries import (
    Explored,
    MemoryCount,
    Origin,
    demonstration_row,
    start_of,
    task_from,
    tried_rows,
)
from evolution.memory.schema import (
    ALL_TRIED,
    COUNTS,
    DELETE_SUBJECT,
    DELETE_TASK,
    EVICT,
    EVICT_OF_TASK,
    EXPIRE,
    EXPLORED,
    INSERT_DEMONSTRATION,
    INSERT_EXPLORED,
    INSERT_TRIED,
    IS_KNOWN,
    KNOWN_TASKS,
    OVERFULL_TASKS,
    SELECT,
    is_ours,
    prepare,
)
from evolution.memory.trajectory_json import decode_trajectory
from evolution.trajectory import Group, Task, Trajectory
from ops.logs.logger import get_logger

__all__ = [
    "Explored",
    "Memory",
    "MemoryContentError",
    "MemoryCorruptError",
    "MemoryCount",
    "MemoryStoreError",
    "Origin",
]

_DAY_S: Final = 86_400
_log = get_logger(__name__)


class Memory:
    """See the module."""

    def __init__(
        self,
        path: str | Path,
        *,
        capacity: int | None = 20_000,
        capacity_per_task: int | None = None,
        failure_capacity: int | None = 20_000,
        failure_capacity_per_task: int | None = None,
        expert_capacity: int = 20_000,
        max_age_days: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open a memory, creating it if absent.

        The capacities are the most successes kept, in all and of one task, the most of all other
        tries, in all and of one task (None for no limit), and the most demonstrations accepted.
        Without ``max_age_days`` nothing grows too old. The clock tells the time of day, in seconds
        since 1970.

        Raises:
            MemoryCorruptError: The file exists but is damaged or is something else.
            MemoryContentError: A capacity or the age is not positive.
        """
        given = (
            *(capacity, capacity_per_task, failure_capacity, failure_capacity_per_task),
            *(expert_capacity, max_age_days),
        )
        least = min(n for n in given if n is not None)
        if least < 1:
            raise MemoryContentError(f"a memory has room for one entry and one day, not {least}")
        self._path = Path(path)
        self._capacities = ((1, capacity), (0, failure_capacity))
        """In all, of what is imitated and of the rest."""
        self._capacities_of_task = ((1, capacity_per_task), (0, failure_capacity_per_task))
        self._expert_capacity = expert_capacity
        self._max_age_days = max_age_days
        self._clock = clock
        self._begun_unix_s: int | None = None
        """When the exploring began whose tries are being added."""
        self._path.touch(mode=0o600)
        # The daemon trains in a worker thread; one thread at a time uses the connection.
        self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise MemoryCorruptError(f"{self._path}: {error}") from error
        except MemoryCorruptError:
            self._db.close()
            raise

    def _open(self) -> None:
        self._db.execute("PRAGMA secure_delete = ON")
        self._db.execute("PRAGMA synchronous = FULL")
        if not is_ours(self._db):
            raise MemoryCorruptError(f"{self._path} is not a memory of this version")
        prepare(self._db)
        verdict = self._db.execute("PRAGMA quick_check").fetchone()[0]
        if verdict != "ok":
            raise MemoryCorruptError(f"{self._path}: {verdict}")
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._expire()
            for imitated, kept in self._capacities_of_task:
                if kept is not None:
                    # A cap may be smaller than the one that the file was written under.
                    full = self._db.execute(OVERFULL_TASKS, (imitated, kept)).fetchall()
                    self._evict_of_tasks(full)

    def add(self, trajectories: Iterable[Trajectory]) -> int:
        """Store tries, solved or not, then enforce the caps; returns how many rows were new.

        All tries at one task in one round belong into one call, because identical ones are counted
        within it.

        Raises:
            MemoryContentError: One of them has no step, or cannot be kept. None is stored then.
        """
        begun = int(self._clock()) if self._begun_unix_s is None else self._begun_unix_s
        rows = tried_rows(trajectories, begun_unix_s=begun)
        added = 0
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for row in rows:
                added += self._db.execute(IS_KNOWN, row).fetchone() is None
                self._db.execute(INSERT_TRIED, row)
            self._evict_of_tasks({(str(r["environment"]), int(r["task_id"])) for r in rows})
            for imitated, kept in self._capacities:
                if kept is not None:
                    self._db.execute(EVICT, (imitated, kept))
        return added

    def add_expert(self, trajectories: Iterable[Trajectory]) -> int:
        """Store demonstrations; returns how many were new.

        Duplicates are fine.

        Raises:
            MemoryContentError: One of them is no success or has no step, or there would be more
                than ``expert_capacity``. None is stored then.
        """
        rows = [demonstration_row(trajectory) for trajectory in trajectories]
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            before = self._db.total_changes
            self._db.executemany(INSERT_DEMONSTRATION, rows)
            added = self._db.total_changes - before
            kept = int(self._db.execute("SELECT count(*) FROM demonstration").fetchone()[0])
            if kept > self._expert_capacity:
                raise MemoryContentError(
                    f"{kept} demonstrations are more than the {self._expert_capacity} kept"
                )
        return added

    def _evict_of_tasks(self, tasks: Iterable[tuple[str, int]]) -> None:
        for environment, task_id in tasks:
            for imitated, kept in self._capacities_of_task:
                if kept is not None:
                    task = {"environment": environment, "task_id": task_id}
                    self._db.execute(EVICT_OF_TASK, {**task, "imitated": imitated, "kept": kept})

    def _expire(self) -> None:
        if self._max_age_days is not None:
            oldest_unix_s = int(self._clock()) - self._max_age_days * _DAY_S
            for statement in EXPIRE:
                self._db.execute(statement, (oldest_unix_s,))

    def select(
        self,
        *,
        round_index: int,
        window: int = 0,
        best_per_task: bool = False,
        tasks_apart: bool = False,
        use_expert: bool = False,
    ) -> list[Trajectory]:
        """Successes for imitation, by environment, task, steps, tokens and conversation.

        Args:
            round_index: The current round; later ones are left out.
            window: How many rounds count, the current one included; 0 means all.
            best_per_task: Keep only the agent's shortest success of each task.
            tasks_apart: Leave out what cannot be read, and nothing else, for what one task stored
                may not decide whether the others are found.
            use_expert: Add every demonstration, whatever the window and however short the agent's
                own successes: the paper's union (algorithm 1).

        Raises:
            MemoryCorruptError: A stored trajectory cannot be read, and tasks are not kept apart.
        """
        rows = self._fetch(SELECT, _first(round_index, window), round_index, use_expert)
        chosen: list[Trajectory] = []
        last: tuple[str, int, str] | None = None
        taken: tuple[str, int, str] | None = None
        for environment, task_id, start, conversation, payload, _, _, expert in rows:
            task, one = (environment, task_id, start), (environment, task_id, conversation)
            thinned = best_per_task and not expert and last == task
            if not thinned and taken != one:
                found = self._read(payload, environment, task_id, tasks_apart=tasks_apart)
                if found is not None:
                    chosen.append(found)
                taken = one
            if not expert:
                last = task
        return chosen

    def groups(
        self, *, round_index: int, window: int = 1, tasks_apart: bool = False
    ) -> list[Group]:
        """All tries of a window by task, round and adapter, in this order; ``Group`` says the rule.

        A task whose tries are all missing is there, with an empty group. Of a task that an older
        release explored, nobody knows how many are missing. For the window and ``tasks_apart`` see
        ``select``; a try that is left out because it cannot be read is missing as well.

        Raises:
            MemoryCorruptError: A stored trajectory cannot be read, and tasks are not kept apart.
        """
        first = _first(round_index, window)
        begun: dict[tuple[Any, ...], tuple[Task, int]] = {}
        for environment, task_id, start, number, adapter, subject, tries in self._fetch(
            EXPLORED, first, round_index
        ):
            task = self._task(environment, task_id, start, subject)
            if tries:
                begun[environment, task_id, start, number, adapter] = task, tries
        found: dict[tuple[Any, ...], list[Trajectory]] = {key: [] for key in begun}
        for key, copies, trajectory in self._tried(first, round_index, tasks_apart=tasks_apart):
            found.setdefault(key, []).extend([trajectory] * copies)
        return [
            Group(
                task=begun[key][0] if key in begun else tries[0].task,
                round=key[3],
                trajectories=tuple(tries),
                dropped=max(0, begun[key][1] - len(tries)) if key in begun else 0,
            )
            for key, tries in sorted(found.items(), key=lambda item: item[0])
        ]

    def played(self, *, round_index: int, window: int = 0) -> list[Trajectory]:
        """Every try of a window, solved or not, by environment, task and conversation.

        Equal conversations are there once, as the last of them was played.

        Raises:
            MemoryCorruptError: A stored trajectory cannot be read.
        """
        found = {
            (t.task.environment, t.task.task_id, t.conversation_sha256): t
            for _, _, t in self._tried(_first(round_index, window), round_index)
        }
        return [found[key] for key in sorted(found)]

    def experts(self) -> list[Trajectory]:
        """Every demonstration, in the order of ``select``.

        Raises:
            MemoryCorruptError: One of them cannot be read.
        """
        # No round lies between these two, so nothing of the agent's own is selected.
        found = [
            self._read(payload, environment, task_id, tasks_apart=False)
            for environment, task_id, _, _, payload, *_ in self._fetch(
                SELECT, 0, -1, True
            )  # a parameter of the query
        ]
        return [one for one in found if one is not None]

    def _tried(
        self, first: int, last: int, *, tasks_apart: bool = False
    ) -> Iterator[tuple[tuple[Any, ...], int, Trajectory]]:
        for environment, task_id, start, number, adapter, copies, payload in self._fetch(
            ALL_TRIED, first, last
        ):
            found = self._read(payload, environment, task_id, tasks_apart=tasks_apart)
            if found is not None:
                yield (environment, task_id, start, number, adapter), copies, found

    def _read(
        self, payload: bytes, environment: str, task_id: int, *, tasks_apart: bool
    ) -> Trajectory | None:
        try:
            return decode_trajectory(payload, environment, task_id)
        except Exception as error:
            # Whatever one row does to its reader is its own task's affair.
            if not tasks_apart:
                raise MemoryCorruptError(f"{self._path}: {error}") from error
            _log.warning("trajectory_not_read", error=type(error).__name__)
            return None

    def _task(self, environment: str, task_id: int, start: str, subject: str) -> Task:
        try:
            return task_from(environment, task_id, start, subject)
        except (ValueError, TypeError, RecursionError) as error:
            raise MemoryCorruptError(f"{self._path}: {error}") from error

    def _fetch(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise MemoryCorruptError(f"{self._path}: {error}") from error

    def known_tasks(self) -> set[tuple[str, int]]:
        """Environment and id of every task that was explored or demonstrated.

        Raises:
            MemoryCorruptError: The file cannot be read.
        """
        return {(environment, task_id) for environment, task_id in self._fetch(KNOWN_TASKS)}

    def counts(self) -> list[MemoryCount]:
        """What is kept, per environment.

        Raises:
            MemoryCorruptError: The file cannot be read.
        """
        return [
            MemoryCount(
                environment=environment,
                explored=explored,
                solved=solved,
                failed=explored - solved,
                demonstrations=demonstrations,
                tasks=tasks,
            )
            for environment, explored, solved, demonstrations, tasks in self._fetch(COUNTS)
        ]

    def explore(self, tasks: Iterable[Task], *, round_index: int, adapter_sha256: str) -> None:
        """Write down what a released adapter is about to play; again changes nothing.

        A task is there as often as it is tried. What has grown too old goes.

        Raises:
            MemoryContentError: A task begins nowhere that can be kept.
        """
        begun = self._begun_unix_s = int(self._clock())
        tries: dict[tuple[str, int, str], tuple[str, int]] = {}
        for task in tasks:
            key = (task.environment, task.task_id, start_of(task))
            tries[key] = task.subject, tries.get(key, ("", 0))[1] + 1
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._expire()
            self._db.executemany(
                INSERT_EXPLORED,
                [
                    (round_index, adapter_sha256, *key, subject, count, begun)
                    for key, (subject, count) in tries.items()
                ],
            )

    def explored(self, *, round_index: int, window: int = 0) -> list[Explored]:
        """What was played in a window, successful or not, by environment, task, round and adapter.

        The window counts rounds up to the current one, which is included; 0 means all. Later rounds
        are left out.

        Raises:
            MemoryCorruptError: The file cannot be read.
        """
        return [
            Explored(
                task=self._task(environment, task_id, start, subject),
                round=number,
                adapter_sha256=adapter_sha256,
                tries=tries,
            )
            for environment, task_id, start, number, adapter_sha256, subject, tries in self._fetch(
                EXPLORED, _first(round_index, window), round_index
            )
        ]

    def delete_subject(self, subject: str) -> int:
        """Forget everything made of one subject's data; returns how many trajectories went.

        Raises:
            MemoryContentError: The subject is empty, which stands for "nobody's".
        """
        if not subject:
            raise MemoryContentError("an empty subject would delete what belongs to nobody")
        return self._delete(DELETE_SUBJECT, (subject,))

    def delete_task(self, task: Task) -> int:
        """Forget everything about one task, however its episodes began.

        Returns how many trajectories went.
        """
        return self._delete(DELETE_TASK, (task.environment, task.task_id))

    def _delete(self, statements: tuple[str, ...], key: tuple[str | int, ...]) -> int:
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(statements[0], key)
            return sum(self._db.execute(s, key).rowcount for s in statements[1:])

    def __len__(self) -> int:
        """Tries of the agent; ``counts`` tells of successes and demonstrations."""
        return int(self._db.execute("SELECT coalesce(sum(copies), 0) FROM tried").fetchone()[0])

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
