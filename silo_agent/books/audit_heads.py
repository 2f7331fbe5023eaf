"""The coordinator's audit heads, as this silo keeps them; once a round each side leaves its own.

``coordinator.audit-head.json`` in the data directory holds the newest head, signed by the
coordinator: what ``chorale-silo audit heads`` exports and ``chorale audit verify --heads`` takes.

Ordered invariants of one exchange:

1. The silo sends its newest head once for each round whose record it adopted, when it adopted it:
   public facts decide whether and when, and ``silo_agent/books/audit.py`` says why its index is
   one.
2. The coordinator's head is verified under the key that the roster in force names. One that is
   behind the newest, or another one of the same index, is refused: counted, logged, and recorded
   with both signatures once for each newest head; the newest stays what it was.
3. A new head is on disk before it counts.
4. Whatever goes wrong ends this exchange alone: no round waits for it or fails by it, and the next
   round's exchange shows the same and more.

Covered: a coordinator that cut, lost or rewrote its log, as far as heads tell. Not covered: a
coordinator that shows different silos different logs; two of them find out by comparing what
``audit heads`` exports.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from federation.audit.head import (
    COORDINATOR,
    AuditHead,
    decode_heads,
    encode_heads,
    require_follows,
    sign_head,
    silo_writer,
)
from federation.audit.lines import ChainHead
from federation.errors import AuditHeadConflictError, AuditHeadError, FederationError
from ops.files import replace_file
from ops.logs.logger import get_logger
from silo_agent.books.audit import AuditLog, SiloEvent
from silo_agent.errors import AuditLogError, NotServedError, SiloError, TransportError
from silo_agent.identity.identity import Identity
from silo_agent.metrics import SiloMetrics

__all__ = ["HEAD_FILE", "AuditHeadExchange", "Exchanges", "kept_head"]

HEAD_FILE: Final = "coordinator.audit-head.json"
log = get_logger(__name__)


class Exchanges(Protocol):
    """What the exchange needs of the coordinator."""

    def exchange_audit_heads(self, ours: AuditHead) -> AuditHead:
        """Leave this silo's head and take the coordinator's, not verified; one attempt."""


@dataclass(kw_only=True, slots=True)
class AuditHeadExchange:
    """This silo's side of the exchange."""

    data_dir: Path
    """Where the coordinator's head is kept."""
    audit: AuditLog
    """This silo's log."""
    identity: Callable[[], Identity]
    """Federation, silo and key."""
    metrics: SiloMetrics
    """Counts conflicts and failures."""
    clock: Callable[[], float] = time.time
    """Unix seconds."""
    _noted: ChainHead | None = field(default=None, init=False)
    """The newest head for which a conflict is in the log."""
    _unserved: bool = field(default=False, init=False)
    """Whether the coordinator was last found not to know this call."""

    def exchange(self, coordinator: Exchanges, coordinator_key: bytes) -> None:
        """Leave this silo's head and keep the coordinator's, verified under the roster's key."""
        try:
            identity = self.identity()
            ours = sign_head(
                self.audit.head(),
                federation=identity.federation,
                writer=silo_writer(identity.silo_id),
                at_unix_s=int(self.clock()),
                key=identity.signing_key,
            )
            self._keep(coordinator.exchange_audit_heads(ours), coordinator_key, identity.federation)
        except (SiloError, FederationError) as error:
            refused = isinstance(error, TransportError) and error.reason == "audit_head_conflict"
            if refused or isinstance(error, AuditHeadConflictError):
                self.metrics.audit_head_conflicts.inc()
            self.metrics.count_error(type(error).__name__)
            unserved, before = isinstance(error, NotServedError), self._unserved
            self._unserved = unserved
            # An earlier version's coordinator is asked again each round, and spoken of once.
            if not (unserved and before):
                log.warning("audit_heads_not_exchanged", detail=error)
        else:
            self._unserved = False

    def _keep(self, theirs: AuditHead, coordinator_key: bytes, federation: str) -> None:
        if (theirs.federation, theirs.writer) != (federation, COORDINATOR):
            raise AuditHeadError("the audit head is not this coordinator's")
        theirs.verify(coordinator_key)
        newest = kept_head(self.data_dir)
        if newest is not None and newest.is_signed_by(coordinator_key):
            try:
                require_follows(newest, theirs)
            except AuditHeadConflictError:
                self._note(newest, theirs)
                raise
        if newest == theirs:
            return
        try:
            replace_file(self.data_dir / HEAD_FILE, (encode_heads((theirs,)),))
        except OSError as error:
            raise AuditLogError(f"cannot write {HEAD_FILE}: {error}") from error

    def _note(self, newest: AuditHead, theirs: AuditHead) -> None:
        if self._noted == newest.chain_head():
            return
        self._noted = newest.chain_head()
        log.error("audit_head_conflict", writer=COORDINATOR, index=theirs.index)
        # Both signatures: together they are the proof.
        self.audit.note(
            SiloEvent.AUDIT_HEAD_CONFLICT,
            newest=encode_heads((newest,)).decode(),
            received=encode_heads((theirs,)).decode(),
        )


def kept_head(data_dir: Path) -> AuditHead | None:
    """Return the coordinator's newest head that this silo verified; None before the first exchange.

    Raises:
        AuditLogError: The file is damaged.
    """
    path = data_dir / HEAD_FILE
    try:
        heads = decode_heads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, AuditHeadError) as error:
        raise AuditLogError(f"{path} cannot be read: {error}") from error
    if len(heads) != 1:
        raise AuditLogError(f"{path} does not hold one head")
    return heads[0]
