"""Published rosters, the proposed one, and which members of the roster in force approved it.

Covered: the newest epoch, and that epochs only grow; one proposal, the newest, and approvals of
exactly it. Not covered: who may publish or approve, and the signatures
(``server/members/rosters.py``, ``server/members/roster_approvals.py``).
"""

from __future__ import annotations

from sqlalchemy import delete, insert, select

import secagg.wire as secagg_wire
from chorale.v1 import secagg_pb2
from secagg.roster import MAX_APPROVED_IN_A_ROW, Roster, RosterApproval, SignedRoster
from server.errors import RosterError
from server.store.database import Database
from server.store.schema import approvals, proposals, rosters

__all__ = ["Proposals", "Rosters"]

_UNSIGNED = bytes(64)
"""The root's signature is not there yet, and the stored form has a place for it."""


class Rosters:
    """The table of rosters."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def publish(self, signed: SignedRoster, *, at_unix_s: int) -> None:
        """Store a verified roster; publishing the current one again changes nothing.

        Raises:
            RosterError: Its epoch is not newer than the current one.
        """
        with self._database.transaction() as connection:
            current = self.current()
            if current is not None:
                if current == signed:
                    return
                if signed.roster.epoch <= current.roster.epoch:
                    raise RosterError(
                        f"epoch {signed.roster.epoch} is not newer than {current.roster.epoch}"
                    )
            connection.execute(
                insert(rosters).values(
                    epoch=signed.roster.epoch,
                    sha256=signed.roster.sha256,
                    roster=secagg_wire.roster_to_proto(signed).SerializeToString(),
                    published_unix_s=at_unix_s,
                )
            )

    def current(self) -> SignedRoster | None:
        """Return the newest roster."""
        with self._database.transaction() as connection:
            content = connection.execute(
                select(rosters.c.roster).order_by(rosters.c.epoch.desc()).limit(1)
            ).scalar()
        return None if content is None else _read(content)

    def before(self, signed: SignedRoster, *, from_epoch: int = 0) -> tuple[SignedRoster, ...]:
        """Return what a verifier needs beside a roster that members approved.

        Earlier rosters in ascending order, from ``from_epoch``, the newest that the verifier
        accepted (0 for none), or from the newest one that the root signed on; none if the root
        signed this one.
        """
        with self._database.transaction() as connection:
            contents = connection.execute(
                select(rosters.c.roster)
                .where(rosters.c.epoch < signed.roster.epoch)
                .order_by(rosters.c.epoch.desc())
                .limit(MAX_APPROVED_IN_A_ROW)
            ).scalars()
            earlier: list[SignedRoster] = []
            newest = signed
            while newest.approvals and newest.roster.epoch > from_epoch:
                content = next(contents, None)
                if content is None:
                    break
                newest = _read(content)
                earlier.append(newest)
        return tuple(reversed(earlier))

    def get(self, sha256: bytes) -> SignedRoster | None:
        """Return a roster, published at any time, by its digest."""
        with self._database.transaction() as connection:
            content = connection.execute(
                select(rosters.c.roster).where(rosters.c.sha256 == sha256)
            ).scalar()
        return None if content is None else _read(content)


class Proposals:
    """The tables of proposals and approvals."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, roster: Roster, *, at_unix_s: int) -> None:
        """Make a roster the proposed one; approvals of any other are forgotten."""
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
        return None if content is None else _read(content).roster

    def approve(self, roster: Roster, approval: RosterApproval) -> None:
        """Keep a verified approval; the same silo's earlier one is replaced."""
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


def _read(content: bytes) -> SignedRoster:
    return secagg_wire.roster_from_proto(secagg_pb2.Roster.FromString(content))
