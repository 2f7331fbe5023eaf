"""Whether the members of a roster can fill a run, and who is missing from it.

A round opens with the plan's quorum. A roster is on paper: of its members some may be suspended,
revoked or gone, and others may be dead. A run of such a roster would wait without end, with every
other silo's machines reserved for it.

Invariants:

1. A run for which fewer members than the quorum may take part is refused, whoever starts it and
   however; only a change of the roster, or of a silo's standing, helps.
2. One for which enough may take part and fewer were heard of lately is refused until the admin says
   that the others come: silence may be over in a minute (``server/members/silence.py``).

Covered: how the store's silos stand. Not covered: whether a silo will accept the plan.
"""

from __future__ import annotations

from collections.abc import Iterable

from federation.plan.plan import Plan
from secagg.roster import SignedRoster
from server.errors import RosterError
from server.members.silence import OUT, Member, shortage
from server.states import SiloState
from server.store.silos import SiloRow, state_of

__all__ = ["may_take_part", "members_of", "require_members"]


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
    return tuple(sorted(member.silo_id for member in members if member.state not in OUT))


def require_members(plan: Plan, roster: SignedRoster, silos: Iterable[SiloRow]) -> None:
    """Refuse a run that no member of the roster can ever fill.

    Raises:
        RosterError: The text names who may not take part.
    """
    quorum = plan.rounds.ready_quorum(plan.secure_aggregation.n_min)
    reason = shortage(members_of(roster, silos), quorum)
    if reason:
        raise RosterError(reason)
