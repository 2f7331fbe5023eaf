"""How a lying coordinator, and a silo that plays along, alter what R1 deals by Merkle root."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from secagg import merkle, suite
from secagg.messages import DeliveredLeaf, LeafDelivery, ShareLeaf, ShareLeaves, ShareRoot
from tests.kit.secagg.secagg_samples import signing_key


def hashes_of(ctx: bytes, sender: str, leaves: Sequence[ShareLeaf]) -> list[bytes]:
    """The hashes that a sender's tree is made of."""
    return [merkle.leaf_hash(leaf.signed_bytes(ctx, sender)) for leaf in leaves]


def resigned_root(ctx: bytes, signed: ShareRoot, /, **changes: Any) -> ShareRoot:
    """A root altered and signed by its own silo, which colludes."""
    altered = replace(signed, **changes)
    signature = suite.sign(signing_key(altered.sender), altered.signed_bytes(ctx))
    return replace(altered, signature=signature)


def dealt(ctx: bytes, message: ShareLeaves, leaves: Sequence[ShareLeaf]) -> ShareLeaves:
    """What a silo would have sent with these leaves in place of its own."""
    root = merkle.root(hashes_of(ctx, message.sender, leaves))
    signed = resigned_root(ctx, message.root, root=root, leaf_count=len(leaves))
    return ShareLeaves(root=signed, leaves=tuple(leaves))


def redealt(ctx: bytes, message: ShareLeaves, to: str, /, **changes: Any) -> ShareLeaves:
    """What a silo would have sent with one recipient's leaf altered."""
    leaves = [replace(leaf, **changes) if leaf.recipient == to else leaf for leaf in message.leaves]
    return dealt(ctx, message, leaves)


def delivered(
    ctx: bytes, message: ShareLeaves, index: int, hashes: Sequence[bytes] | None = None
) -> DeliveredLeaf:
    """The leaf at an index of a silo's tree with the path that leads from it to the root."""
    hashes = hashes_of(ctx, message.sender, message.leaves) if hashes is None else hashes
    return DeliveredLeaf(leaf=message.leaves[index], path=merkle.path(hashes, index))


def root_of(delivery: LeafDelivery, name: str) -> ShareRoot:
    return next(root for root in delivery.roots if root.sender == name)


def with_root(delivery: LeafDelivery, root: ShareRoot) -> LeafDelivery:
    roots = tuple(root if item.sender == root.sender else item for item in delivery.roots)
    return replace(delivery, roots=roots)


def with_leaf(delivery: LeafDelivery, sender: str, leaf: DeliveredLeaf) -> LeafDelivery:
    return replace(delivery, leaves={**delivery.leaves, sender: leaf})


def with_dealt(
    delivery: LeafDelivery, ctx: bytes, message: ShareLeaves, recipient: str
) -> LeafDelivery:
    """The same delivery as if a sender had dealt this to everybody."""
    index = [leaf.recipient for leaf in message.leaves].index(recipient)
    changed = with_leaf(delivery, message.sender, delivered(ctx, message, index))
    return with_root(changed, message.root)


def without_senders(delivery: LeafDelivery, *names: str) -> LeafDelivery:
    """The same delivery as if these silos had dealt nothing."""
    kept: Mapping[str, DeliveredLeaf] = {
        sender: leaf for sender, leaf in delivery.leaves.items() if sender not in names
    }
    roots = tuple(root for root in delivery.roots if root.sender not in names)
    return LeafDelivery(roots=roots, leaves=kept)
