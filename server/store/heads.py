"""Heads that silos signed: of each silo the newest of its ledger, charge and audit log.

A ledger's head is kept as the key bundle that carries it, a charge as the upload header.

Covered: one row a silo, over all runs. Not covered: which head may replace another, and checking
the signature (``server/members/ledger_heads.py``, ``server/members/audit_heads.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, insert, select

import secagg.wire as secagg_wire
from chorale.v1 import secagg_pb2
from secagg.descriptor import AggregationId
from secagg.messages import KeyBundle, MaskedInputHeader
from server.store.database import Database
from server.store.schema import IDENTITY, audit_heads, debit_heads, heads

__all__ = ["AuditHeadRow", "AuditHeads", "DebitHeads", "DebitRow", "HeadRow", "Heads"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadRow:
    """The newest ledger head of one silo."""

    identity: AggregationId
    """The aggregation in which it was signed."""
    bundle: KeyBundle
    """Names the silo, its head, and carries its signature."""
    descriptor_sha256: bytes
    """Without it the signature cannot be checked."""


class Heads:
    """The table of ledger heads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, row: HeadRow) -> None:
        """Make a head its silo's newest."""
        with self._database.transaction() as connection:
            connection.execute(delete(heads).where(heads.c.silo_id == row.bundle.silo_id))
            connection.execute(
                insert(heads).values(
                    silo_id=row.bundle.silo_id,
                    **{name: getattr(row.identity, name) for name in IDENTITY},
                    bundle=secagg_wire.key_bundle_to_proto(row.bundle).SerializeToString(),
                    descriptor_sha256=row.descriptor_sha256,
                )
            )

    def get(self, silo_id: str) -> HeadRow | None:
        """Find a silo's newest head; None if it never took part."""
        with self._database.transaction() as connection:
            row = connection.execute(select(heads).where(heads.c.silo_id == silo_id)).first()
        return None if row is None else _head(row)

    def list(self) -> tuple[HeadRow, ...]:
        """Return every silo's newest head, by silo."""
        with self._database.transaction() as connection:
            rows = connection.execute(select(heads).order_by(heads.c.silo_id)).all()
        return tuple(_head(row) for row in rows)


def _head(row: Any) -> HeadRow:
    return HeadRow(
        identity=AggregationId(**{name: getattr(row, name) for name in IDENTITY}),
        bundle=secagg_wire.key_bundle_from_proto(secagg_pb2.KeyBundle.FromString(row.bundle)),
        descriptor_sha256=row.descriptor_sha256,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class DebitRow:
    """The newest upload header of one silo; from suite v2 on it names what the silo charged."""

    header: MaskedInputHeader
    """Names the silo, its charge, and carries its signature."""
    ctx: bytes
    """Without it and H(U2) the signature cannot be checked."""
    members_sha256: bytes
    """H(U2)."""


class DebitHeads:
    """The table of charges that uploads name."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, row: DebitRow) -> None:
        """Make a header its silo's newest."""
        with self._database.transaction() as connection:
            silo_id = row.header.silo_id
            connection.execute(delete(debit_heads).where(debit_heads.c.silo_id == silo_id))
            connection.execute(
                insert(debit_heads).values(
                    silo_id=silo_id,
                    header=secagg_wire.masked_input_header_to_proto(row.header).SerializeToString(),
                    ctx=row.ctx,
                    members_sha256=row.members_sha256,
                )
            )

    def get(self, silo_id: str) -> DebitRow | None:
        """Find a silo's newest header; None if it never announced an upload of suite v2."""
        with self._database.transaction() as connection:
            row = connection.execute(
                select(debit_heads).where(debit_heads.c.silo_id == silo_id)
            ).first()
        if row is None:
            return None
        return DebitRow(
            header=secagg_wire.masked_input_header_from_proto(
                secagg_pb2.MaskedInputHeader.FromString(row.header)
            ),
            ctx=row.ctx,
            members_sha256=row.members_sha256,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditHeadRow:
    """The newest head of one silo's audit log."""

    silo_id: str
    """Whose."""
    index: int
    """Of its newest record."""
    sha256: bytes
    """Of that record."""
    at_unix_s: int
    """When the silo signed it."""
    signature: bytes
    """By the silo's Ed25519 key."""


class AuditHeads:
    """The table of audit heads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, row: AuditHeadRow) -> None:
        """Make a head its silo's newest."""
        with self._database.transaction() as connection:
            connection.execute(delete(audit_heads).where(audit_heads.c.silo_id == row.silo_id))
            connection.execute(
                insert(audit_heads).values(
                    silo_id=row.silo_id,
                    index=row.index,
                    sha256=row.sha256,
                    at_unix_s=row.at_unix_s,
                    signature=row.signature,
                )
            )

    def get(self, silo_id: str) -> AuditHeadRow | None:
        """Find a silo's newest head; None if it never left one."""
        return next((row for row in self.list() if row.silo_id == silo_id), None)

    def list(self) -> tuple[AuditHeadRow, ...]:
        """Return every silo's newest head, by silo."""
        with self._database.transaction() as connection:
            rows = connection.execute(select(audit_heads).order_by(audit_heads.c.silo_id))
            # As mappings: a row is a tuple, whose ``index`` is a method.
            return tuple(AuditHeadRow(**row) for row in rows.mappings())
