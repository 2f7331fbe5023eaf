"""Ledger heads: a silo whose privacy ledger went back in time takes no part.

Each R0 bundle carries, signed, the head of its silo's ledger. A ledger restored from an old copy
has a lower head, or another one of the same height; spending from it would spend a budget twice.
From suite v2 on it carries the newest charge as well, and so does the header of each upload: a
ledger that was restored and has grown since shows another.

Invariants:

1. Of each silo the newest head is durable in the transaction that accepts its bundle, and the
   newest charge before its upload's header is accepted.
2. A bundle whose head is behind it, or forks it, is refused before it counts; no later attempt,
   run or restart makes the coordinator forget. It is refused at each try, and counted and audited
   once an aggregation: a silo that asks again adds nothing to the audit log.
3. The newest bundle goes back to its silo beside every task, so that the silo notices by itself,
   and with it the header of a later charge: its peers know those of sums, not those of uploads that
   came to nothing.
4. A head belongs to the key that signed it: a silo that the root put on the roster with a new key
   begins a new ledger.

Covered: heads as silos signed them. Not covered: a longer ledger that does not contain the newest
head, which only the silo can tell; a coordinator that forgets on purpose, for which the peers
remember each other's heads.
"""

from __future__ import annotations

from typing import Final

import secagg.wire as secagg_wire
from chorale.v1 import round_pb2
from secagg.descriptor import AggregationId
from secagg.messages import KeyBundle
from secagg.roster import Roster
from secagg.suite import verify
from server.audit import AuditEvent
from server.context import RunContext
from server.errors import LedgerBehindError, LedgerForkedError
from server.store import Store
from server.store.heads import DebitRow, HeadRow

__all__ = ["LedgerRollbacks", "ledger_echo", "require_newer_head"]

_REMEDY: Final = "restore the newer ledger or remove the silo"


def require_newer_head(store: Store, roster: Roster, bundle: KeyBundle) -> None:
    """Refuse a bundle whose ledger head, or newest charge, is not the newest one's or after it.

    Raises:
        LedgerBehindError: Its head or its charge is behind the newest.
        LedgerForkedError: It has the newest one's height and another digest.
    """
    row = _newest(store, roster, bundle.silo_id)
    if row is None:
        return
    _require_newer_debit(store, roster, bundle, row)
    newest = row.bundle
    if bundle.ledger_seq < newest.ledger_seq:
        raise LedgerBehindError(
            f"the ledger head of {bundle.silo_id} is behind: entry {bundle.ledger_seq}, and entry "
            f"{newest.ledger_seq} was signed in {_place(row.identity)}: {_REMEDY}"
        )
    same_height = bundle.ledger_seq == newest.ledger_seq
    if same_height and bundle.ledger_sha256 != newest.ledger_sha256:
        raise LedgerForkedError(
            f"the ledger head of {bundle.silo_id} forks: entry {bundle.ledger_seq} is not the one "
            f"that was signed in {_place(row.identity)}: {_REMEDY}"
        )


def _require_newer_debit(store: Store, roster: Roster, bundle: KeyBundle, row: HeadRow) -> None:
    uploaded = _newest_upload(store, roster, bundle.silo_id)
    known = [row.bundle.debit, None if uploaded is None else uploaded.header.debit]
    newest = max((debit for debit in known if debit), key=lambda debit: debit.seq, default=None)
    if bundle.debit is None or newest is None:
        return
    if bundle.debit.seq < newest.seq:
        raise LedgerBehindError(
            f"the newest charge of {bundle.silo_id} is behind: entry {bundle.debit.seq}, and entry "
            f"{newest.seq} was signed before: {_REMEDY}"
        )
    if bundle.debit.seq == newest.seq and bundle.debit.sha256 != newest.sha256:
        raise LedgerForkedError(
            f"the newest charge of {bundle.silo_id} forks: entry {newest.seq} is not the one that "
            f"was signed before: {_REMEDY}"
        )


class LedgerRollbacks:
    """Whose old ledger was noted in which aggregation."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._noted: set[tuple[AggregationId, str]] = set()

    def require_none(self, identity: AggregationId, roster: Roster, bundle: KeyBundle) -> None:
        """Refuse a bundle whose silo's ledger went back.

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


def ledger_echo(store: Store, roster: Roster, silo_id: str) -> round_pb2.LedgerEcho | None:
    """What a silo is shown of itself beside a task; None if it never took part.

    It is the silo's newest bundle, and the header of its newest upload if that was charged later,
    each with what its signature covers.
    """
    row = _newest(store, roster, silo_id)
    if row is None:
        return None
    echo = round_pb2.LedgerEcho(
        identity=secagg_wire.identity_to_proto(row.identity),
        bundle=secagg_wire.key_bundle_to_proto(row.bundle),
        descriptor_sha256=row.descriptor_sha256,
    )
    upload, before = _newest_upload(store, roster, silo_id), row.bundle.debit
    debit = None if upload is None else upload.header.debit
    if upload is not None and debit is not None and (before is None or debit.seq > before.seq):
        echo.header.CopyFrom(secagg_wire.masked_input_header_to_proto(upload.header))
        echo.ctx, echo.members_sha256 = upload.ctx, upload.members_sha256
    return echo


def _newest(store: Store, roster: Roster, silo_id: str) -> HeadRow | None:
    row, member = store.heads.get(silo_id), roster.entry(silo_id)
    if row is None or member is None:
        return None
    signed_bytes = row.bundle.signed_bytes(row.descriptor_sha256)
    signed = verify(member.verification_key, row.bundle.signature, signed_bytes)
    return row if signed else None


def _newest_upload(store: Store, roster: Roster, silo_id: str) -> DebitRow | None:
    row, member = store.debit_heads.get(silo_id), roster.entry(silo_id)
    if row is None or member is None:
        return None
    signed_bytes = row.header.signed_bytes(row.ctx, row.members_sha256)
    signed = verify(member.verification_key, row.header.signature, signed_bytes)
    return row if signed else None


def _place(identity: AggregationId) -> str:
    return (
        f"run {identity.run_id}, round {identity.round}, step {identity.step}, "
        f"attempt {identity.attempt}"
    )
