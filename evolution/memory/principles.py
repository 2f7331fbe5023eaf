"""A run's principles (``evolution/principle.py``), kept on the silo's own disk.

Plays read them and note things about them; an operator reads, edits and deletes them
(``chorale-silo principles``). Invariants:

1. A round that is begun again counts once: ``begin`` takes back whatever the round, or a later one,
   noted before, so that a round reads the same principles each time. What is too old, and what is
   above the cap, goes there as well and nowhere else.
2. Above the cap of an environment and a subject the lowest score goes first, and of equal scores
   the oldest; one that was edited never goes that way. No subject's principles push out another's.
3. A name follows from what the principle was made of, and the order of principles from what is
   said of them; neither depends on the order they arrived in, nor on other subjects.
4. What the operator wrote stays as it is, and is counted from then on.
5. A text is one line of at most ``MOST_CHARS`` characters that can be printed. As old as the
   exploring that it came from, or as its edit, it goes after ``max_age_days``.
6. The file is readable by its owner only, and deleted rows are overwritten (``secure_delete``).
7. Where units are protected nothing is edited: whoever edits may know of other units, and what a
   unit's tries read must be made of that unit alone.

Covered: one process at a time, from any one thread at a time; restart after a crash at any point.
Not covered: encryption at rest; uses in the rounds before the newest, where a run is set back by
several; a round that is begun again after the operator changed something, which reads what he left;
a text that he deleted and the model writes again.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from evolution.errors import MemoryContentError, MemoryCorruptError
from evolution.principle import MOST_CHARS, Again, Learned, Note, Principle, Used, one_line
from evolution.trajectory import Task, Trajectory
from ops.logs.logger import get_logger

__all__ = ["PRINCIPLES_FILE", "Principles"]

PRINCIPLES_FILE: Final = "principles.sqlite"
"""Of a run, in the method's private directory, where its play keeps some."""
_MOST_SOURCES: Final = 16
"""Conversations that are named as what a principle was made of: the first ones."""
_APPLICATION_ID: Final = 0x43485052
"""``CHPR``: tells our files from other SQLite files."""
_SCHEMA_VERSION: Final = 1
_DAY_S: Final = 86_400
_log = get_logger(__name__)

_TABLES: Final = (
    """
CREATE TABLE principle (
  id TEXT PRIMARY KEY,
  environment TEXT NOT NULL,
  subject TEXT NOT NULL,
  text TEXT NOT NULL,
  round INTEGER NOT NULL,
  edited INTEGER NOT NULL,
  begun_unix_s INTEGER NOT NULL,
  uses INTEGER NOT NULL,
  successes INTEGER NOT NULL,
  used_round INTEGER NOT NULL,
  round_uses INTEGER NOT NULL,
  round_successes INTEGER NOT NULL
) WITHOUT ROWID
""",
    "CREATE INDEX principle_of ON principle (subject, environment)",
    """
CREATE TABLE source (
  id TEXT NOT NULL,
  number INTEGER NOT NULL,
  round INTEGER NOT NULL,
  task_id INTEGER NOT NULL,
  conversation_sha256 TEXT NOT NULL,
  PRIMARY KEY (id, number)
) WITHOUT ROWID
""",
    "CREATE TABLE run (apart INTEGER NOT NULL)",
    "INSERT INTO run VALUES (0)",
)
"""``uses`` and ``successes`` count every round; ``round_…`` those of the newest round that used it,
``used_round``, so that they can be taken back."""
_TAKE_BACK: Final = (
    "DELETE FROM principle WHERE round >= :round AND NOT edited",
    """
DELETE FROM source WHERE round >= :round AND id NOT IN (SELECT id FROM principle WHERE edited)
""",
    """
UPDATE principle SET uses = uses - round_uses, successes = successes - round_successes,
  round_uses = 0, round_successes = 0
WHERE used_round >= :round
""",
)
_EXPIRE: Final = "DELETE FROM principle WHERE begun_unix_s < ?"
_OVERFULL: Final = """
SELECT environment, subject FROM principle GROUP BY environment, subject HAVING count(*) > ?
"""
_EVICT: Final = """
DELETE FROM principle WHERE NOT edited AND id IN (
  SELECT id FROM principle WHERE environment = :environment AND subject = :subject
  ORDER BY edited DESC, (successes + 1.0) / (uses + 2) DESC, round DESC, id DESC
  LIMIT -1 OFFSET :most)
"""
_ORPHANS: Final = "DELETE FROM source WHERE id NOT IN (SELECT id FROM principle)"
_INSERT: Final = """
INSERT OR IGNORE INTO principle
SELECT :id, :environment, :subject, :text, :round, 0, :begun_unix_s, 0, 0, -1, 0, 0
WHERE :most IS NULL OR :most > (SELECT count(*) FROM principle
  WHERE environment = :environment AND subject = :subject AND round = :round)
"""
"""So that a round cannot write more than the cap, which is looked at when the next one begins."""
_INSERT_SOURCE: Final = """
INSERT INTO source
SELECT :id, (SELECT count(*) FROM source WHERE id = :id), :round, :task_id, :conversation_sha256
WHERE EXISTS (SELECT 1 FROM principle WHERE id = :id)
  AND NOT EXISTS (SELECT 1 FROM source WHERE id = :id AND task_id = :task_id
    AND conversation_sha256 = :conversation_sha256)
  AND :most > (SELECT count(*) FROM source WHERE id = :id)
"""
_USE: Final = """
UPDATE principle SET
  uses = uses + 1, successes = successes + :success,
  round_uses = (CASE WHEN used_round = :round THEN round_uses ELSE 0 END) + 1,
  round_successes = (CASE WHEN used_round = :round THEN round_successes ELSE 0 END) + :success,
  used_round = :round
WHERE id = :id
"""
_EDIT: Final = """
UPDATE principle SET text = :text, edited = 1, begun_unix_s = :begun_unix_s, uses = 0,
  successes = 0, used_round = -1, round_uses = 0, round_successes = 0
WHERE id = :id
"""
# As bytes: text that is not UTF-8 would fail the query and with it every row.
_SELECT: Final = """
SELECT id, environment, subject, CAST(text AS BLOB), round, edited, uses, successes FROM principle
WHERE (:subject IS NULL OR subject = :subject) AND (:id IS NULL OR id = :id)
ORDER BY environment, subject, (successes + 1.0) / (uses + 2) DESC, round, id
"""
_SOURCES: Final = """
SELECT id, conversation_sha256 FROM source
WHERE id IN (SELECT id FROM principle WHERE :subject IS NULL OR subject = :subject)
ORDER BY id, number
"""
_DELETE_SUBJECT: Final = "DELETE FROM principle WHERE subject = ?"
_DELETE_TASK: Final = """
DELETE FROM principle
WHERE environment = ? AND id IN (SELECT id FROM source WHERE task_id = ?)
"""


class Principles:
    """See the module."""

    def __init__(
        self,
        path: str | Path,
        *,
        most: int | None = None,
        max_age_days: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open a file of principles, creating it if absent.

        ``most`` is the cap of an environment and a subject; None is no limit, as is no age.

        Raises:
            MemoryCorruptError: The file exists but is damaged or is something else.
            MemoryContentError: The cap or the age is not positive.
        """
        least = min((n for n in (most, max_age_days) if n is not None), default=1)
        if least < 1:
            raise MemoryContentError(f"there is room for one principle and one day, not {least}")
        self._path = Path(path)
        self._most = most
        self._max_age_days = max_age_days
        self._clock = clock
        self._begun_unix_s: int | None = None
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
        found = self._db.execute(
            "SELECT application_id, user_version, schema_version"
            " FROM pragma_application_id, pragma_user_version, pragma_schema_version"
        ).fetchone()
        if found == (0, 0, 0):
            self._create()
        elif found[:2] != (_APPLICATION_ID, _SCHEMA_VERSION):
            raise MemoryCorruptError(f"{self._path} holds no principles of this version")
        verdict = self._db.execute("PRAGMA quick_check").fetchone()[0]
        if verdict != "ok":
            raise MemoryCorruptError(f"{self._path}: {verdict}")
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._expire()

    def _create(self) -> None:
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for statement in _TABLES:
                self._db.execute(statement)
            self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")

    def _expire(self) -> None:
        if self._max_age_days is not None:
            self._db.execute(_EXPIRE, (int(self._clock()) - self._max_age_days * _DAY_S,))
            self._db.execute(_ORPHANS)

    # A round ---------------------------------------------------------------------------------

    def begin(self, round_index: int, *, apart: bool = False) -> None:
        """A round's exploring begins, perhaps again: see invariants 1 and 2.

        ``apart`` says that its units are protected, which a file never forgets.
        """
        self._begun_unix_s = int(self._clock())
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for statement in _TAKE_BACK:
                self._db.execute(statement, {"round": round_index})
            self._expire()
            if self._most is not None:
                full = self._db.execute(_OVERFULL, (self._most,)).fetchall()
                for environment, subject in full:
                    group = {"environment": environment, "subject": subject}
                    self._db.execute(_EVICT, {**group, "most": self._most})
            self._db.execute(_ORPHANS)
            if apart:
                self._db.execute("UPDATE run SET apart = 1")

    def note(self, notes: Iterable[Note], *, round_index: int) -> None:
        """Write down what a play noted in a round, all of it or nothing.

        What is said of a principle that is no more is left out.

        Raises:
            MemoryContentError: A text is none that is kept, or its sources are of several.
        """
        begun = int(self._clock()) if self._begun_unix_s is None else self._begun_unix_s
        about = {"round": round_index, "begun_unix_s": begun}
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for one in notes:
                if isinstance(one, Used):
                    said = {"id": one.principle, "success": int(one.success)}
                    self._db.execute(_USE, {**about, **said})
                elif isinstance(one, Again):
                    self._insert_source(one.principle, one.source, round_index)
                else:
                    self._learn(one, about)

    def _learn(self, one: Learned, about: dict[str, int]) -> None:
        _require_text(one.text)
        places = {(source.task.environment, source.task.subject) for source in one.sources}
        if len(places) != 1:
            raise MemoryContentError("a principle is of one environment and one subject")
        ((environment, subject),) = places
        name = _name_of(one, round_index=about["round"])
        kept = {"id": name, "environment": environment, "subject": subject, "text": one.text}
        self._db.execute(_INSERT, {**about, **kept, "most": self._most})
        for source in one.sources:
            self._insert_source(name, source, about["round"])

    def _insert_source(self, name: str, source: Trajectory, round_index: int) -> None:
        self._db.execute(
            _INSERT_SOURCE,
            {
                "id": name,
                "round": round_index,
                "task_id": source.task.task_id,
                "conversation_sha256": source.conversation_sha256,
                "most": _MOST_SOURCES,
            },
        )

    # Reading ---------------------------------------------------------------------------------

    def listed(self, *, subject: str | None = None, rows_apart: bool = False) -> list[Principle]:
        """Principles by environment, subject, score and age: the best first, the older before.

        With ``subject`` that subject's alone. With ``rows_apart`` what cannot be read is left out,
        and nothing else.

        Raises:
            MemoryCorruptError: The file, or a row of it, cannot be read.
        """
        return self._found(subject=subject, name=None, rows_apart=rows_apart)

    def get(self, name: str) -> Principle | None:
        """The principle of that name; None if there is none.

        Raises:
            MemoryCorruptError: It cannot be read.
        """
        found = self._found(subject=None, name=name, rows_apart=False)
        return found[0] if found else None

    def _found(self, *, subject: str | None, name: str | None, rows_apart: bool) -> list[Principle]:
        made_of: dict[str, list[str]] = {}
        for one, conversation in self._fetch(_SOURCES, {"subject": subject}):
            made_of.setdefault(one, []).append(conversation)
        found = []
        for row in self._fetch(_SELECT, {"subject": subject, "id": name}):
            try:
                found.append(_principle(row, made_of.get(row[0], ())))
            except (ValueError, TypeError, AttributeError) as error:
                if not rows_apart:
                    raise MemoryCorruptError(f"{self._path}: a row is damaged") from error
                _log.warning("principle_not_read", error=type(error).__name__)
        return found

    def _fetch(self, query: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise MemoryCorruptError(f"{self._path}: {error}") from error

    @property
    def apart(self) -> bool:
        """Whether its run protects units, so that nothing is edited."""
        return bool(self._fetch("SELECT apart FROM run", {})[0][0])

    def __len__(self) -> int:
        return int(self._fetch("SELECT count(*) FROM principle", {})[0][0])

    # The operator ----------------------------------------------------------------------------

    def edit(self, name: str, text: str) -> bool:
        """Put the operator's text in the place of the model's; whether there is such a principle.

        Its uses were of another text and are counted anew.

        Raises:
            MemoryContentError: The text is none that is kept, or the run protects units.
        """
        _require_text(text)
        if self.apart:
            raise MemoryContentError(
                "this run protects each user by itself: what somebody writes who knows of others "
                "may not stand in a user's tries; it can be deleted"
            )
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            said = {"id": name, "text": text, "begun_unix_s": int(self._clock())}
            return self._db.execute(_EDIT, said).rowcount > 0

    def delete(self, name: str) -> bool:
        """Forget one; whether there was one."""
        return self._delete("DELETE FROM principle WHERE id = ?", (name,)) > 0

    def delete_subject(self, subject: str) -> int:
        """Forget everything made of one subject's data; returns how many principles went.

        Raises:
            MemoryContentError: The subject is empty, which stands for "nobody's".
        """
        if not subject:
            raise MemoryContentError("an empty subject would delete what belongs to nobody")
        return self._delete(_DELETE_SUBJECT, (subject,))

    def delete_task(self, task: Task) -> int:
        """Forget what was made of tries at one task, if only among others; returns how many."""
        return self._delete(_DELETE_TASK, (task.environment, task.task_id))

    def _delete(self, statement: str, key: tuple[str | int, ...]) -> int:
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            gone = self._db.execute(statement, key).rowcount
            self._db.execute(_ORPHANS)
            return gone

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


def _require_text(text: str) -> None:
    if not text or one_line(text) != text:
        raise MemoryContentError(
            f"a principle is one line of 1 to {MOST_CHARS} characters that can be printed"
        )


def _name_of(one: Learned, *, round_index: int) -> str:
    first = one.sources[0]
    digest = hashlib.sha256(b"chorale/principle/v1\0")
    for text in (
        *(first.task.environment, first.task.subject, str(first.task.task_id)),
        *(first.conversation_sha256, str(round_index), one.text),
    ):
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:12]


def _principle(row: tuple[Any, ...], made_of: Sequence[str]) -> Principle:
    name, environment, subject, text, round_index, edited, uses, successes = row
    if not all(isinstance(one, str) for one in (name, environment, subject, *made_of)):
        raise TypeError("a name is a text")
    return Principle(
        id=name,
        environment=environment,
        subject=subject,
        text=text.decode(),
        round=int(round_index),
        uses=int(uses),
        successes=int(successes),
        made_of=tuple(made_of),
        edited=bool(edited),
    )
