"""Whether the members of a roster can fill a run, and who is missing from it.

A round opens with the plan's quorum. A roster is on paper: of its members some may be suspended,
revoked or gone, and others may be dead. A run of such a roster would wait without end, with every
other silo's machines reserved for it.

Invariants:

1. A run for which fewer members than the quorum may take part is refused, whoever starts it and
   however; only a change of the roster, or of a silo's standing, helps.
2. One for which enough may take part and fewer were heard of within ``SILENT_S`` is refused until
   the admin says that the others come: silence may be over in a minute.

Covered: who is missing and why, in words. Not covered: whether a silo will accept the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from federation.plan.plan import Plan
from secagg.roster import SignedRoster
from server.errors import RosterError
from server.store.silos import SiloRow, SiloState, state_of

__all__ = [
    "SILENT_S",
    "Member",
    "is_silent",
    "may_take_part",
    "members_of",
    "require_members",
    "shortage",
    "silence",
]

SILENT_S: Final = 300.0
"""As in the alert ChoraleSiloSilent: longer than a daemon takes to start again and load a model."""
_OUT: Final = frozenset({SiloState.SUSPENDED, SiloState.LEFT, SiloState.REVOKED})


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One silo of the roster."""

    silo_id: str
    state: SiloState
    last_seen_unix_s: float
    """0 for never."""


def members_of(roster: SignedRoster, silos: Iterable[SiloRow]) -> tuple[Member, ...]:
    """The roster's silos as the store knows them."""
    named = frozenset(roster.roster.silo_ids)
    known = {silo.silo_id: silo for silo in silos}
    return tuple(
        Member(
            silo_id=silo_id,
            state=state_of(known[silo_id], named) if silo_id in known else SiloState.ROSTERED,
            last_seen_unix_s=known[silo_id].last_seen_unix_s if silo_id in known else 0.0,
        )
        for silo_id in roster.roster.silo_ids
    )


def may_take_part(roster: SignedRoster, silos: Iterable[SiloRow]) -> tuple[str, ...]:
    """Who of the roster is not suspended, gone or revoked, in ascending order."""
    members = members_of(roster, silos)
    return tuple(sorted(member.silo_id for member in members if member.state not in _OUT))


def is_silent(member: Member, now_unix_s: float) -> bool:
    """Whether a member that may take part was not heard of for too long, or never."""
    return member.state not in _OUT and now_unix_s - member.last_seen_unix_s > SILENT_S


def shortage(members: Sequence[Member], quorum: int) -> str:
    """Why too few of the roster's silos may take part; empty if at least ``quorum`` may."""
    out = [member for member in members if member.state in _OUT]
    left = len(members) - len(out)
    if left >= quorum or not out:
        # A roster that is too small by itself is the plan's own refusal.
        return ""
    who = ", ".join(f"{member.silo_id} is {member.state.value}" for member in out)
    return (
        f"roster: a round opens with {quorum} ready silos but only {left} of {len(members)} may "
        f"take part ({who}): reinstate who is suspended, or publish another roster"
    )


def silence(members: Sequence[Member], quorum: int, now_unix_s: float) -> str:
    """Why too few of the roster's silos are there; empty if at least ``quorum`` are."""
    counted = [member for member in members if member.state not in _OUT]
    silent = [m for m in counted if is_silent(m, now_unix_s)]
    left = len(counted) - len(silent)
    if left >= quorum:
        return ""
    who = ", ".join(member.silo_id for member in silent)
    return (
        f"silos: a round opens with {quorum} ready silos but only {left} were heard of within "
        f"{SILENT_S / 60:g} minutes, not {who}: reach their operators, or start it with "
        "--await-silos and let it wait for them"
    )


def require_members(plan: Plan, roster: SignedRoster, silos: Iterable[SiloRow]) -> None:
    """Refuse a run that no member of the roster can ever fill.

    Raises:
        RosterError: The text names who may not take part.
    """
    quorum = plan.rounds.ready_quorum(plan.secure_aggregation.n_min)
    reason = shortage(members_of(roster, silos), quorum)
    if reason:
        raise RosterError(reason)
