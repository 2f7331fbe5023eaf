"""What an adversary does with what it holds: colluders' vaults, agreements, known masks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from secagg import suite, transcript
from secagg.messages import ConsistencySignature, Survivors, UnmaskingShares, agreement_bytes
from secagg.prg import Mask, MaskStreams, Vector
from secagg.transcript import ShareKind
from tests.kit.secagg.secagg_samples import signing_key
from tests.kit.simulation.secagg_cohort import Cohort
from tests.kit.simulation.session_federation import Attempt, Member


def vault_of(member: Member) -> Any:
    """The secrets of a silo under the adversary's hand."""
    assert member.session is not None
    return member.session._state._vault


def share_in(member: Member, kind: ShareKind, owner: str) -> bytes:
    """A share that a colluder holds."""
    return bytes(vault_of(member).get(kind, owner))


def agreement(attempt: Attempt, survivors: Survivors, name: str) -> ConsistencySignature:
    """What a colluder signs: whatever it is asked, as often as it is asked."""
    digest = transcript.survivors_sha256(attempt.ctx, survivors.headers)
    signed = agreement_bytes(attempt.ctx, attempt.members.sha256, digest)
    return ConsistencySignature(silo_id=name, signature=suite.sign(signing_key(name), signed))


def owners_of(shares: UnmaskingShares, kind: ShareKind) -> set[str]:
    """Whose secrets of one kind these are shares of."""
    listed = shares.self_seed_shares if kind is ShareKind.SELF_SEED else shares.mask_key_shares
    return {share.owner for share in listed}


def released(
    attempt: Attempt | Cohort, messages: Iterable[UnmaskingShares], kind: ShareKind, owner: str
) -> dict[int, bytes]:
    """The shares of one secret that these messages hold, by x."""
    found = {}
    for message in messages:
        listed = (
            message.self_seed_shares if kind is ShareKind.SELF_SEED else message.mask_key_shares
        )
        for share in listed:
            if share.owner == owner:
                found[attempt.names.index(message.silo_id) + 1] = share.share
    return found


def pair_mask(attempt: Attempt, private: bytes, holder: str, other: str, on: str) -> Mask:
    """The mask of a pair, to be taken off the vector of `on`, from one side's recovered key."""
    public = attempt.federation[other].last("advertise_keys").mask_key
    low, high = sorted((holder, other))
    key = suite.derive_key(suite.agree(private, public), "mask", attempt.ctx, low, high)
    partner = other if on == holder else holder
    return Mask(key=key, sign=-1 if partner > on else 1)


def apply(vector: Vector, masks: Iterable[Mask]) -> None:
    """Add or subtract whole keystreams in place."""
    streams = MaskStreams(masks)
    streams.apply(vector)
    streams.close()
