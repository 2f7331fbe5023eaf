"""R1 of suite v2 done, waiting for the leaves; U2 is fixed here, and the masks' keys are made.

Verified in order: U2 is an ordered part of U1; |U2| >= max(t, n_min); this silo's root is in it
verbatim; one leaf from each other member; every root's signature, over one leaf for each other silo
of U1; and of each sender that the leaf is this silo's, at this silo's own index under the signed
root. A leaf that is not is the coordinator's doing and aborts.

What such a leaf holds is its sender's doing:

* A box that does not open, or a share that is not the signed one, names the sender as in suite v1.
* A pair secret that does not open, or is not the signed one, costs the pair its mask: this silo
  masks without it and says so in its upload header. The others then leave one of the two out.

Both seeds end here.
"""

from collections.abc import Mapping
from typing import Final

from secagg import hybrid, merkle, suite, transcript
from secagg.client.masked_input import MaskedInput
from secagg.client.peers import Peers
from secagg.client.setup import Membership
from secagg.client.share_keys import ShareKeys
from secagg.client.state import RejectedSender
from secagg.client.vault import Vault
from secagg.errors import Check, VerificationError
from secagg.messages import (
    BoxDelivery,
    DeliveredLeaf,
    KeyBundle,
    LeafDelivery,
    ShareLeaf,
    ShareRoot,
)
from secagg.verification import check_share_root, equal

_SEEDS: Final = ("mask_seed", "box_seed")


class HybridShareKeys(ShareKeys):
    """Holds both seeds, b_i and its own share of it, and the pair secrets it dealt."""

    __slots__ = ("_bundles",)

    def __init__(
        self,
        membership: Membership,
        vault: Vault,
        ctx: bytes,
        bundles: Mapping[str, KeyBundle],
        root: ShareRoot,
    ) -> None:
        super().__init__(membership, vault, ctx, tuple(bundles), root)
        # Of U1, in ascending order.
        self._bundles = bundles

    def _take(self, message: BoxDelivery | LeafDelivery) -> MaskedInput:
        if not isinstance(message, LeafDelivery):
            raise VerificationError(Check.SUITE, "a delivery of another suite")
        self._check_leaves(message)
        return self._open_leaves(message)

    def _check_leaves(self, message: LeafDelivery) -> None:
        self._check_senders(message.roots, message.leaves)
        for root in message.roots:
            check_share_root(self._membership.roster, self._ctx, root, self._key_members)
            if root.sender != self.silo_id:
                self._check_leaf(root, message.leaves[root.sender])

    def _check_leaf(self, root: ShareRoot, delivered: DeliveredLeaf) -> None:
        own, sender, leaf = self.silo_id, root.sender, delivered.leaf
        content = leaf.signed_bytes(self._ctx, sender)
        if (
            leaf.recipient != own
            or leaf.deals != (sender < own)
            or not merkle.leads_to(
                root.root,
                merkle.leaf_hash(content),
                self._index_at(sender),
                root.leaf_count,
                delivered.path,
            )
        ):
            raise VerificationError(
                Check.LEAF, "not the leaf that was signed for this silo", silo=sender
            )

    def _index_at(self, sender: str) -> int:
        """This silo's index in a sender's tree, which has no leaf for the sender itself."""
        return self._key_members.index(self.silo_id) - (sender < self.silo_id)

    def _open_leaves(self, message: LeafDelivery) -> MaskedInput:
        own, descriptor_sha256 = self.silo_id, self._membership.descriptor.sha256
        boxes = hybrid.box_keys(self._vault.get("box_seed", own), descriptor_sha256, own)
        masks = hybrid.mask_keys(self._vault.get("mask_seed", own), descriptor_sha256, own)
        named, unpaired = [], []
        for sender, delivered in sorted(message.leaves.items()):
            bundle = self._bundles[sender]
            check = self._keep_leaf(boxes, bundle, delivered.leaf)
            if check is not None:
                named.append(RejectedSender(silo_id=sender, check=check))
            if not self._keep_mask(masks, bundle, delivered.leaf):
                named.append(RejectedSender(silo_id=sender, check=Check.PAIR_SECRET))
                unpaired.append(sender)
        self._vault.wipe(*_SEEDS)
        members = transcript.members(self._ctx, message.roots)
        peers = Peers(bundles=self._bundles, rejected=tuple(unpaired))
        return MaskedInput(self._membership, self._vault, members, tuple(named), peers)

    def _keep_leaf(
        self, boxes: hybrid.PrivateKeys, bundle: KeyBundle, leaf: ShareLeaf
    ) -> Check | None:
        """Keep both shares of a sender, or tell which check they fail."""
        sender, own = bundle.silo_id, self.silo_id
        plaintext = suite.unseal(
            hybrid.box_key(
                agree_with(boxes, bundle.cipher_key, sender),
                hybrid.decapsulate(boxes.kem, leaf.box_kem),
                self._ctx,
                (sender, own),
                leaf.box_kem,
            ),
            transcript.box_associated_data(self._ctx, sender, own),
            leaf.ciphertext,
        )
        signed = (leaf.self_seed_share_sha256, leaf.mask_key_share_sha256)
        return self._keep_opened(sender, plaintext, signed)

    def _keep_mask(self, masks: hybrid.PrivateKeys, bundle: KeyBundle, leaf: ShareLeaf) -> bool:
        """Keep the pair's secret and its mask's key; False if the secret is no good."""
        sender, own = bundle.silo_id, self.silo_id
        low, high = sorted((sender, own))
        if sender == low:
            secret = suite.unseal(
                hybrid.seal_key(
                    hybrid.decapsulate(masks.kem, leaf.mask_kem),
                    self._ctx,
                    low,
                    high,
                    leaf.mask_kem,
                ),
                transcript.seal_associated_data(self._ctx, low, high),
                leaf.sealed,
            )
            if secret is None or not equal(
                transcript.pair_secret_sha256(self._ctx, low, high, secret),
                leaf.pair_secret_sha256,
            ):
                return False
            self._vault.put("pair", sender, secret)
        key = hybrid.pair_mask_key(
            agree_with(masks, bundle.mask_key, sender),
            self._vault.get("pair", sender),
            self._ctx,
            low,
            high,
        )
        self._vault.put("mask", sender, key)
        return True


def agree_with(keys: hybrid.PrivateKeys, public_key: bytes, silo_id: str) -> bytes:
    """Compute the X25519 secret with a peer's key.

    Raises:
        VerificationError: low_order_key.
    """
    try:
        return suite.agree(keys.agreement, public_key)
    # Safety: check_bundle has refused low-order keys; this states the same at the use.
    except suite.LowOrderError as error:
        raise VerificationError(Check.LOW_ORDER_KEY, str(error), silo=silo_id) from error
