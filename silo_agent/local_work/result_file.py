"""Finished local work on disk, so that a restart neither trains nor charges it again.

One file for each of the last runs, its newest round::

    SHA-256 of the rest of the line, JSON, line feed      what it is of, and the silo's own counts
    little-endian float32                                 the delta, as it was trained, not clipped

It is private data: it is in the silo's directory with mode 0600, and nothing of it is masked yet.
Under ``record_distributed`` there is no delta: what was explored is in the method's store, and the
file says that it was. The sums of its steps are drawn anew for each attempt and never kept.

Ordered invariants:

1. ``keep`` returns only after content and directory entry are on disk. A write that did not return
   leaves the file that was there before.
2. What is read back is of the very round, plan, base model and adapter that a verified task names,
   and of the length that the plan's layout has. Under ``record_local`` this silo's ledger holds the
   head that was its newest when the training was charged, and the run's newest training is of that
   round: a delta is released only under the reservation that it was trained with.
3. Whatever is damaged, of another form or of anything else is deleted with one log line, and the
   work is done again. So a file costs at most what it would have saved.
4. A file goes when its round is closed, its run is over, or a later round of it was worked on; of
   other runs the ``MAX_RUNS`` newest files stay. At the start whatever is of no use goes.

Noise and masks are no part of it: they are drawn for each attempt (``silo_agent/attempt``), and the
ledger admits an attempt once. So the same delta in a later attempt is what it is without a restart.

Covered: kill and power loss at any point, truncation, bit rot, files of others. Not covered:
somebody who may write in the silo's directory, who could as well change what is trained; a change
of the silo's configuration after the training, which the file does not notice; disks that forget.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import numpy as np

from dp.config import Mode
from dp.errors import LedgerRolledBackError
from dp.ledger.ledger import Ledger
from federation.adapter.layout import Layout
from federation.chain.task import RoundTask
from federation.plan.plan import Plan
from ops.files import is_partial, private_directory, replace_file
from ops.logs.errors import told
from ops.logs.logger import get_logger
from silo_agent.books.local_store import LocalStore
from silo_agent.errors import LocalStoreError
from silo_agent.local_work.result import MAX_RUNS, Result

__all__ = ["ResultFiles", "delete_results"]

DIRECTORY: Final = "results"
_FORMAT: Final = 1
_MAX_LINE_BYTES: Final = 64 << 10
_MAX_FAMILIES: Final = 256
_MAX_FAMILY_CHARACTERS: Final = 256
_MAX_COUNT: Final = 1 << 53
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"[0-9a-f]{32}\.result")
_FIELDS: Final = frozenset(
    {"format", "run", "round", "task", "reservation", "delta", "episodes", "successes"}
)

log = get_logger(__name__)


class _UselessError(Exception):
    """A file that cannot be used; the text says why and quotes nothing of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    """The line of a file."""

    run: str
    """The run's id."""
    round: int
    """The round."""
    task: str
    """Digest of what the work was to be."""
    reservation: tuple[int, str] | None
    """Number and digest of the ledger's newest record after the charge; None where none was due."""
    delta: str
    """SHA-256 of the delta's bytes."""
    episodes: Mapping[str, int]
    """Played, by family."""
    successes: Mapping[str, int]
    """Solved, by family."""

    def line(self) -> bytes:
        """As it is written."""
        said = {
            "format": _FORMAT,
            "run": self.run,
            "round": self.round,
            "task": self.task,
            "reservation": None if self.reservation is None else list(self.reservation),
            "delta": self.delta,
            "episodes": dict(self.episodes),
            "successes": dict(self.successes),
        }
        text = json.dumps(said).encode()
        return hashlib.sha256(text).hexdigest().encode() + b" " + text + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Self:
        """Every field of a line, verified."""
        digest, _, text = line.removesuffix(b"\n").partition(b" ")
        if not line.endswith(b"\n") or digest != hashlib.sha256(text).hexdigest().encode():
            raise _UselessError("its first line is damaged")
        try:
            said = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _UselessError("its first line is not JSON") from error
        if not isinstance(said, dict) or set(said) != _FIELDS or said["format"] != _FORMAT:
            raise _UselessError("it is of another form")
        return cls(
            run=_text(said["run"]),
            round=_count(said["round"]),
            task=_sha256(said["task"]),
            reservation=_reservation(said["reservation"]),
            delta=_sha256(said["delta"]),
            episodes=_counts(said["episodes"]),
            successes=_counts(said["successes"]),
        )


class ResultFiles:
    """Those of one data directory; ``keep`` and ``find`` are the worker's, the rest anybody's."""

    def __init__(self, data_dir: Path, store: LocalStore) -> None:
        """Delete what is of no use any more; ``store`` knows which rounds are closed.

        Raises:
            LocalStoreError: The directory cannot be looked through, or something not be deleted.
        """
        self._directory = data_dir / DIRECTORY
        self._store = store
        with _typed(self._directory):
            for path in _entries(self._directory):
                if is_partial(path):
                    path.unlink()
                    continue
                try:
                    why = self._useless(path)
                except _UselessError as error:
                    why = str(error)
                if why:
                    _delete(path, why)
            self._delete_oldest(MAX_RUNS)

    def keep(self, result: Result, task: RoundTask, reservation: tuple[int, bytes] | None) -> None:
        """Write a round's finished work in the place of its run's older one.

        ``reservation`` is the head of the ledger in which the training is charged.

        Raises:
            LocalStoreError: The disk refused; what was there before may still be.
        """
        if not isinstance(result.delta, np.ndarray):
            raise LocalStoreError("a result without its vector is not kept")
        content = np.ascontiguousarray(result.delta, dtype="<f4").data.cast("B")
        header = _Header(
            run=result.run_id,
            round=result.round,
            task=_digest_of(task),
            reservation=None if reservation is None else (reservation[0], reservation[1].hex()),
            delta=hashlib.sha256(content).hexdigest(),
            episodes=result.episodes,
            successes=result.successes,
        )
        line, path = header.line(), self._path(result.run_id)
        if len(line) > _MAX_LINE_BYTES:
            raise LocalStoreError("a result of so many families is not kept")
        with _typed(path):
            private_directory(self._directory)
            replace_file(path, (line, content))
            # Whatever the clock says, this one is the newest.
            self._delete_oldest(MAX_RUNS - 1, besides=path)
        # It may have been closed while it was written, by the thread that follows the chain.
        self.end_round(result.run_id, self._closed_round(result.run_id))

    def find(self, task: RoundTask, plan: Plan, layout: Layout, ledger: Ledger) -> Result | None:
        """What an earlier process finished for this task; None if there is nothing to be used."""
        path = self._path(task.run_id)
        try:
            return _read(path, task, plan, layout, ledger)
        except FileNotFoundError:
            return None
        except _UselessError as error:
            _try_to_delete(path, str(error))
        except OSError as error:
            _try_to_delete(path, told(error))
        return None

    def end_round(self, run_id: str, round_number: int) -> None:
        """Delete what is of a run's closed rounds, up to this one."""
        path = self._path(run_id)
        try:
            if path.exists() and _header_of(path).round > round_number:
                return
        except (_UselessError, OSError):
            # Whoever looks for it deletes it.
            return
        _forget(path)

    def end_runs(self, run_ids: Iterable[str]) -> None:
        """Delete what is of runs that are over."""
        for run_id in run_ids:
            _forget(self._path(run_id))

    def _path(self, run_id: str) -> Path:
        # The coordinator chose the run id, so the name carries its digest.
        return self._directory / f"{hashlib.sha256(run_id.encode()).hexdigest()[:32]}.result"

    def _useless(self, path: Path) -> str:
        """Why a file can be of no task to come; empty where it may be of one."""
        header = _header_of(path)
        if path != self._path(header.run):
            return "it is not of the run that it is named by"
        # A step's record is enough: the steps that follow need nothing from here.
        return "its round is closed" if self._closed_round(header.run) >= header.round else ""

    def _closed_round(self, run_id: str) -> int:
        head = self._store.chain_head(run_id)
        return -1 if head is None else head.round

    def _delete_oldest(self, most: int, besides: Path | None = None) -> None:
        paths = [
            path for path in _entries(self._directory) if path != besides and not is_partial(path)
        ]
        for path in sorted(paths, key=lambda one: one.lstat().st_mtime_ns)[:-most]:
            _delete(path, "of so many runs only the newest are kept")


def delete_results(data_dir: Path) -> int:
    """Delete everything that is kept in a directory that no daemon uses; returns how many.

    Raises:
        LocalStoreError: Something could not be deleted.
    """
    with _typed(data_dir / DIRECTORY):
        paths = _entries(data_dir / DIRECTORY)
        for path in paths:
            path.unlink()
    return len([path for path in paths if not is_partial(path)])


def _read(path: Path, task: RoundTask, plan: Plan, layout: Layout, ledger: Ledger) -> Result:
    dimension = 0 if plan.spec.mode is Mode.RECORD_DISTRIBUTED else layout.dimension
    with _opened(path) as file:
        line = file.readline(_MAX_LINE_BYTES)
        header = _Header.read(line)
        if (header.run, header.round, header.task) != (task.run_id, task.round, _digest_of(task)):
            raise _UselessError("it is of another task")
        _require_charged(header, plan, ledger)
        size_bytes = 4 * dimension
        if os.fstat(file.fileno()).st_size != len(line) + size_bytes:
            raise _UselessError("it has another length than the plan's vector")
        content = file.read(size_bytes)
    if len(content) != size_bytes or hashlib.sha256(content).hexdigest() != header.delta:
        raise _UselessError("its vector is damaged")
    return Result(
        run_id=task.run_id,
        round=task.round,
        plan=plan,
        layout=layout,
        delta=np.frombuffer(content, dtype="<f4").astype(np.float32),
        episodes=header.episodes,
        successes=header.successes,
        evolved=True,
    )


def _require_charged(header: _Header, plan: Plan, ledger: Ledger) -> None:
    """Go on only with what was trained under a charge that this very ledger holds."""
    charged = header.reservation
    if (charged is not None) != (plan.spec.mode is Mode.RECORD_LOCAL):
        raise _UselessError("its charge is not of the plan's mode")
    if charged is None:
        return
    try:
        ledger.require_contains(charged[0], bytes.fromhex(charged[1]))
    except LedgerRolledBackError as error:
        raise _UselessError("the ledger does not hold its charge") from error
    if not ledger.has_trained(header.run, header.round):
        raise _UselessError("the ledger has charged no such training last")


def _digest_of(task: RoundTask) -> str:
    """Of what decides the work; a task that is given out again differs in its deadline alone."""
    named = (task.plan_sha256, task.base_model_sha256, task.adapter_sha256)
    said = ["chorale/silo/result/1", task.run_id, task.round, *(one.hex() for one in named)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _header_of(path: Path) -> _Header:
    with _opened(path) as file:
        return _Header.read(file.readline(_MAX_LINE_BYTES))


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _UselessError("it cannot be opened") from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _UselessError("it is no file")
        yield file


def _entries(directory: Path) -> list[Path]:
    """Files of ours, and what a crash left of one; what somebody else put there is not ours."""
    if not directory.is_dir():
        return []
    return sorted(
        path for path in directory.iterdir() if _NAME.fullmatch(path.name) or is_partial(path)
    )


def _delete(path: Path, why: str) -> None:
    path.unlink(missing_ok=True)
    log.warning("result_deleted", result=path.name, why=why)


def _try_to_delete(path: Path, why: str) -> None:
    try:
        _delete(path, why)
    except OSError as error:
        log.warning("result_not_deleted", result=path.name, reason=error)


def _forget(path: Path) -> None:
    """Delete what has done its service; a disk that refuses must not stop the daemon's thread."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("result_not_deleted", result=path.name, reason=error)


@contextmanager
def _typed(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LocalStoreError(f"cannot use {path}: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_FAMILY_CHARACTERS:
        raise _UselessError("a text in it is none")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise _UselessError("a number in it is none")
    return value


def _sha256(value: Any) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise _UselessError("a digest in it is none")
    return value


def _counts(value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or len(value) > _MAX_FAMILIES:
        raise _UselessError("its counts are none")
    return {_text(family): _count(count) for family, count in value.items()}


def _reservation(value: Any) -> tuple[int, str] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:  # number and digest
        raise _UselessError("its charge is none")
    return _count(value[0]), _sha256(value[1])
