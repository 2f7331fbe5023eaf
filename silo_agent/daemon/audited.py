"""What the daemon says to the audit log, each thing once, and the heads it exchanges.

Invariants: a task, a refusal or an upload that is asked for again adds no record; heads are
exchanged once for each round of a run whose chain was followed to its end.

Covered: the daemon's own events. Not covered: charges and signatures, which are recorded where they
are made (``silo_agent/attempt/session.py``, ``silo_agent/local_work/reservation.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256

from federation.chain.preflight import Preflight, PreflightAnswer
from federation.chain.record import AdapterRecord, Place
from federation.chain.task import RoundTask
from federation.errors import AuditChainError
from ops.audit_log import verify_log
from ops.logs.logger import get_logger
from secagg.descriptor import AggregationId
from silo_agent.books.audit import AUDIT_FILE, AuditLog, SiloEvent, asked, place
from silo_agent.books.audit_heads import AuditHeadExchange, Exchanges
from silo_agent.errors import AuditLogError
from silo_agent.follow.published import Published
from silo_agent.identity.identity import Identity
from silo_agent.metrics import SiloMetrics

__all__ = ["DaemonAudit", "open_audit"]

log = get_logger(__name__)


class DaemonAudit:
    """The daemon's hand on the log."""

    def __init__(self, log: AuditLog, heads: AuditHeadExchange) -> None:
        self.log = log
        self._heads = heads
        self._accepted: RoundTask | None = None
        self._refused: tuple[tuple[str, Place] | None, str] | None = None
        self._uploaded: AggregationId | None = None
        self._exchanged: tuple[str, int] | None = None

    def started(self, policy_file: Path) -> None:
        """The daemon runs, under this policy."""
        self.log.note(SiloEvent.DAEMON_STARTED)
        self.log.note_policy(hashlib.sha256(policy_file.read_bytes()).digest())

    def stopped(self) -> None:
        """The daemon ends in order; a crash shows as a second start."""
        self.log.note(SiloEvent.DAEMON_STOPPED)

    def renewed(self, identity: Identity) -> None:
        """The coordinator accepted a new certificate."""
        self.log.note(
            SiloEvent.CERTIFICATE_RENEWED,
            certificate_sha256=identity.leaf.fingerprint(SHA256()).hex(),
            expiry_unix_s=identity.certificate_expiry_unix_s,
        )

    def accepted(self, task: RoundTask) -> None:
        """Work on a task began."""
        if task != self._accepted:
            self._accepted = task
            where = Place(task.round, task.step)
            self.log.note(SiloEvent.TASK_ACCEPTED, **asked(task.run_id, where))

    def refused(self, what: tuple[str, Place] | None, rule: str) -> None:
        """The guardian said no to a step of a run."""
        if (what, rule) != self._refused:
            self._refused = what, rule
            run_id, where = what or ("", Place(0, 0))
            self.log.note(SiloEvent.TASK_REFUSED, **asked(run_id, where), rule=rule)

    def preflight(self, preflight: Preflight, answer: PreflightAnswer) -> None:
        """A new question was answered, or the first one of a day that came too often."""
        self.log.note(
            SiloEvent.PREFLIGHT_ANSWERED,
            plan_sha256=preflight.plan_sha256.hex(),
            roster_sha256=preflight.roster_sha256.hex(),
            token=preflight.submit_token,
            verdict=answer.verdict.value,
            rule=answer.rule,
            **({} if answer.offer is None else answer.offer.named()),
        )

    def uploaded(self, identity: AggregationId) -> None:
        """An upload of an earlier process was finished."""
        if identity != self._uploaded:
            self._uploaded = identity
            self.log.note(SiloEvent.ATTEMPT_UPLOADED, **place(identity))

    def adopting(self, record: AdapterRecord) -> None:
        """A verified record of a run's chain is about to become its head.

        Raises:
            AuditLogError: It is not on disk, so the record must not be adopted.
        """
        self.log.append(
            SiloEvent.RECORD_ADOPTED,
            run=record.run_id,
            round=record.round,
            step=record.step,
            kind=record.kind,
            record_sha256=record.sha256.hex(),
            adapter_sha256=record.adapter_sha256.hex(),
            **({} if record.restored_round is None else {"restored_round": record.restored_round}),
        )

    def exchange(self, coordinator: Exchanges, published: Published) -> None:
        """Exchange heads if a chain was followed to a round for which that was not done yet."""
        head, key = published.head, published.coordinator_key
        if head is None or key is None:
            return
        adopted = head.record.run_id, head.record.round
        if adopted != self._exchanged:
            self._exchanged = adopted
            self._heads.exchange(coordinator, key)


def open_audit(
    data_dir: Path, identity: Callable[[], Identity], metrics: SiloMetrics
) -> DaemonAudit:
    """Open the log of a data directory for the daemon.

    What cannot be written, and heads that conflict, are counted.

    Raises:
        AuditLogError: It cannot be opened.
    """
    path = data_dir / AUDIT_FILE
    try:
        if path.exists():
            verify_log(path)
    except AuditChainError as error:
        # Counted, logged and gone on with, as long as its end can be written: an alert tells.
        metrics.audit_failures.inc()
        log.error("audit_broken", reason=error)  # noqa: TRY400 - the reason says it all
    audit = AuditLog(data_dir, on_failure=lambda: metrics.count_error(AuditLogError.__name__))
    return DaemonAudit(
        audit, AuditHeadExchange(data_dir=data_dir, audit=audit, identity=identity, metrics=metrics)
    )
