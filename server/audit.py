"""The audit log: who did what, when, in a chain that shows any later change.

One JSON object a line: ``index``, ``at`` (RFC 3339, UTC), ``event``, ``details``, ``parent_sha256``
and ``sha256`` over all the others in canonical JSON. The first parent is 32 zero bytes.

Invariants:

1. ``append`` returns after the line is on disk.
2. Records are never changed: an altered, removed or reordered line breaks every digest after it.
3. A half-written last line, left by a crash, was never acknowledged; it is cut before the next
   append, and the cut is itself recorded.

Covered: alteration of any record but a cut of whole records at the end. Not covered: that cut,
which shows only against a head kept elsewhere (``chorale_audit_head_index``).
"""

from __future__ import annotations

import datetime as dt
import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from server.durable import write_durably
from server.errors import AuditError

__all__ = ["AuditEvent", "AuditLog"]

GENESIS_PARENT: Final = "0" * 64
Detail = str | int | Sequence[str]


class AuditEvent(StrEnum):
    """Everything the log can say."""

    GENESIS = "genesis"
    TORN_WRITE_CUT = "torn_write_cut"
    COORDINATOR_STARTED = "coordinator_started"
    COORDINATOR_STOPPED = "coordinator_stopped"
    ADMIN_CERTIFICATE_ISSUED = "admin_certificate_issued"
    INVITE_CREATED = "invite_created"
    SILO_JOINED = "silo_joined"
    JOIN_REFUSED = "join_refused"
    SILO_REVOKED = "silo_revoked"
    SILO_REFUSED = "silo_refused"
    ROSTER_PROPOSED = "roster_proposed"
    ROSTER_PUBLISHED = "roster_published"
    RUN_STARTED = "run_started"
    RUN_RESUMED = "run_resumed"
    RUN_ABORTED = "run_aborted"
    RUN_FAILED = "run_failed"
    RUN_FINISHED = "run_finished"
    ROUND_FINISHED = "round_finished"
    ROUND_STALLED = "round_stalled"
    ATTEMPT_ABORTED = "attempt_aborted"
    ATTEMPT_RESUMED = "attempt_resumed"
    LEDGER_ROLLED_BACK = "ledger_rolled_back"


class AuditLog:
    """An append-only file; one object a process, any number of processes."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._size_bytes = -1
        self._head_index = -1
        self._head_sha256 = GENESIS_PARENT
        if not path.exists():
            write_durably(path, b"")
        with self._lock, self._path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._catch_up(file)

    @property
    def head_index(self) -> int:
        """Index of the newest record, -1 for an empty log."""
        return self._head_index

    def append(self, event: AuditEvent, **details: Detail) -> None:
        """Write one record and sync it.

        Args:
            event: What happened.
            **details: Public facts about it.

        Raises:
            AuditError: The log's last record is unreadable.
        """
        with self._lock, self._path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._catch_up(file)
            self._write(file, event, details)

    def tail(self, lines: int) -> tuple[str, ...]:
        """Return the newest records.

        Args:
            lines: How many at most.

        Returns:
            JSON objects, oldest first.
        """
        if lines <= 0:
            return ()
        return tuple(_complete_lines(self._path.read_bytes())[-lines:])

    def verify(self) -> int:
        """Check the whole chain.

        Returns:
            The number of records.

        Raises:
            AuditError: Names the first bad record.
        """
        return self.verify_file(self._path)

    @staticmethod
    def verify_file(path: Path) -> int:
        """Check a log's whole chain without opening it for writing.

        Args:
            path: The file.

        Returns:
            The number of records.

        Raises:
            AuditError: Names the first bad record.
        """
        parent = GENESIS_PARENT
        content = path.read_bytes()
        lines = _complete_lines(content)
        for index, line in enumerate(lines):
            parent = _checked(line, index, parent)["sha256"]
        if content and not content.endswith(b"\n"):
            raise AuditError(f"audit record {len(lines)} is half written")
        return len(lines)

    def _catch_up(self, file: Any) -> None:
        """Learn the head again if another process wrote, and cut a torn last line."""
        size = os.fstat(file.fileno()).st_size
        if size == self._size_bytes:
            return
        file.seek(0)
        content = file.read()
        torn = len(content) - (content.rfind(b"\n") + 1)
        lines = _complete_lines(content)
        if lines:
            try:
                head = json.loads(lines[-1])
                self._head_index, self._head_sha256 = int(head["index"]), str(head["sha256"])
            except (ValueError, KeyError, TypeError) as error:
                raise AuditError(f"audit record {len(lines) - 1} is unreadable") from error
        self._size_bytes = size
        if torn:
            file.truncate(size - torn)
            self._write(file, AuditEvent.TORN_WRITE_CUT, {"cut_bytes": torn})

    def _write(self, file: Any, event: AuditEvent, details: dict[str, Detail]) -> None:
        record: dict[str, Any] = {
            "index": self._head_index + 1,
            "at": dt.datetime.fromtimestamp(self._clock(), dt.UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "event": event.value,
            "details": {
                key: value if isinstance(value, str | int) else list(value)
                for key, value in details.items()
            },
            "parent_sha256": self._head_sha256,
        }
        record["sha256"] = _digest(record)
        file.seek(0, os.SEEK_END)
        file.write(_canonical(record) + b"\n")
        file.flush()
        os.fsync(file.fileno())
        self._head_index, self._head_sha256 = record["index"], record["sha256"]
        self._size_bytes = os.fstat(file.fileno()).st_size


def _canonical(record: dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(record)).hexdigest()


def _complete_lines(content: bytes) -> list[str]:
    whole = content[: content.rfind(b"\n") + 1]
    return [line.decode(errors="replace") for line in whole.splitlines()]


def _checked(line: str, index: int, parent: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
        claimed = record.pop("sha256")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AuditError(f"audit record {index} is unreadable") from error
    if record.get("index") != index or record.get("parent_sha256") != parent:
        raise AuditError(f"audit record {index} does not follow the one before it")
    if _digest(record) != claimed:
        raise AuditError(f"audit record {index} was altered")
    return {**record, "sha256": claimed}
