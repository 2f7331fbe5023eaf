"""The silo's audit log: what this site did for the federation, in a chain that shows any change.

``audit.jsonl`` in the data directory. The form of a record and the checks of the chain are
``federation/audit/lines.py``'s, the file is ``ops/audit_log.py``'s. The log itself never
leaves the silo; of it, only the signed head does (``silo_agent/books/audit_heads.py``): how many
records there are, and the digest of the newest.

Ordered invariants:

1. ``append`` returns after the line is on disk, and fails if it is not. Before anything private
   leaves (``attempt_charged``, ``survivors_signed``) and before a local training begins
   (``training_charged``) the record is there, so what happened is never more than what is written.
   ``note`` is for what must not stop the daemon: a disk that refuses it is logged and counted.
2. Records are never changed (``ops/audit_log.py``).
3. Nothing private is in a record: names of runs and rounds, rules and digests of the policy,
   digests of what is public. Its reader is an auditor of the site.
4. The first record holds 128 random bits, and every later digest covers them. So the head that
   goes to the coordinator says nothing about the content, not even by trying all contents.

The number of records, which the head tells the coordinator, does not depend on private data. Each
record is written for one of these, and each of these is known to the coordinator or made by people:

* what the operator did: joined, left, started or stopped the daemon, changed the policy, renewed,
  approved;
* what the coordinator sent and this silo answered to it: a task that was accepted or refused (the
  refusal itself is sent, and rests on configuration, ledger and signed documents), a new pre-flight
  that was answered, of as many as the policy allows a day and of the first beyond them, an attempt
  that was charged, uploaded or signed, a record of the public chain that was adopted;
* a local training under ``record_local``, charged once a round whatever the work comes to
  (``silo_agent/local_work/reservation.py``, invariant 1). When it was charged is not hidden: a head
  that leaves while the silo works tells whether exploring was over.

No record is written for what was explored, for a success, a failure, a loss or a vector that is not
finite: a silo with nothing to give writes what a silo with everything writes. Nor for an
instruction that could not be answered yet, which would count how long the work took.

Covered: alteration of any record; with heads that the coordinator keeps also a cut at the end and a
chain that was computed anew. Not covered: records after the newest head that left the silo;
coordinators that invent tasks to make the log grow, which the daemon's pauses bound in time only.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Final

from federation.audit import lines as audit_chain
from federation.audit.lines import Detail
from federation.chain.record import Place
from federation.errors import AuditChainError
from ops import audit_log
from ops.logs.logger import get_logger
from secagg.descriptor import AggregationId
from silo_agent.errors import AuditLogError

__all__ = ["AUDIT_FILE", "AuditLog", "SiloEvent", "asked", "place", "read_log"]

AUDIT_FILE: Final = "audit.jsonl"
_LOG_ID_BYTES: Final = 16
log = get_logger(__name__)


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
    PREFLIGHT_ANSWERED = "preflight_answered"
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


class AuditLog(audit_log.AuditLog[SiloEvent]):
    """This silo's log; what fails is an ``AuditLogError``."""

    def __init__(
        self,
        data_dir: Path,
        *,
        clock: Callable[[], float] = time.time,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Open or begin the log; ``on_failure`` counts a ``note`` that could not be written.

        Raises:
            AuditLogError: It cannot be opened, or its last record is unreadable.
        """
        self._on_failure = on_failure
        super().__init__(data_dir / AUDIT_FILE, clock)

    def note(self, event: SiloEvent, **details: Detail) -> None:
        """Write one record if the disk takes it; a failure is logged and counted."""
        try:
            self.append(event, **details)
        except AuditLogError as error:
            self._on_failure()
            # One line and no traceback: the reason says it all.
            log.error("audit_not_written", audited=event.value, detail=error)  # noqa: TRY400

    def note_policy(self, sha256: bytes) -> None:
        """Record the policy in force, unless the newest record about it names the same one."""
        try:
            known = self._newest_policy()
        except AuditLogError:
            known = None
        if known != sha256.hex():
            self.note(SiloEvent.POLICY_CHANGED, sha256=sha256.hex())

    def _newest_policy(self) -> object:
        for line in reversed(audit_chain.complete_lines(read_log(self.path))):
            try:
                record = audit_chain.read_record(line)
            except AuditChainError:
                continue
            if record["event"] == SiloEvent.POLICY_CHANGED:
                return record["details"].get("sha256")
        return None

    def _first(self) -> tuple[str, dict[str, Detail]]:
        return SiloEvent.LOG_BEGUN.value, {"log": secrets.token_hex(_LOG_ID_BYTES)}

    @contextmanager
    def _held(self) -> Iterator[BinaryIO]:
        try:
            with super()._held() as file:
                yield file
        except OSError as error:
            raise AuditLogError(f"cannot write {self.path}: {error}") from error
        except AuditChainError as error:
            raise AuditLogError(f"{self.path}: {error}") from error


def read_log(path: Path) -> bytes:
    """Read the file between two appends.

    Raises:
        AuditLogError: It cannot be read.
    """
    try:
        return audit_log.read_log(path)
    except OSError as error:
        raise AuditLogError(f"cannot read {path}: {error}") from error
