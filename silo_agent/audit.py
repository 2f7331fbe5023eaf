"""The silo's audit log: what this site did for the federation, in a chain that shows any change.

``audit.jsonl`` in the data directory. The form of a record and the checks of the chain are
``federation/audit_chain.py``'s. The log itself never leaves the silo; of it, only the signed head
does (``silo_agent/audit_heads.py``): how many records there are, and the digest of the newest.

Ordered invariants:

1. ``append`` returns after the line is on disk, and fails if it is not. Before anything private
   leaves (``attempt_charged``, ``survivors_signed``) and before a local training begins
   (``training_charged``) the record is there, so what happened is never more than what is written.
   ``note`` is for what must not stop the daemon: a disk that refuses it is logged and counted.
2. Records are never changed. A half-written last line was never acknowledged; it is cut before the
   next append, and the cut is itself recorded.
3. Nothing private is in a record: names of runs and rounds, rules and digests of the policy,
   digests of what is public. Its reader is an auditor of the site.
4. The first record holds 128 random bits, and every later digest covers them. So the head that
   goes to the coordinator says nothing about the content, not even by trying all contents.

The number of records, which the head tells the coordinator, does not depend on private data. Each
record is written for one of these, and each of these is known to the coordinator or made by people:

* what the operator did: joined, left, started or stopped the daemon, changed the policy, renewed,
  approved;
* what the coordinator sent and this silo answered to it: a task that was accepted or refused (the
  refusal itself is sent, and rests on configuration, ledger and signed documents), an attempt that
  was charged, uploaded or signed, a record of the public chain that was adopted;
* a local training under ``record_local``, charged once a round whatever the work comes to
  (``silo_agent/reservation.py``, invariant 1).

No record is written for what was explored, for a success, a failure, a loss or a vector that is not
finite: a silo with nothing to give writes what a silo with everything writes. Nor for an
instruction that could not be answered yet, which would count how long the work took.

Covered: alteration of any record; with heads that the coordinator keeps also a cut at the end and a
chain that was computed anew. Not covered: records after the newest head that left the silo;
coordinators that invent tasks to make the log grow, which the daemon's pauses bound in time only.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Final

import structlog

from federation import audit_chain
from federation.audit_chain import ChainHead, Detail
from federation.errors import AuditChainError
from federation.record import Place
from secagg.descriptor import AggregationId
from silo_agent.durable import sync_directory
from silo_agent.errors import AuditLogError

__all__ = ["AUDIT_FILE", "AuditLog", "SiloEvent", "asked", "place", "read_log", "verify_log"]

AUDIT_FILE: Final = "audit.jsonl"
_PRIVATE: Final = 0o600
_LOG_ID_BYTES: Final = 16
log = structlog.get_logger(__name__)


class SiloEvent(StrEnum):
    """Everything the log can say."""

    LOG_BEGUN = "log_begun"
    TORN_WRITE_CUT = "torn_write_cut"
    JOINED = "joined"
    LEFT = "left"
    DAEMON_STARTED = "daemon_started"
    DAEMON_STOPPED = "daemon_stopped"
    CERTIFICATE_RENEWED = "certificate_renewed"
    POLICY_CHANGED = "policy_changed"
    APPROVAL_GIVEN = "approval_given"
    APPROVAL_REFUSED = "approval_refused"
    ROSTER_APPROVED = "roster_approved"
    TASK_ACCEPTED = "task_accepted"
    TASK_REFUSED = "task_refused"
    TRAINING_CHARGED = "training_charged"
    ATTEMPT_CHARGED = "attempt_charged"
    ATTEMPT_UPLOADED = "attempt_uploaded"
    SURVIVORS_SIGNED = "survivors_signed"
    RECORD_ADOPTED = "record_adopted"
    AUDIT_HEAD_CONFLICT = "audit_head_conflict"


def place(identity: AggregationId) -> dict[str, Detail]:
    """Return the details that name an attempt."""
    return {
        "run": identity.run_id,
        "round": identity.round,
        "step": identity.step,
        "part": identity.part,
        "attempt": identity.attempt,
    }


def asked(run_id: str, where: Place) -> dict[str, Detail]:
    """Return the details that name a step of a run."""
    return {"run": run_id, "round": where.round, "step": where.step}


class AuditLog:
    """An append-only file; one object a process, any number of processes and threads."""

    def __init__(
        self,
        data_dir: Path,
        *,
        clock: Callable[[], float] = time.time,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Open or begin the log.

        Args:
            data_dir: The silo's data directory.
            clock: Unix seconds.
            on_failure: Counts a ``note`` that could not be written.

        Raises:
            AuditLogError: It cannot be opened, or its last record is unreadable.
        """
        self.path = data_dir / AUDIT_FILE
        self._clock = clock
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._size_bytes = -1
        self._head = audit_chain.EMPTY
        self.head()

    def head(self) -> ChainHead:
        """Return the newest record's index and digest, whichever process wrote it.

        Raises:
            AuditLogError: The file cannot be used.
        """
        with self._held():
            return self._head

    def append(self, event: SiloEvent, **details: Detail) -> None:
        """Write one record and sync it.

        Raises:
            AuditLogError: It is not on disk.
        """
        with self._held() as file:
            self._write(file, event, details)

    def note(self, event: SiloEvent, **details: Detail) -> None:
        """Write one record if the disk takes it; a failure is logged and counted."""
        try:
            self.append(event, **details)
        except AuditLogError as error:
            self._on_failure()
            # One line and no traceback: the reason says it all.
            log.error("audit_not_written", audited=event.value, detail=str(error))  # noqa: TRY400

    def note_policy(self, sha256: bytes) -> None:
        """Record the policy in force, unless the newest record about it names the same one."""
        try:
            known = self._newest_policy()
        except AuditLogError:
            known = None
        if known != sha256.hex():
            self.note(SiloEvent.POLICY_CHANGED, sha256=sha256.hex())

    def tail(self, lines: int) -> tuple[str, ...]:
        """Return the newest records as JSON objects, oldest first."""
        if lines <= 0:
            return ()
        newest = audit_chain.complete_lines(read_log(self.path))[-lines:]
        return tuple(line.decode(errors="replace") for line in newest)

    def _newest_policy(self) -> object:
        for line in reversed(audit_chain.complete_lines(read_log(self.path))):
            try:
                record = audit_chain.read_record(line)
            except AuditChainError:
                continue
            if record["event"] == SiloEvent.POLICY_CHANGED:
                return record["details"].get("sha256")
        return None

    @contextmanager
    def _held(self) -> Iterator[BinaryIO]:
        """The file under its lock, with the head known and no torn line."""
        try:
            with self._lock:
                created = not self.path.exists()
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                with os.fdopen(os.open(self.path, flags, _PRIVATE), "r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    self._catch_up(file)
                    yield file
                if created:
                    sync_directory(self.path.parent)
        except OSError as error:
            raise AuditLogError(f"cannot write {self.path}: {error}") from error

    def _catch_up(self, file: BinaryIO) -> None:
        """Learn the head again if another process wrote, and cut a torn last line."""
        size = os.fstat(file.fileno()).st_size
        if size == self._size_bytes:
            return
        content = file.read()
        try:
            self._head = audit_chain.head_of(content)
        except AuditChainError as error:
            raise AuditLogError(f"{self.path}: {error}") from error
        self._size_bytes = size
        torn = audit_chain.torn_bytes(content)
        if torn:
            file.truncate(size - torn)
        if self._head == audit_chain.EMPTY:
            self._write(file, SiloEvent.LOG_BEGUN, {"log": secrets.token_hex(_LOG_ID_BYTES)})
        if torn:
            self._write(file, SiloEvent.TORN_WRITE_CUT, {"cut_bytes": torn})

    def _write(self, file: BinaryIO, event: SiloEvent, details: dict[str, Detail]) -> None:
        line, head = audit_chain.make_line(
            self._head, at_unix_s=self._clock(), event=event.value, details=details
        )
        file.seek(0, os.SEEK_END)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
        self._head = head
        self._size_bytes = os.fstat(file.fileno()).st_size


def read_log(path: Path) -> bytes:
    """Read the file between two appends.

    Raises:
        AuditLogError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return file.read()
    except OSError as error:
        raise AuditLogError(f"cannot read {path}: {error}") from error


def verify_log(path: Path, seen: Sequence[ChainHead] = ()) -> int:
    """Check a log's whole chain without opening it for writing.

    Args:
        path: The file.
        seen: Heads of it that the coordinator keeps; the log must contain each of them.

    Returns:
        The number of records.

    Raises:
        AuditLogError: It cannot be read.
        AuditChainError: Names the first bad record.
    """
    content = read_log(path)
    audit_chain.check_contains(content, seen)
    return len(audit_chain.complete_lines(content))
