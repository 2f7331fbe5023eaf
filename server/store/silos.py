"""Silos: who joined, with which keys, and when they were last heard of.

Covered: joining, joining again with new keys, revocation. Not covered: two valid certificates of
one silo at a time; the newest replaces the one before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, insert, select, update

from server.store.database import Database
from server.store.schema import silos

__all__ = ["SiloRow", "Silos"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloRow:
    """One enrolled silo."""

    silo_id: str
    spiffe_uri: str
    verification_key: bytes
    certificate_sha256: bytes
    certificate_expiry_unix_s: int
    enrolled_unix_s: int
    last_seen_unix_s: float = 0.0
    """0 before the first call."""
    families: tuple[str, ...] = ()
    """Environment families it declared."""
    revoked: bool = False


class Silos:
    """The table of silos."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def enrol(self, silo: SiloRow) -> None:
        """Add a silo, or replace it with its new keys.

        Args:
            silo: The silo.
        """
        with self._database.transaction() as connection:
            connection.execute(delete(silos).where(silos.c.silo_id == silo.silo_id))
            connection.execute(
                insert(silos).values(
                    silo_id=silo.silo_id,
                    spiffe_uri=silo.spiffe_uri,
                    verification_key=silo.verification_key,
                    certificate_sha256=silo.certificate_sha256,
                    certificate_expiry_unix_s=silo.certificate_expiry_unix_s,
                    enrolled_unix_s=silo.enrolled_unix_s,
                    last_seen_unix_s=silo.last_seen_unix_s,
                    families=json.dumps(silo.families),
                    revoked=silo.revoked,
                )
            )

    def get(self, silo_id: str) -> SiloRow | None:
        """Find a silo.

        Args:
            silo_id: Its id.

        Returns:
            The silo, or None for a stranger.
        """
        with self._database.transaction() as connection:
            row = connection.execute(select(silos).where(silos.c.silo_id == silo_id)).first()
        return None if row is None else _silo(row)

    def list(self) -> tuple[SiloRow, ...]:
        """Return every silo.

        Returns:
            By id.
        """
        with self._database.transaction() as connection:
            rows = connection.execute(select(silos).order_by(silos.c.silo_id)).all()
        return tuple(_silo(row) for row in rows)

    def touch(self, silo_id: str, at_unix_s: float) -> None:
        """Note that a silo was heard of.

        Args:
            silo_id: Its id.
            at_unix_s: When.
        """
        self._update(silo_id, last_seen_unix_s=at_unix_s)

    def set_families(self, silo_id: str, families: tuple[str, ...]) -> None:
        """Note which environment families a silo declares.

        Args:
            silo_id: Its id.
            families: Their names.
        """
        current = self.get(silo_id)
        if current is not None and current.families != families:
            self._update(silo_id, families=json.dumps(families))

    def revoke(self, silo_id: str) -> None:
        """Refuse a silo's certificate from the next call on.

        Args:
            silo_id: Its id.
        """
        self._update(silo_id, revoked=True)

    def _update(self, silo_id: str, **values: Any) -> None:
        with self._database.transaction() as connection:
            connection.execute(update(silos).where(silos.c.silo_id == silo_id).values(**values))


def _silo(row: Any) -> SiloRow:
    return SiloRow(
        silo_id=row.silo_id,
        spiffe_uri=row.spiffe_uri,
        verification_key=row.verification_key,
        certificate_sha256=row.certificate_sha256,
        certificate_expiry_unix_s=row.certificate_expiry_unix_s,
        enrolled_unix_s=row.enrolled_unix_s,
        last_seen_unix_s=row.last_seen_unix_s,
        families=tuple(json.loads(row.families)),
        revoked=row.revoked,
    )
