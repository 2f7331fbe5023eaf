"""Silos: who joined, with which keys, and when they were last heard of.

Invariants:

1. A silo has one certificate, or one and the next: the next replaces it at its first use, and a
   second renewal replaces the next.
2. Suspension outlasts joining again, so an old invite is no way around it. Revocation and leaving
   end with it: only a new invite brings the silo back.

Covered: joining, joining again with new keys, renewal, suspension, revocation, leaving. Not
covered: who may change what (``server/members/standing.py``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from server.states import SiloState
from server.store.database import Database
from server.store.remembered import Remembered
from server.store.schema import silos

__all__ = ["SiloRow", "Silos", "state_of"]


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
    suspended: bool = False
    left: bool = False
    """It said that it takes part in no further round."""
    next_certificate_sha256: bytes | None = None
    """Issued by a renewal and not used yet."""
    next_certificate_expiry_unix_s: int | None = None

    @property
    def is_member(self) -> bool:
        """Whether a roster may name it."""
        return not (self.revoked or self.left)

    @property
    def takes_part(self) -> bool:
        """Whether rounds may count on it now."""
        return self.is_member and not self.suspended


def state_of(
    silo: SiloRow, rostered: frozenset[str], sitting_out: Collection[str] = ()
) -> SiloState:
    """Where an enrolled silo is; what keeps it out of rounds comes first.

    ``sitting_out`` names who sits out of the run that is driven.
    """
    if silo.revoked:
        return SiloState.REVOKED
    if silo.left:
        return SiloState.LEFT
    if silo.suspended:
        return SiloState.SUSPENDED
    if silo.silo_id in rostered and silo.silo_id in sitting_out:
        return SiloState.SITTING_OUT
    return SiloState.ROSTERED if silo.silo_id in rostered else SiloState.ENROLLED


class Silos:
    """The table of silos."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rows = Remembered(database, _read)

    def enrol(self, silo: SiloRow) -> None:
        """Add a silo, or replace it with its new keys; it stays suspended if it was."""
        with self._database.transaction() as connection:
            known = self.get(silo.silo_id)
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
                    suspended=silo.suspended or (known is not None and known.suspended),
                    left=silo.left,
                    next_certificate_sha256=silo.next_certificate_sha256,
                    next_certificate_expiry_unix_s=silo.next_certificate_expiry_unix_s,
                )
            )

    def get(self, silo_id: str) -> SiloRow | None:
        """Find a silo; every call of a silo does."""
        return self._rows.get(silo_id)

    def list(self) -> tuple[SiloRow, ...]:
        """Return every silo, by id."""
        with self._database.transaction() as connection:
            rows = connection.execute(select(silos).order_by(silos.c.silo_id)).all()
        return tuple(_silo(row) for row in rows)

    def touch(self, seen_unix_s: Mapping[str, float]) -> None:
        """Note when silos were heard of, in one transaction; who is not enrolled is left out."""
        with self._database.transaction() as connection:
            connection.execute(
                update(silos)
                .where(silos.c.silo_id == bindparam("silo"))
                .values(last_seen_unix_s=bindparam("at")),
                [{"silo": silo_id, "at": at} for silo_id, at in seen_unix_s.items()],
            )

    def set_families(self, silo_id: str, families: tuple[str, ...]) -> None:
        """Note which environment families a silo declares."""
        current = self.get(silo_id)
        if current is not None and current.families != families:
            self._update(silo_id, families=json.dumps(families))

    def renew(self, silo_id: str, *, certificate_sha256: bytes, expiry_unix_s: int) -> None:
        """Keep a silo's next certificate beside the one it has; it replaces an unused one.

        Digest and expiry are the next certificate's.
        """
        self._update(
            silo_id,
            next_certificate_sha256=certificate_sha256,
            next_certificate_expiry_unix_s=expiry_unix_s,
        )

    def use_next(self, silo_id: str, certificate_sha256: bytes) -> None:
        """Let the next certificate take the place of the one before, at its first use."""
        with self._database.transaction() as connection:
            connection.execute(
                update(silos)
                .where(
                    silos.c.silo_id == silo_id,
                    silos.c.next_certificate_sha256 == certificate_sha256,
                )
                .values(
                    certificate_sha256=silos.c.next_certificate_sha256,
                    certificate_expiry_unix_s=silos.c.next_certificate_expiry_unix_s,
                    next_certificate_sha256=None,
                    next_certificate_expiry_unix_s=None,
                )
            )

    def suspend(self, silo_id: str, *, suspended: bool) -> None:
        """Refuse a silo for now, or let it in again."""
        self._update(silo_id, suspended=suspended)

    def leave(self, silo_id: str) -> None:
        """Note that a silo takes part in no further round."""
        self._update(silo_id, left=True)

    def revoke(self, silo_id: str) -> None:
        """Refuse a silo's certificates from the next call on."""
        self._update(silo_id, revoked=True)

    def _update(self, silo_id: str, **values: Any) -> None:
        with self._database.transaction() as connection:
            connection.execute(update(silos).where(silos.c.silo_id == silo_id).values(**values))


def _read(connection: Connection, silo_id: str) -> SiloRow | None:
    row = connection.execute(select(silos).where(silos.c.silo_id == silo_id)).first()
    return None if row is None else _silo(row)


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
        suspended=row.suspended,
        left=row.left,
        next_certificate_sha256=row.next_certificate_sha256,
        next_certificate_expiry_unix_s=row.next_certificate_expiry_unix_s,
    )
