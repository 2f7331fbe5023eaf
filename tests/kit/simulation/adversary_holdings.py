"""What an adversary does with what it holds: colluders' vaults, agreements, known masks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from secagg import hybrid, suite, transcript
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


def own_mask_secret(member: Member) -> bytes:
    """What a silo's mask keys are, or follow from; no adversary has an honest silo's."""
    kind = "mask_seed" if member.federation.suite == hybrid.SUITE else "mask_private"
    return bytes(vault_of(member).get(kind, member.name))


def advertised_key(attempt: Attempt, secret: bytes, owner: str) -> bytes:
    """The X25519 mask key that a recovered secret stands for."""
    descriptor = attempt.descriptor.descriptor
    if not descriptor.is_hybrid:
        return suite.agreement_public_key(secret)
    return hybrid.mask_keys(secret, descriptor.sha256, owner).agreement_public


def self_mask(attempt: Attempt, self_seed: bytes, owner: str) -> Mask:
    """The self mask of a recovered seed, to be taken off."""
    if attempt.descriptor.descriptor.is_hybrid:
        return Mask(key=hybrid.self_mask_key(self_seed, attempt.ctx, owner), sign=-1)
    return Mask(key=suite.derive_key(self_seed, "self", attempt.ctx, owner), sign=-1)


def pair_mask(attempt: Attempt, secret: bytes, holder: str, other: str, on: str) -> Mask:
    """The mask of a pair, to be taken off the vector of `on`, from one side's recovered secret."""
    public = attempt.federation[other].last("advertise_keys").mask_key
    low, high = sorted((holder, other))
    partner = other if on == holder else holder
    sign = -1 if partner > on else 1
    descriptor = attempt.descriptor.descriptor
    if not descriptor.is_hybrid:
        key = suite.derive_key(suite.agree(secret, public), "mask", attempt.ctx, low, high)
        return Mask(key=key, sign=sign)
    keys = hybrid.mask_keys(secret, descriptor.sha256, holder)
    shared = suite.agree(keys.agreement, public)
    dealt = _pair_secret(attempt, keys, secret, holder, other)
    return Mask(key=hybrid.pair_mask_key(shared, dealt, attempt.ctx, low, high), sign=sign)


def _pair_secret(
    attempt: Attempt, keys: hybrid.PrivateKeys, seed: bytes, holder: str, other: str
) -> bytes:
    """s of a pair: dealt by the holder, or opened as the holder would open it."""
    ctx = attempt.ctx
    if holder < other:
        return hybrid.pair_secret(seed, ctx, holder, other)
    leaves = attempt.federation[other].last("share_keys").leaves
    leaf = next(leaf for leaf in leaves if leaf.recipient == holder)
    opened = suite.unseal(
        hybrid.seal_key(
            hybrid.decapsulate(keys.kem, leaf.mask_kem), ctx, other, holder, leaf.mask_kem
        ),
        transcript.seal_associated_data(ctx, other, holder),
        leaf.sealed,
    )
    assert opened is not None
    return opened


def apply(vector: Vector, masks: Iterable[Mask]) -> None:
    """Add or subtract whole keystreams in place."""
    streams = MaskStreams(masks)
    streams.apply(vector)
    streams.close()
