"""Audit heads that the coordinator and its silos leave with each other.

Ordered invariants of one exchange:

1. A head counts only under the key that its silo enrolled with, and for the silo of the client
   certificate: a request names nobody.
2. Of each silo the newest head is durable before the coordinator's own goes back. A head that is
   behind it, or another one of the same index, is refused, counted and in the audit log, and the
   newest stays what it was.
3. What is answered is the head of the log as it stands on disk at that moment, so it never goes
   back while the log does not.

A silo that repeats a conflicting head adds nothing to the audit log until its newest head moves.
An exchange is not itself an event: otherwise every head would be older than the log at once.

Covered: silos' heads, this coordinator's. Not covered: what a silo does with them
(``silo_agent/books/audit_heads.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chorale.v1 import membership_pb2 as pb
from federation.audit.head import COORDINATOR, AuditHead, require_follows, sign_head, silo_writer
from federation.errors import AuditHeadConflictError, AuditHeadError
from federation.wire import audit_head_from_proto, audit_head_to_proto
from ops.logs.logger import get_logger
from server.audit import AuditEvent, AuditLog
from server.members.terms import require_federation
from server.metrics import CoordinatorMetrics
from server.store import Store
from server.store.heads import AuditHeadRow

__all__ = ["AuditHeadExchange", "head_of_row"]

log = get_logger(__name__)


class AuditHeadExchange:
    """The coordinator's side of the exchange."""

    def __init__(
        self,
        *,
        store: Store,
        audit: AuditLog,
        metrics: CoordinatorMetrics,
        signing_key: Ed25519PrivateKey,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._audit = audit
        self._metrics = metrics
        self._signing_key = signing_key
        self._clock = clock
        self._noted: set[tuple[str, int, bytes]] = set()
        """Whose conflict with which newest head is in the audit log."""

    def exchange(self, silo_id: str, theirs: pb.AuditHead) -> pb.AuditHead:
        """Take the head of the silo of the client certificate, and give the coordinator's.

        Raises:
            AuditHeadError: The head is malformed, or not signed by this silo.
            AuditHeadConflictError: The silo's log went back, or was written anew.
        """
        federation = require_federation(self._store).name
        writer = silo_writer(silo_id)
        self._take(silo_id, audit_head_from_proto(theirs, federation=federation, writer=writer))
        ours = sign_head(
            self._audit.head(),
            federation=federation,
            writer=COORDINATOR,
            at_unix_s=int(self._clock()),
            key=self._signing_key,
        )
        return audit_head_to_proto(ours)

    def _take(self, silo_id: str, head: AuditHead) -> None:
        silo = self._store.silos.get(silo_id)
        if silo is None:
            raise AuditHeadError(f"{silo_id} is not enrolled")
        head.verify(silo.verification_key)
        with self._store.transaction():
            row = self._store.audit_heads.get(silo_id)
            newest = None if row is None else head_of_row(row, head.federation)
            if newest is not None and not newest.is_signed_by(silo.verification_key):
                # The silo enrolled anew with another key, and began another log.
                newest = None
            if newest is not None:
                self._require_follows(silo_id, newest, head)
            self._store.audit_heads.put(
                AuditHeadRow(
                    silo_id=silo_id,
                    index=head.index,
                    sha256=head.sha256,
                    at_unix_s=head.at_unix_s,
                    signature=head.signature,
                )
            )

    def _require_follows(self, silo_id: str, newest: AuditHead, head: AuditHead) -> None:
        try:
            require_follows(newest, head)
        except AuditHeadConflictError as error:
            log.warning("audit_head_conflict", silo=silo_id, reason=error)
            self._note(silo_id, newest, head)
            raise

    def _note(self, silo_id: str, newest: AuditHead, head: AuditHead) -> None:
        self._metrics.audit_head_conflicts.inc()
        key = (silo_id, newest.index, newest.sha256)
        if key in self._noted:
            return
        self._noted.add(key)
        # Both signatures: together they are the proof.
        self._audit.append(
            AuditEvent.AUDIT_HEAD_CONFLICT,
            silo=silo_id,
            newest=_described(newest),
            received=_described(head),
        )


def head_of_row(row: AuditHeadRow, federation: str) -> AuditHead:
    """Return a kept head as the silo signed it."""
    return AuditHead(
        federation=federation,
        writer=silo_writer(row.silo_id),
        index=row.index,
        sha256=row.sha256,
        at_unix_s=row.at_unix_s,
        signature=row.signature,
    )


def _described(head: AuditHead) -> tuple[str, ...]:
    return (
        f"index {head.index}",
        f"sha256 {head.sha256.hex()}",
        f"at_unix_s {head.at_unix_s}",
        f"signature {head.signature.hex()}",
    )
