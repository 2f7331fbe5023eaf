"""The directory of an experiment's results.

::

    results.jsonl          the rows of finished runs, one after another
    experiment.toml        the file as it was last run
    registration.json      what it is held to, if to anything (``lab/evidence/register.py``)
    runs/SETTING-SEED/     run.json, log.txt, and the final adapters, each silo's own too; while
                           it is unfinished, its state after the newest two rounds (``state.py``)
    .lock                  held by the one process that writes

Invariants:
    1. All rows of a run are appended in one write, the ``run`` row last, and reach the disk before
       the run counts as done.
    2. Rows without their ``run`` row are what a crash left of such a write; opening the directory
       removes them and touches no other line.
    3. A finished run stands for exactly its values: where one has other values than the experiment
       asks for, opening is refused, and nothing is overwritten.

Covered: one writer at a time, crashes at any point. Not covered: other programs that edit the file.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from lab.experiment.config import Run
from lab.experiment.errors import ChangedExperimentError, DirectoryInUseError, ExperimentError
from lab.experiment.state import remove_states
from ops.files import replace_file

__all__ = ["Results"]

FILE: Final = "results.jsonl"
SNAPSHOT: Final = "experiment.toml"
MAX_BYTES: Final = 1 << 30
_MAX_SHOWN: Final = 5
_KEYS: Final = frozenset({*Run.model_fields, "engine"})
"""What ``Run.described`` may have."""
Key = tuple[str, int]


class Results:
    """See the module; a context, so that the lock is given back."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / FILE
        self._lock = -1
        self._done: dict[Key, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        """Take the lock and read what is there.

        Raises:
            DirectoryInUseError: Another process holds the lock.
            ExperimentError: The file is not one of results.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise DirectoryInUseError(
                f"another process writes {self.directory}: wait for it, or choose another --out"
            ) from error
        try:
            self._read()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._lock)

    @property
    def done(self) -> frozenset[Key]:
        """Setting and seed of every finished run."""
        return frozenset(self._done)

    def run_directory(self, run: Run) -> Path:
        """Where a run keeps what is not a row."""
        return self.directory / "runs" / f"{run.setting}-{run.seed}"

    def require_same(self, runs: Sequence[Run]) -> None:
        """Refuse an experiment whose finished runs had other values.

        Settings and seeds may be added to an experiment, and ``--only`` may leave some out; what is
        finished must still be what the file says.

        Raises:
            ChangedExperimentError: Naming what differs.
        """
        changed = []
        for run in runs:
            finished = self._done.get((run.setting, run.seed))
            if finished is not None and finished.get("config_sha256") != run.sha256:
                keys = _differences(finished.get("config"), run)
                changed.append(f"{run.setting}, seed {run.seed}: {', '.join(keys)}")
        if changed:
            more = len(changed) - _MAX_SHOWN
            shown = "; ".join(changed[:_MAX_SHOWN]) + (f"; and {more} more" if more > 0 else "")
            raise ChangedExperimentError(
                f"{self.directory} holds finished runs with other values ({shown}). Choose another "
                "--out, undo the change, or --force-new to set these results aside and start again"
            )

    def set_aside(self) -> Path | None:
        """Rename the results, so that the experiment starts again; where they are afterwards.

        What was kept of unfinished runs is removed.
        """
        self._done = {}
        for directory in (self.directory / "runs").glob("*"):
            remove_states(directory)
        if not self._path.exists():
            return None
        number = 1
        while (aside := self.directory / f"results.{number}.jsonl").exists():
            number += 1
        self._path.rename(aside)
        return aside

    def keep_file(self, content: bytes) -> None:
        """Keep the experiment's file beside its results."""
        replace_file(self.directory / SNAPSHOT, (content,))

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add the rows of a finished run, the ``run`` row last.

        Raises:
            ExperimentError: They are not those of one run, or it is done already.
            OSError: The disk refused; the file is as it was.
        """
        if not rows or rows[-1].get("kind") != "run":
            raise ExperimentError("a run's rows end with its run row")
        key = _key(rows[-1])
        if key in self._done or any(_key(row) != key for row in rows):
            raise ExperimentError(f"the rows are not those of one new run {key}")
        text = b"".join(_line(row) for row in rows)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            _write_whole(descriptor, text)
        finally:
            os.close(descriptor)
        self._done[key] = rows[-1]

    def _read(self) -> None:
        if not self._path.exists():
            return
        if self._path.stat().st_size > MAX_BYTES:
            raise ExperimentError(f"{self._path} is larger than {MAX_BYTES} bytes")
        lines = self._path.read_bytes().splitlines(keepends=True)
        rows = [self._row(line, last=i == len(lines) - 1) for i, line in enumerate(lines)]
        self._done = {
            _key(row): row for row in rows if row is not None and row.get("kind") == "run"
        }
        whole = [
            line
            for line, row in zip(lines, rows, strict=True)
            if row is not None and _key(row) in self._done
        ]
        if len(whole) < len(lines):
            replace_file(self._path, (b"".join(whole),))

    def _row(self, line: bytes, *, last: bool) -> dict[str, Any] | None:
        """One row; None for a last line that a crash cut off."""
        if last and not line.endswith(b"\n"):
            return None
        try:
            row = json.loads(line)
            _key(row)
        except (ValueError, KeyError, TypeError) as error:
            raise ExperimentError(f"{self._path} holds a line that is no result") from error
        if not isinstance(row, dict):
            raise ExperimentError(f"{self._path} holds a line that is no result")
        return row


def _write_whole(descriptor: int, text: bytes) -> None:
    """Write to the end of a file and flush it, or leave the file as it was."""
    before, left = os.fstat(descriptor).st_size, memoryview(text)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    except OSError:
        # The next run's rows would continue half a line, and nothing could be read any more.
        os.ftruncate(descriptor, before)
        raise


def _key(row: dict[str, Any]) -> Key:
    return str(row["setting"]), int(row["seed"])


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _differences(before: object, run: Run) -> list[str]:
    """Top-level keys and keys of tables that have other values."""
    old = before if isinstance(before, dict) else {}
    found = []
    new = run.described()
    for key in dict.fromkeys((*new, *(key for key in old if key in _KEYS))):
        value: Any = new.get(key)
        if key == "silos":
            before_it = [{k: silo.get(k) for k in value[0]} for silo in old.get(key, [])]
            found += ["silo"] if before_it != value else []
        elif isinstance(value, dict) and isinstance(old.get(key), dict):
            names = dict.fromkeys((*value, *old[key]))
            found += [f"{key}.{name}" for name in names if old[key].get(name) != value.get(name)]
        elif old.get(key) != value:
            found.append(key)
    return found or ["a key that no longer exists"]
