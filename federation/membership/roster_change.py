"""What a proposed roster changes against the one in force, for a member who is asked to approve it.

Covered: silos that come, go, or come with another key; c; who has approved. Not covered: what makes
an approved roster valid (``secagg/roster.py``).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import secagg.wire as secagg_wire
from chorale.v1 import membership_pb2
from secagg import bounds
from secagg.errors import MalformedMessageError
from secagg.roster import Roster

__all__ = [
    "RosterChange",
    "RosterProposal",
    "change_between",
    "fingerprint",
    "roster_proposal_from_proto",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class RosterProposal:
    """A roster that waits for approvals, as the coordinator states it."""

    roster: Roster
    """Not verified by anybody."""
    needed: int
    """How many members must approve; 0 if only the root's signature will do."""
    approved_by: tuple[str, ...]
    """Who did, by the coordinator's word."""

    def __post_init__(self) -> None:
        bounds.require_integer(self.needed, 0, bounds.MAX_COHORT, "approvals needed")
        bounds.require_sequence(self.approved_by, str, 0, bounds.MAX_COHORT, "approved_by")
        for silo_id in self.approved_by:
            bounds.require_silo_id(silo_id, "approved_by")


@dataclass(frozen=True, kw_only=True, slots=True)
class RosterChange:
    """The difference of two rosters; silo ids in ascending order."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    rekeyed: tuple[str, ...]
    """Same id, another verification key or URI."""
    lines: tuple[str, ...]
    """All of it for people, with a fingerprint of every key that comes."""


def change_between(before: Roster, after: Roster) -> RosterChange:
    """What changes from the roster in force to the proposed one."""
    old, new = ({entry.silo_id: entry for entry in roster.entries} for roster in (before, after))
    added = tuple(sorted(new.keys() - old.keys()))
    removed = tuple(sorted(old.keys() - new.keys()))
    rekeyed = tuple(sorted(name for name in old.keys() & new.keys() if old[name] != new[name]))
    epochs = f"epoch {before.epoch} -> {after.epoch}"
    sizes = f"{len(before.entries)} -> {len(after.entries)} silos"
    marked = "" if before.colluding == after.colluding else "   CHANGED"
    lines = [
        f"federation {after.federation}: {epochs}, {sizes}",
        f"may collude (c): {before.colluding} -> {after.colluding}{marked}",
    ]
    if before.federation != after.federation:
        lines.append(f"federation: {before.federation} -> {after.federation}   CHANGED")
    if before.coordinator_key != after.coordinator_key:
        keys = fingerprint(before.coordinator_key), fingerprint(after.coordinator_key)
        lines.append(f"coordinator key: {keys[0]} -> {keys[1]}   CHANGED")
    lines += [f"added    {name}: key {fingerprint(new[name].verification_key)}" for name in added]
    lines += [f"removed  {name}" for name in removed]
    lines += [
        f"new key  {name}: {fingerprint(old[name].verification_key)} -> "
        f"{fingerprint(new[name].verification_key)}, {new[name].spiffe_uri}"
        for name in rekeyed
    ]
    if not (added or removed or rekeyed):
        lines.append("the members stay as they are")
    lines.append(f"roster SHA-256 {after.sha256.hex()}")
    return RosterChange(added=added, removed=removed, rekeyed=rekeyed, lines=tuple(lines))


def fingerprint(key: bytes) -> str:
    """Return the form in which people compare a key: 32 hex digits of its SHA-256."""
    digest = hashlib.sha256(key).hexdigest()
    return ":".join(digest[start : start + 4] for start in range(0, 32, 4))


def roster_proposal_from_proto(
    proto: membership_pb2.GetRosterProposalResponse,
) -> RosterProposal | None:
    """Convert, or raise MalformedMessageError; None where nothing is proposed."""
    if not proto.HasField("roster"):
        return None
    if len(proto.approved_by) > bounds.MAX_COHORT or proto.roster.signature:
        raise MalformedMessageError("a proposed roster is signed, or has too many approvals")
    unsigned = type(proto.roster)()
    unsigned.CopyFrom(proto.roster)
    unsigned.signature = bytes(bounds.SIGNATURE_BYTES)
    return RosterProposal(
        roster=secagg_wire.roster_from_proto(unsigned).roster,
        needed=proto.approvals_needed,
        approved_by=tuple(proto.approved_by),
    )
