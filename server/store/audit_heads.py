"""Audit heads: of each silo the newest one that it signed.

Covered: one row a silo. Not covered: which head may replace another, and its signature
(``server/members/audit_heads.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, insert, select

from server.store.database import Database
from server.store.schema import audit_heads

__all__ = ["AuditHeadRow", "AuditHeads"]


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
        """Make a head its silo's newest.

        Args:
            row: The head.
        """
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
        """Find a silo's newest head.

        Args:
            silo_id: The silo.

        Returns:
            The head; None if it never left one.
        """
        return next((row for row in self.list() if row.silo_id == silo_id), None)

    def list(self) -> tuple[AuditHeadRow, ...]:
        """Return every silo's newest head.

        Returns:
            By silo.
        """
        with self._database.transaction() as connection:
            rows = connection.execute(select(audit_heads).order_by(audit_heads.c.silo_id))
            # As mappings: a row is a tuple, whose ``index`` is a method.
            return tuple(AuditHeadRow(**row) for row in rows.mappings())
