"""What the operator said about runs: ``chorale-silo approve RUN`` and ``refuse RUN``.

``approvals.jsonl`` holds one line for each word, oldest first: the run, the plan's SHA-256, whether
it was approved, the operating system's name of who said it, and when.

Invariants:

1. A word is on disk before the command answers, and lines are only ever added.
2. An approval is for one plan, by its digest. Another plan under the same run id is as if nobody
   had said anything about it.
3. A refusal is for the run, whatever its plan, and wins over ``approval = "auto"``. Only an
   approval that came later lifts it, and only for the plan that it names.
4. Processes take turns by a lock on ``approvals.lock``. A reader sees whole lines only.
5. A damaged or overlong file is an error: nothing is approved by it, and nothing goes on.

Covered: several processes, crashes. Not covered: telling one person who may use the daemon's
account from another; whoever can write the file can say anything.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from ops.files import append_line
from silo_agent.errors import LocalStoreError

__all__ = ["APPROVALS_FILE", "Approvals", "Standing", "Word", "operating_user"]

APPROVALS_FILE: Final = "approvals.jsonl"
_LOCK_FILE: Final = "approvals.lock"
_DIGEST_BYTES: Final = 32
_MAX_FILE_BYTES: Final = 4 << 20
_MAY_VARY: Final = "cohort_may_vary"
_PRIVATE: Final = 0o600


class Standing(StrEnum):
    """How a run with a plan stands with the operator."""

    OPEN = "open"
    """Nobody has to say anything, and nobody did."""
    PENDING = "pending"
    """Somebody has to approve it."""
    APPROVED = "approved"
    """Somebody did."""
    REFUSED = "refused"
    """Somebody said no."""
    LEAVING = "leaving"
    """The silo takes part in nothing any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """One thing that an operator said."""

    run_id: str
    """About this run."""
    plan_sha256: bytes
    """With this plan, as this silo had heard of it."""
    approved: bool
    """Or refused."""
    by: str
    """Name of the operating system's user."""
    at_unix_s: int
    """This silo's clock."""
    cohort_may_vary: bool = False
    """Of an approval: the run's cohorts may vary although there is no noise."""

    @classmethod
    def from_line(cls, entry: Any) -> Word:
        """Read one line.

        Raises:
            ValueError: It is none of ours.
        """
        known = {"run", "plan_sha256", "approved", "by", "at_unix_s"}
        if not isinstance(entry, dict) or set(entry) - {_MAY_VARY} != known:
            raise ValueError("not a word about a run")
        may_vary = entry.get(_MAY_VARY, False)
        plan_sha256 = bytes.fromhex(str(entry["plan_sha256"]))
        if len(plan_sha256) != _DIGEST_BYTES or {type(entry["approved"]), type(may_vary)} != {bool}:
            raise ValueError("not a word about a run")
        return cls(
            run_id=str(entry["run"]),
            plan_sha256=plan_sha256,
            approved=entry["approved"],
            by=str(entry["by"]),
            at_unix_s=int(entry["at_unix_s"]),
            cohort_may_vary=may_vary,
        )

    def to_line(self) -> bytes:
        """As the file has it, without the line feed."""
        entry = {
            "run": self.run_id,
            "plan_sha256": self.plan_sha256.hex(),
            "approved": self.approved,
            "by": self.by,
            "at_unix_s": self.at_unix_s,
        }
        if self.cohort_may_vary:
            # Only where it is said: an earlier release reads every other line.
            entry[_MAY_VARY] = True
        return json.dumps(entry, separators=(",", ":")).encode()


class Approvals:
    """The file; each call reads it anew, so that a running daemon hears what is said."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / APPROVALS_FILE
        self._lock_path = data_dir / _LOCK_FILE

    def words(self) -> tuple[Word, ...]:
        """Everything that was said, oldest first.

        Raises:
            LocalStoreError: The file cannot be read, or is damaged.
        """
        if not self._path.exists():
            return ()
        with self._locked(fcntl.LOCK_SH):
            return self._read()

    def about(self, run_id: str) -> Word | None:
        """The newest word about a run; it raises what ``words`` does."""
        return next((word for word in reversed(self.words()) if word.run_id == run_id), None)

    def standing(self, run_id: str, plan_sha256: bytes, *, manual: bool) -> Standing:
        """How a run with this plan stands; it raises what ``words`` does.

        ``manual`` is whether somebody has to approve it.
        """
        for word in reversed(self.words()):
            if word.run_id != run_id:
                continue
            if not word.approved:
                return Standing.REFUSED
            if word.plan_sha256 == plan_sha256:
                return Standing.APPROVED
        return Standing.PENDING if manual else Standing.OPEN

    def cohort_may_vary(self, run_id: str, plan_sha256: bytes) -> bool:
        """Whether the newest word approved the run so; it raises what ``words`` does."""
        word = self.about(run_id)
        return (
            word is not None
            and word.approved
            and word.plan_sha256 == plan_sha256
            and word.cohort_may_vary
        )

    def say(self, word: Word) -> None:
        """Write a word down, durably.

        Raises:
            LocalStoreError: The file cannot be written, is damaged or full.
        """
        with self._locked(fcntl.LOCK_EX):
            if self._path.exists():
                # A word behind lines that nobody can read would not be heard.
                self._read()
            try:
                append_line(self._path, word.to_line())
            except OSError as error:
                raise LocalStoreError(f"cannot append to {self._path}: {error}") from error

    def _read(self) -> tuple[Word, ...]:
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise LocalStoreError(f"cannot read {self._path}: {error}") from error
        if len(content) > _MAX_FILE_BYTES:
            raise LocalStoreError(f"{self._path} has more than {_MAX_FILE_BYTES} bytes")
        words = []
        # What follows the last line feed is a write that never returned.
        for number, line in enumerate(content.split(b"\n")[:-1], start=1):
            try:
                words.append(Word.from_line(json.loads(line)))
            except (ValueError, TypeError, RecursionError) as error:
                raise LocalStoreError(
                    f"{self._path} is damaged at line {number}: nothing is approved by it; put "
                    "back a copy, or remove the file and say everything again"
                ) from error
        return tuple(words)

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            handle = os.open(self._lock_path, flags, _PRIVATE)
        except OSError as error:
            raise LocalStoreError(
                f"cannot lock {self._lock_path}: {error}; use the daemon's own account"
            ) from error
        try:
            fcntl.flock(handle, how)
            yield
        finally:
            os.close(handle)


def operating_user() -> str:
    """Who runs this process, as the operating system names the account."""
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
