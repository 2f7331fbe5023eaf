"""Which members of a roster are there, which are out or silent, and what is said of too few.

Covered: the rule and its words, from who is in the roster and when each was last heard of. Not
covered: where both come from (``server/members/presence.py``, or an answer to an admin).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from server.states import SiloState

__all__ = ["OUT", "SILENT_S", "Member", "is_silent", "shortage", "silence"]

SILENT_S: Final = 300.0
"""As in the alert ChoraleSiloSilent: longer than a daemon takes to start again and load a model."""
OUT: Final = frozenset({SiloState.SUSPENDED, SiloState.LEFT, SiloState.REVOKED})
"""No roster makes them take part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One silo of the roster."""

    silo_id: str
    state: SiloState
    last_seen_unix_s: float
    """0 for never."""


def is_silent(member: Member, now_unix_s: float) -> bool:
    """Whether a member that may take part was not heard of for too long, or never."""
    return member.state not in OUT and now_unix_s - member.last_seen_unix_s > SILENT_S


def shortage(members: Sequence[Member], quorum: int) -> str:
    """Why too few of the roster's silos may take part; empty if at least ``quorum`` may."""
    out = [member for member in members if member.state in OUT]
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
    counted = [member for member in members if member.state not in OUT]
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
