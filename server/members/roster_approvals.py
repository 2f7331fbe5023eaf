"""Rosters that members approve instead of the root: proposed, approved one by one, put together.

What makes an approved roster valid is ``secagg/roster.py``'s to say, and every silo says it for
itself; this file only collects. Invariants:

1. One roster is proposed at a time. An approval counts for exactly the roster it names, after
   exactly the roster that is in force; a new proposal or a published roster forgets the others.
2. An approval is kept only if it verifies, under the key that its silo has in the roster in force.
3. After ``MAX_APPROVED_IN_A_ROW`` approved rosters the root signs again.

Covered: proposing, approving, publishing. Not covered: making silos agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from secagg.errors import SecAggError
from secagg.roster import (
    MAX_APPROVED_IN_A_ROW,
    Roster,
    RosterApproval,
    SignedRoster,
    approvals_needed,
    is_approval,
    require_approvable,
    verify_roster,
)
from server.audit import AuditEvent, AuditLog
from server.errors import RosterError
from server.store import Store

__all__ = ["Proposal", "RosterApprovals"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """The proposed roster and how far it is."""

    roster: Roster
    approvals: tuple[RosterApproval, ...]
    """Verified, by silo."""
    needed: int
    """How many there must be; 0 if only the root can make it valid."""


class RosterApprovals:
    """The coordinator's collection of approvals."""

    def __init__(
        self, *, store: Store, audit: AuditLog, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._audit = audit
        self._clock = clock

    def propose(self, roster: Roster) -> None:
        """Make a roster the proposed one."""
        if self._store.proposals.current() != roster:
            self._store.proposals.put(roster, at_unix_s=int(self._clock()))

    def current(self) -> Proposal | None:
        """Return the proposal."""
        roster = self._store.proposals.current()
        if roster is None:
            return None
        try:
            needed = approvals_needed(self._previous(roster))
        except RosterError:
            return Proposal(roster=roster, approvals=(), needed=0)
        return Proposal(
            roster=roster, approvals=self._store.proposals.approvals(roster), needed=needed
        )

    def approve(self, silo_id: str, *, epoch: int, sha256: bytes, signature: bytes) -> None:
        """Keep the approval of the silo of the client certificate.

        Epoch and digest are those of the roster that it saw; the signature is over the approval
        statement.

        Raises:
            RosterError: Another roster is proposed, this one takes the root, or the approval is
                not one of a member of the roster in force.
            MalformedMessageError: A field is out of bounds.
        """
        approval = RosterApproval(silo_id=silo_id, signature=signature)
        with self._store.transaction():
            roster = self._store.proposals.current()
            if roster is None or (roster.epoch, roster.sha256) != (epoch, sha256):
                raise RosterError("another roster is proposed now: look at it before you approve")
            if not is_approval(self._previous(roster), roster, approval):
                raise RosterError(
                    f"not an approval of this roster by {silo_id} as a member of the one in force"
                )
            known = approval in self._store.proposals.approvals(roster)
            self._store.proposals.approve(roster, approval)
            if not known:
                self._audit.append(
                    AuditEvent.ROSTER_APPROVED, silo=silo_id, epoch=epoch, sha256=sha256.hex()
                )

    def approved(self) -> SignedRoster:
        """Put the proposal and its approvals together, for whoever publishes the roster to verify.

        Raises:
            RosterError: Nothing is proposed, or too few have approved it.
        """
        proposal = self.current()
        if proposal is None:
            raise RosterError("no roster is proposed: chorale roster propose")
        previous = self._previous(proposal.roster)
        if len(proposal.approvals) < proposal.needed:
            raise RosterError(
                f"{len(proposal.approvals)} of {len(previous.entries)} silos approved epoch "
                f"{proposal.roster.epoch}, {proposal.needed} are needed: chorale-silo roster "
                "approve, or have the root sign it"
            )
        return SignedRoster(roster=proposal.roster, signature=b"", approvals=proposal.approvals)

    def verified(self, signed: SignedRoster, root_key: bytes) -> Roster:
        """Check what is about to be published, as every silo will.

        Raises:
            RosterError: It does not follow from the roster in force.
        """
        current = self._store.rosters.current()
        try:
            if current is None:
                return verify_roster(signed, root_key, 0)
            if signed.approvals:
                self._require_room(current)
            before = current.roster
            return verify_roster(signed, root_key, before.epoch, before.sha256, before)
        except SecAggError as error:
            raise RosterError(str(error)) from error

    def _previous(self, roster: Roster) -> Roster:
        """The roster in force, if its members may approve this one."""
        current = self._store.rosters.current()
        if current is None:
            raise RosterError("the first roster is signed by the root: chorale root sign")
        try:
            require_approvable(current.roster, roster)
        except SecAggError as error:
            raise RosterError(str(error)) from error
        self._require_room(current)
        return current.roster

    def _require_room(self, current: SignedRoster) -> None:
        if len(self._store.rosters.before(current)) >= MAX_APPROVED_IN_A_ROW:
            raise RosterError(
                f"after {MAX_APPROVED_IN_A_ROW} approved rosters in a row the root signs the next"
            )
