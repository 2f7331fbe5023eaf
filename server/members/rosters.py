"""Rosters from the admin's side: proposed from who is enrolled, published when others say so.

Invariants:

1. Only the consortium root's signature, or the approvals of enough members of the roster in force,
   make a roster current; the coordinator cannot make one.
2. A published roster names this federation, this coordinator's key, and enrolled silos with the
   keys they enrolled with, and keeps the federation's terms.
3. Both are in the audit log, with the admin's name, in the transaction that makes them so.
   Publishing the roster in force again changes nothing.

Covered: proposing, publishing. Not covered: collecting approvals
(``server/members/roster_approvals.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from federation.membership.invite import silo_spiffe_uri
from secagg.errors import SecAggError
from secagg.parameters import threshold
from secagg.roster import Roster, RosterEntry, SignedRoster
from server.audit import AuditEvent, AuditLog
from server.errors import RosterError
from server.members.roster_approvals import RosterApprovals
from server.members.terms import require_federation, require_roster_within
from server.store import Store

__all__ = ["Rosters"]

MAX_EPOCH: Final = 2**31 - 1
"""Of one that an admin chooses: so that there are always next ones."""


class Rosters:
    """The rosters of one coordinator."""

    def __init__(
        self,
        *,
        store: Store,
        audit: AuditLog,
        root_key: bytes,
        coordinator_key: bytes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._audit = audit
        self._root_key = root_key
        self._coordinator_key = coordinator_key
        self._clock = clock
        self._approvals = RosterApprovals(store=store, audit=audit, clock=clock)

    def propose(self, colluding: int, *, admin: str, epoch: int = 0) -> Roster:
        """Propose the roster of everyone enrolled; members may approve it from now on.

        ``colluding`` is c; 0 for that of the roster in force, without one for the federation's
        least. ``epoch`` 0 is the next one; after a restore silos may know newer ones.

        Raises:
            RosterError: So few silos cannot withstand c, or the epoch is not newer.
            FederationTermsError: It passes the terms of the federation.
        """
        federation = require_federation(self._store)
        current = self._store.rosters.current()
        silos = [silo for silo in self._store.silos.list() if silo.is_member]
        c = colluding or (federation.colluding if current is None else current.roster.colluding)
        following = 1 if current is None else current.roster.epoch + 1
        if epoch and not following <= epoch <= MAX_EPOCH:
            raise RosterError(f"epoch {epoch} is not from {following} to {MAX_EPOCH}")
        try:
            threshold(len(silos), c)
        except SecAggError as error:
            raise RosterError(str(error)) from error
        roster = Roster(
            federation=federation.name,
            epoch=epoch or following,
            colluding=c,
            coordinator_key=self._coordinator_key,
            entries=tuple(
                RosterEntry(
                    silo_id=silo.silo_id,
                    spiffe_uri=silo.spiffe_uri,
                    verification_key=silo.verification_key,
                )
                for silo in silos
            ),
        )
        require_roster_within(federation, roster)
        with self._store.transaction():
            self._approvals.propose(roster)
            self._audit.append(
                AuditEvent.ROSTER_PROPOSED,
                admin=admin,
                epoch=roster.epoch,
                sha256=roster.sha256.hex(),
            )
        return roster

    def publish(self, signed: SignedRoster | None, *, admin: str) -> Roster:
        """Make a roster the current one: as signed, or the proposal with its approvals if None.

        Raises:
            RosterError: It does not follow from the one in force, or is not this coordinator's.
            FederationTermsError: It passes the terms of the federation.
        """
        published = self._approvals.approved() if signed is None else signed
        roster = self._approvals.verified(published, self._root_key)
        self._require_ours(roster)
        with self._store.transaction():
            if self._store.rosters.current() == published:
                # Nothing changes: what members have approved since stays.
                return roster
            self._store.rosters.publish(published, at_unix_s=int(self._clock()))
            self._store.proposals.clear()
            self._audit.append(
                AuditEvent.ROSTER_PUBLISHED,
                admin=admin,
                epoch=roster.epoch,
                sha256=roster.sha256.hex(),
                silos=roster.silo_ids,
                approved_by=tuple(approval.silo_id for approval in published.approvals),
            )
        return roster

    def _require_ours(self, roster: Roster) -> None:
        federation = require_federation(self._store)
        if roster.federation != federation.name:
            raise RosterError(f"the roster is of federation {roster.federation!r}")
        require_roster_within(federation, roster)
        if roster.coordinator_key != self._coordinator_key:
            raise RosterError("the roster names another coordinator key")
        for entry in roster.entries:
            silo = self._store.silos.get(entry.silo_id)
            if (
                silo is None
                or not silo.is_member
                or silo.verification_key != entry.verification_key
                or entry.spiffe_uri != silo_spiffe_uri(roster.federation, entry.silo_id)
            ):
                raise RosterError(f"{entry.silo_id} is not enrolled with the key in the roster")
