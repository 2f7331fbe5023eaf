"""Ledgers that went back in time: refused at each try, counted and audited once an aggregation.

Covered: a silo that asks again adds nothing to the audit log. Not covered: telling an old ledger
(``server/members/ledger_heads.py``).
"""

from __future__ import annotations

from secagg.descriptor import AggregationId
from secagg.messages import KeyBundle
from secagg.roster import Roster
from server.audit import AuditEvent
from server.context import RunContext
from server.errors import LedgerBehindError, LedgerForkedError
from server.members.ledger_heads import require_newer_head

__all__ = ["LedgerRollbacks"]


class LedgerRollbacks:
    """Whose old ledger was noted in which aggregation."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._noted: set[tuple[AggregationId, str]] = set()

    def require_none(self, identity: AggregationId, roster: Roster, bundle: KeyBundle) -> None:
        """Refuse a bundle whose silo's ledger went back.

        Args:
            identity: The aggregation that is open.
            roster: The run's.
            bundle: What the silo sent.

        Raises:
            LedgerBehindError: The ledger's head is behind the newest one that the silo signed.
            LedgerForkedError: It has that one's height and is another.
        """
        try:
            require_newer_head(self._context.store, roster, bundle)
        except (LedgerBehindError, LedgerForkedError) as error:
            self._note(identity, bundle.silo_id, str(error))
            raise

    def _note(self, identity: AggregationId, silo_id: str, reason: str) -> None:
        if (identity, silo_id) in self._noted:
            return
        self._noted.add((identity, silo_id))
        self._context.metrics.ledger_rollbacks.inc()
        self._context.audit.append(
            AuditEvent.LEDGER_ROLLED_BACK,
            run=identity.run_id,
            round=identity.round,
            step=identity.step,
            attempt=identity.attempt,
            silo=silo_id,
            reason=reason,
        )
