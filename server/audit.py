"""The coordinator's audit log: who did what, when, in a chain that shows any later change.

The form of a record and the checks of the chain are ``federation/audit_chain.py``'s.

Invariants:

1. ``append`` returns after the line is on disk.
2. Records are never changed: an altered, removed or reordered line breaks every digest after it.
3. A half-written last line, left by a crash, was never acknowledged; it is cut before the next
   append, and the cut is itself recorded.

Covered: alteration of any record; with heads that a silo keeps (``server/audit_heads.py`` hands
them out each round) also a cut at the end and a chain that was computed anew. Not covered: records
after the newest head that anybody else holds.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from federation import audit_chain
from federation.audit_chain import ChainHead, Detail
from federation.errors import AuditChainError
from server.durable import write_durably
from server.errors import AuditError

__all__ = ["AuditEvent", "AuditLog"]


class AuditEvent(StrEnum):
    """Everything the log can say."""

    GENESIS = "genesis"
    TORN_WRITE_CUT = "torn_write_cut"
    COORDINATOR_STARTED = "coordinator_started"
    COORDINATOR_STOPPED = "coordinator_stopped"
    ADMIN_CERTIFICATE_ISSUED = "admin_certificate_issued"
    FEDERATION_CREATED = "federation_created"
    INVITE_CREATED = "invite_created"
    SILO_JOINED = "silo_joined"
    JOIN_REFUSED = "join_refused"
    SILO_REVOKED = "silo_revoked"
    SILO_SUSPENDED = "silo_suspended"
    SILO_REINSTATED = "silo_reinstated"
    SILO_LEFT = "silo_left"
    SILO_CERTIFICATE_RENEWED = "silo_certificate_renewed"
    SERVER_CERTIFICATE_RENEWED = "server_certificate_renewed"
    CA_ROTATED = "ca_rotated"
    CA_RETIRED = "ca_retired"
    SILO_REFUSED = "silo_refused"
    ROSTER_PROPOSED = "roster_proposed"
    ROSTER_APPROVED = "roster_approved"
    ROSTER_PUBLISHED = "roster_published"
    RUN_QUEUED = "run_queued"
    RUN_STARTED = "run_started"
    RUN_RESUMED = "run_resumed"
    """The coordinator started again, and with it the run that it drove."""
    RUN_PAUSING = "run_pausing"
    RUN_PAUSED = "run_paused"
    RUN_UNPAUSED = "run_unpaused"
    """An admin put it back; it goes on when it is its turn."""
    RUN_CONTINUED = "run_continued"
    """Its turn has come again."""
    RUN_ABORTED = "run_aborted"
    RUN_FAILED = "run_failed"
    RUN_FINISHED = "run_finished"
    ROUND_FINISHED = "round_finished"
    ROUND_STALLED = "round_stalled"
    ATTEMPT_ABORTED = "attempt_aborted"
    ATTEMPT_RESUMED = "attempt_resumed"
    LEDGER_ROLLED_BACK = "ledger_rolled_back"
    AUDIT_HEAD_CONFLICT = "audit_head_conflict"
    BACKUP_TAKEN = "backup_taken"
    RESTORED = "restored"


class AuditLog:
    """An append-only file; one object a process, any number of processes."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._size_bytes = -1
        self._head = audit_chain.EMPTY
        if not path.exists():
            write_durably(path, b"")
        self.head()

    @property
    def head_index(self) -> int:
        """Index of the newest record this process knows, -1 for an empty log."""
        return self._head.index

    def head(self) -> ChainHead:
        """Return the newest record's index and digest, whoever wrote it.

        Raises:
            AuditError: The log's last record is unreadable.
        """
        with self._lock, self._path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._catch_up(file)
            return self._head

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
        newest = audit_chain.complete_lines(_read(self._path))[-lines:]
        return tuple(line.decode(errors="replace") for line in newest)

    def verify(self) -> int:
        """Check the whole chain.

        Returns:
            The number of records.

        Raises:
            AuditError: Names the first bad record.
        """
        return self.verify_file(self._path)

    @staticmethod
    def verify_file(path: Path, seen: Sequence[ChainHead] = ()) -> int:
        """Check a log's whole chain without opening it for writing.

        Args:
            path: The file.
            seen: Heads of it that others keep; the log must contain each of them.

        Returns:
            The number of records.

        Raises:
            AuditError: Names the first bad record.
        """
        content = _read(path)
        try:
            audit_chain.check_contains(content, seen)
        except AuditChainError as error:
            raise AuditError(str(error), index=error.index) from error
        return len(audit_chain.complete_lines(content))

    @staticmethod
    def read_file(path: Path) -> bytes:
        """Read a log between two appends.

        Args:
            path: The file.

        Returns:
            Its bytes.
        """
        return _read(path)

    def _catch_up(self, file: BinaryIO) -> None:
        """Learn the head again if another process wrote, and cut a torn last line."""
        size = os.fstat(file.fileno()).st_size
        if size == self._size_bytes:
            return
        file.seek(0)
        content = file.read()
        try:
            self._head = audit_chain.head_of(content)
        except AuditChainError as error:
            raise AuditError(str(error), index=error.index) from error
        self._size_bytes = size
        torn = audit_chain.torn_bytes(content)
        if torn:
            file.truncate(size - torn)
            self._write(file, AuditEvent.TORN_WRITE_CUT, {"cut_bytes": torn})

    def _write(self, file: BinaryIO, event: AuditEvent, details: dict[str, Detail]) -> None:
        line, head = audit_chain.make_line(
            self._head, at_unix_s=self._clock(), event=event.value, details=details
        )
        file.seek(0, os.SEEK_END)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
        self._head = head
        self._size_bytes = os.fstat(file.fileno()).st_size


def _read(path: Path) -> bytes:
    """The file between two appends."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        return file.read()
