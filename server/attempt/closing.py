"""Closing one phase of an attempt: who answered, who is missing, and what follows.

Invariant: closing is computed once and takes effect later, when the journal has it; the state that
was closed takes no message meanwhile.

Covered: R0 to R4. Not covered: writing it down and showing it (``server/attempt/attempt.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from secagg.descriptor import SignedDescriptor
from secagg.messages import BoxDelivery, ConsistencySignatures, KeyBundles, Survivors
from secagg.server import (
    CollectBundles,
    CollectConsistency,
    CollectMaskedInputs,
    CollectShares,
    CollectUnmasking,
)

__all__ = ["Closing", "Message", "State", "answered", "close_state"]

Message = SignedDescriptor | KeyBundles | BoxDelivery | Survivors | ConsistencySignatures
State = CollectBundles | CollectShares | CollectMaskedInputs | CollectConsistency | CollectUnmasking


@dataclass(frozen=True, kw_only=True, slots=True)
class Closing:
    """What follows a phase; nobody sees it before the journal has it."""

    members: tuple[str, ...]
    """Who answered, in ascending order."""
    missing: frozenset[str]
    """Who is dropped."""
    following: State
    messages: Mapping[str, Message]
    """What each silo that is left is told next."""
    survivors: tuple[str, ...]
    """U3; empty before it is declared."""


def answered(state: State, active: frozenset[str], survivors: tuple[str, ...]) -> tuple[str, ...]:
    """Who answered in a phase; in R3 and R4 also a silo of U3 that is dropped.

    Args:
        state: The phase's protocol state.
        active: Who is not dropped.
        survivors: U3; empty before it is declared.

    Returns:
        In ascending order.
    """
    return tuple(sorted((frozenset(survivors) or active) - state.pending))


def close_state(
    state: State,
    messages: Mapping[str, Message],
    active: frozenset[str],
    survivors: tuple[str, ...],
) -> Closing:
    """Close a phase's protocol state.

    Args:
        state: The state.
        messages: What the silos are told in this phase.
        active: Who is not dropped.
        survivors: U3; empty before it is declared.

    Returns:
        What follows; of the last phase the same state, which waits to be opened.

    Raises:
        VerificationError: what follows would be refused by every silo.
    """
    following: State = state
    members = answered(state, active, survivors)
    # R3 and R4 losses are drop-outs of the protocol, not of the sum: U3 stays what it is.
    missing = state.pending & active
    left = active - missing
    match state:
        case CollectBundles():
            following, bundles = state.close()
            messages = dict.fromkeys(left, bundles)
        case CollectShares():
            following, messages = state.close()
        case CollectMaskedInputs():
            following, declared = state.close()
            survivors = tuple(sorted(header.silo_id for header in declared.headers))
            messages = dict.fromkeys(left, declared)
        case CollectConsistency():
            following, signatures = state.close()
            messages = dict.fromkeys(left, signatures)
    return Closing(
        members=members,
        missing=missing,
        following=following,
        messages=messages,
        survivors=survivors,
    )
