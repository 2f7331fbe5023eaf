"""Invites: only the digest of each secret is kept, and each is spent once.

Covered: several invites for one silo, of which the newest unspent is the one that counts.
Not covered: refusing an expired one, which ``server/rpc/enrolment.py`` does against its clock.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from sqlalchemy import delete, insert, select, update

from server.store.database import Database
from server.store.schema import invites

__all__ = ["InviteRow", "Invites"]


@dataclass(frozen=True, kw_only=True, slots=True)
class InviteRow:
    """One invite."""

    secret_sha256: bytes
    silo_id: str
    expires_unix_s: int
    spent_unix_s: int | None
    """When it was redeemed; None while it can still be."""


class Invites:
    """The table of invites."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self, *, secret: bytes, silo_id: str, created_unix_s: int, expires_unix_s: int
    ) -> None:
        """Store an invite, of its secret the digest alone; it replaces the silo's unspent ones."""
        with self._database.transaction() as connection:
            connection.execute(
                delete(invites).where(
                    invites.c.silo_id == silo_id, invites.c.spent_unix_s.is_(None)
                )
            )
            connection.execute(
                insert(invites).values(
                    secret_sha256=hashlib.sha256(secret).digest(),
                    silo_id=silo_id,
                    created_unix_s=created_unix_s,
                    expires_unix_s=expires_unix_s,
                )
            )

    def withdraw(self, silo_id: str) -> None:
        """Forget a silo's unspent invites."""
        with self._database.transaction() as connection:
            connection.execute(
                delete(invites).where(
                    invites.c.silo_id == silo_id, invites.c.spent_unix_s.is_(None)
                )
            )

    def find(self, *, secret: bytes, silo_id: str) -> InviteRow | None:
        """Find a silo's invite by its secret, spent or not; None if none matches."""
        digest = hashlib.sha256(secret).digest()
        with self._database.transaction() as connection:
            rows = connection.execute(select(invites).where(invites.c.silo_id == silo_id)).all()
        found = None
        for row in rows:
            if hmac.compare_digest(row.secret_sha256, digest):
                found = InviteRow(
                    secret_sha256=row.secret_sha256,
                    silo_id=row.silo_id,
                    expires_unix_s=row.expires_unix_s,
                    spent_unix_s=row.spent_unix_s,
                )
        return found

    def spend(self, invite: InviteRow, *, at_unix_s: int) -> bool:
        """Mark an invite as used; False if somebody else was first."""
        with self._database.transaction() as connection:
            changed = connection.execute(
                update(invites)
                .where(
                    invites.c.secret_sha256 == invite.secret_sha256,
                    invites.c.spent_unix_s.is_(None),
                )
                .values(spent_unix_s=at_unix_s)
            )
            return changed.rowcount == 1

    def redeemable(self, *, at_unix_s: int) -> bool:
        """Say whether any invite can be redeemed."""
        with self._database.transaction() as connection:
            found = connection.execute(
                select(invites.c.silo_id)
                .where(invites.c.spent_unix_s.is_(None), invites.c.expires_unix_s > at_unix_s)
                .limit(1)
            ).first()
        return found is not None

    def open(self) -> tuple[InviteRow, ...]:
        """Return the unspent invites, by silo id."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                select(invites).where(invites.c.spent_unix_s.is_(None)).order_by(invites.c.silo_id)
            ).all()
        return tuple(
            InviteRow(
                secret_sha256=row.secret_sha256,
                silo_id=row.silo_id,
                expires_unix_s=row.expires_unix_s,
                spent_unix_s=None,
            )
            for row in rows
        )
