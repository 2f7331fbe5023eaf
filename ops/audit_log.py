"""An audit log on disk: opened, caught up with, appended to, read and verified, on either side.

The form of a record and the checks of the chain are ``federation/audit/lines.py``'s; what there is
to record is each daemon's own.

Ordered invariants:

1. ``append`` returns after the line is on disk, and raises if it is not.
2. Records are never changed. What follows the last line feed was never acknowledged: the next write
   goes over it, whichever process makes it, and records how much that was.
3. A write that failed leaves nothing to rely on: the file is read anew before the next one.

Covered: several processes and threads, a crash or a full disk at any byte. Not covered: file
systems that lie about fsync.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, Final, Generic, TypeVar

from federation.audit import lines as audit_chain
from federation.audit.lines import ChainHead, Detail
from ops.files import sync_directory

__all__ = ["AuditLog", "read_log", "verify_log"]

_PRIVATE: Final = 0o600
_TORN_WRITE_CUT: Final = "torn_write_cut"
_UNKNOWN: Final = -1

Event = TypeVar("Event", bound=StrEnum)


class AuditLog(Generic[Event]):
    """An append-only file; one object a process, any number of processes and threads."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Open or begin the log; a link is refused, and the clock gives Unix seconds.

        Raises:
            OSError: It cannot be opened or written.
            AuditChainError: Its last record is unreadable.
        """
        self.path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._opened = False
        self._end_bytes = _UNKNOWN
        """Where the last whole line ends."""
        self._head = audit_chain.EMPTY
        self.head()

    @property
    def head_index(self) -> int:
        """Index of the newest record this process knows, -1 for an empty log."""
        return self._head.index

    def head(self) -> ChainHead:
        """Return the newest record's index and digest, whichever process wrote it.

        Raises:
            OSError: The file cannot be used.
            AuditChainError: The last record is unreadable.
        """
        with self._held():
            return self._head

    def append(self, event: Event, **details: Detail) -> None:
        """Write one record and sync it.

        Raises:
            OSError: It may not be on disk.
            AuditChainError: The last record is unreadable.
        """
        with self._held() as file:
            self._write(file, event.value, details)

    def tail(self, lines: int, *, max_bytes: int | None = None) -> tuple[str, ...]:
        """The newest records, oldest first, as JSON objects.

        ``max_bytes`` bounds how long they are together; None for any length.

        Raises:
            OSError: The file cannot be read.
        """
        if lines <= 0:
            return ()
        newest = audit_chain.complete_lines(read_log(self.path))[-lines:]
        if max_bytes is not None:
            sizes = accumulate(len(line) for line in reversed(newest))
            newest = newest[len(newest) - sum(size <= max_bytes for size in sizes) :]
        return tuple(line.decode(errors="replace") for line in newest)

    def _first(self) -> tuple[str, dict[str, Detail]] | None:
        """The record that a log begins with by itself."""
        return None

    @contextmanager
    def _held(self) -> Iterator[BinaryIO]:
        """The file under its lock, with the head known and no torn line."""
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._lock:
            if not self._opened:
                # Only now: a log that vanishes later must not begin again in silence.
                flags |= os.O_CREAT
            with os.fdopen(os.open(self.path, flags, _PRIVATE), "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not self._opened:
                    sync_directory(self.path.parent)
                self._opened = True
                self._catch_up(file)
                yield file

    def _catch_up(self, file: BinaryIO) -> None:
        """Learn the head again if another process wrote, and write over a torn last line."""
        if os.fstat(file.fileno()).st_size == self._end_bytes:
            return
        self._end_bytes = _UNKNOWN
        content = file.read()
        self._head = audit_chain.head_of(content)
        torn = audit_chain.torn_bytes(content)
        self._end_bytes = len(content) - torn
        first = self._first() if self._end_bytes == 0 else None
        if first is not None:
            self._write(file, *first)
        if torn:
            self._write(file, _TORN_WRITE_CUT, {"cut_bytes": torn})

    def _write(self, file: BinaryIO, event: str, details: dict[str, Detail]) -> None:
        line, head = audit_chain.make_line(
            self._head, at_unix_s=self._clock(), event=event, details=details
        )
        begin, self._end_bytes = self._end_bytes, _UNKNOWN
        file.seek(begin)
        file.write(line)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
        self._head = head
        self._end_bytes = begin + len(line)


def read_log(path: Path) -> bytes:
    """Read a log between two appends.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        return file.read()


def verify_log(path: Path, seen: Sequence[ChainHead] = ()) -> int:
    """Check a log's whole chain without opening it for writing; returns the number of records.

    ``seen`` are heads of it that others keep; the log must contain each of them.

    Raises:
        OSError: It cannot be read.
        AuditChainError: Names the first bad record.
    """
    content = read_log(path)
    audit_chain.check_contains(content, seen)
    return len(audit_chain.complete_lines(content))
