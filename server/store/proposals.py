"""The proposed roster, and which members of the roster in force approved it.

Covered: one proposal, the newest; approvals of exactly it. Not covered: who may approve, and the
signatures (``server/members/roster_approvals.py``).
"""

from __future__ import annotations

from sqlalchemy import delete, insert, select

import secagg.wire as secagg_wire
from chorale.v1 import secagg_pb2
from secagg.roster import Roster, RosterApproval, SignedRoster
from server.store.database import Database
from server.store.schema import approvals, proposals

__all__ = ["Proposals"]

_UNSIGNED = bytes(64)
"""The root's signature is not there yet, and the stored form has a place for it."""


class Proposals:
    """The tables of proposals and approvals."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, roster: Roster, *, at_unix_s: int) -> None:
        """Make a roster the proposed one; approvals of any other are forgotten.

        Args:
            roster: The roster.
            at_unix_s: Now.
        """
        with self._database.transaction() as connection:
            connection.execute(delete(proposals))
            connection.execute(delete(approvals).where(approvals.c.sha256 != roster.sha256))
            unsigned = SignedRoster(roster=roster, signature=_UNSIGNED)
            connection.execute(
                insert(proposals).values(
                    epoch=roster.epoch,
                    sha256=roster.sha256,
                    roster=secagg_wire.roster_to_proto(unsigned).SerializeToString(),
                    proposed_unix_s=at_unix_s,
                )
            )

    def current(self) -> Roster | None:
        """Return the proposed roster; None if there is none."""
        with self._database.transaction() as connection:
            content = connection.execute(select(proposals.c.roster)).scalar()
        if content is None:
            return None
        return secagg_wire.roster_from_proto(secagg_pb2.Roster.FromString(content)).roster

    def approve(self, roster: Roster, approval: RosterApproval) -> None:
        """Keep a verified approval; the same silo's earlier one is replaced.

        Args:
            roster: The proposed one.
            approval: Of it.
        """
        with self._database.transaction() as connection:
            connection.execute(
                delete(approvals).where(
                    approvals.c.epoch == roster.epoch, approvals.c.silo_id == approval.silo_id
                )
            )
            connection.execute(
                insert(approvals).values(
                    epoch=roster.epoch,
                    silo_id=approval.silo_id,
                    sha256=roster.sha256,
                    signature=approval.signature,
                )
            )

    def approvals(self, roster: Roster) -> tuple[RosterApproval, ...]:
        """Return the approvals of exactly this roster, by silo."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                select(approvals)
                .where(approvals.c.sha256 == roster.sha256)
                .order_by(approvals.c.silo_id)
            ).all()
        return tuple(RosterApproval(silo_id=row.silo_id, signature=row.signature) for row in rows)

    def clear(self) -> None:
        """Forget the proposal and its approvals: a roster was published."""
        with self._database.transaction() as connection:
            connection.execute(delete(proposals))
            connection.execute(delete(approvals))
