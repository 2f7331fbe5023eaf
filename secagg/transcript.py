"""The digests that bind the messages of one aggregation together.

* ctx = H(D ‖ bundles): every key and every later signature depends on it.
* H(U2) covers all R1 headers (from version 2 on: all signed roots), H(U3) all upload headers, so
  that agreement on a set is agreement on what its members sent.
* Share hashes and seed commitments are bound to ctx and to the silos they concern.

Covered: derivation alone. Not covered: whether any of the inputs is true.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from secagg import canonical
from secagg.descriptor import Descriptor
from secagg.messages import KeyBundle, MaskedInputHeader, ShareBoxHeader, ShareRoot
from secagg.suite import Secret


class ShareKind(StrEnum):
    """Which of a silo's two secrets a share belongs to."""

    SELF_SEED = "self_seed"
    MASK_KEY = "mask_key"


@dataclass(frozen=True, kw_only=True, slots=True)
class Members:
    """U2 as fixed by the R1 headers."""

    ctx: bytes
    # In ascending order.
    silo_ids: tuple[str, ...]
    # H(U2).
    sha256: bytes


def context(descriptor: Descriptor, bundles: Iterable[KeyBundle]) -> bytes:
    """Return ctx = H(D ‖ bundles); the bundles come in ascending order of silo id."""
    return canonical.digest(
        "chorale/v1/ctx", descriptor.sha256, tuple(bundle.fields() for bundle in bundles)
    )


def members(ctx: bytes, headers: Iterable[ShareBoxHeader | ShareRoot]) -> Members:
    """Return U2 with its digest; the headers come in ascending order of sender."""
    signed = [(header.sender, header.signed_bytes(ctx)) for header in headers]
    digest = canonical.digest(
        "chorale/v1/members",
        ctx,
        tuple((sender, hashlib.sha256(content).digest()) for sender, content in signed),
    )
    return Members(ctx=ctx, silo_ids=tuple(sender for sender, _ in signed), sha256=digest)


def survivors_sha256(ctx: bytes, headers: Iterable[MaskedInputHeader]) -> bytes:
    """Return H(U3); the headers come in ascending order of silo id."""
    return canonical.digest(
        "chorale/v1/survivors", ctx, tuple(header.fields() for header in headers)
    )


def share_sha256(ctx: bytes, sender: str, recipient: str, kind: ShareKind, share: Secret) -> bytes:
    """Return H(ctx ‖ i→j ‖ kind ‖ share)."""
    return canonical.digest("chorale/v1/share", ctx, sender, recipient, kind.value, bytes(share))


def self_seed_commitment(ctx: bytes, silo_id: str, self_seed: Secret) -> bytes:
    """Return H(b_i)."""
    return canonical.digest("chorale/v1/self-seed", ctx, silo_id, bytes(self_seed))


def pair_secret_sha256(ctx: bytes, low: str, high: str, secret: Secret) -> bytes:
    """Return H(ctx ‖ i→j ‖ s_ij), i < j."""
    return canonical.digest("chorale/v2/pair-secret", ctx, low, high, bytes(secret))


def seal_associated_data(ctx: bytes, low: str, high: str) -> bytes:
    """Return the associated data under which a sealed pair secret opens."""
    return canonical.encode("chorale/v2/seal", ctx, low, high)


def box_associated_data(ctx: bytes, sender: str, recipient: str) -> bytes:
    """Return the associated data under which a box opens."""
    return canonical.encode("chorale/v1/box", ctx, sender, recipient)
