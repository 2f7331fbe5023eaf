"""Published rosters, as the root signed them.

Covered: the newest epoch, and that epochs only grow. Not covered: the signature, which
``server/rpc/admin.py`` verifies before it publishes.
"""

from __future__ import annotations

from sqlalchemy import insert, select

import secagg.wire as secagg_wire
from chorale.v1 import secagg_pb2
from secagg.roster import MAX_APPROVED_IN_A_ROW, SignedRoster
from server.errors import RosterError
from server.store.database import Database
from server.store.schema import rosters

__all__ = ["Rosters"]


class Rosters:
    """The table of rosters."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def publish(self, signed: SignedRoster, *, at_unix_s: int) -> None:
        """Store a verified roster; publishing the current one again changes nothing.

        Args:
            signed: The roster.
            at_unix_s: Now.

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
        """Return the newest roster.

        Returns:
            The roster, or None before the first.
        """
        with self._database.transaction() as connection:
            content = connection.execute(
                select(rosters.c.roster).order_by(rosters.c.epoch.desc()).limit(1)
            ).scalar()
        if content is None:
            return None
        return secagg_wire.roster_from_proto(secagg_pb2.Roster.FromString(content))

    def before(self, signed: SignedRoster, *, from_epoch: int = 0) -> tuple[SignedRoster, ...]:
        """Return what a verifier needs beside a roster that members approved.

        Args:
            signed: A published roster.
            from_epoch: The newest epoch that the verifier accepted; 0 for none.

        Returns:
            Earlier rosters in ascending order, from that epoch or from the newest one that the
            root signed on; none if the root signed this one.
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
                newest = secagg_wire.roster_from_proto(secagg_pb2.Roster.FromString(content))
                earlier.append(newest)
        return tuple(reversed(earlier))

    def get(self, sha256: bytes) -> SignedRoster | None:
        """Return a roster by its digest.

        Args:
            sha256: The digest.

        Returns:
            The roster, published at any time; None if there was none.
        """
        with self._database.transaction() as connection:
            content = connection.execute(
                select(rosters.c.roster).where(rosters.c.sha256 == sha256)
            ).scalar()
        if content is None:
            return None
        return secagg_wire.roster_from_proto(secagg_pb2.Roster.FromString(content))
