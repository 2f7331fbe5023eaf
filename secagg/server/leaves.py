"""R1 of suite v2: leaves under signed roots, and masks that need X25519 and a dealt secret.

A lost silo's mask seed gives its side of every pair: the secrets it dealt follow from it, those
that were dealt to it open with it. Each must be the one whose hash the dealer signed, and so must
what survivors release; of the two either is enough, and a dealer whose own side fails is named.

What is kept after the leaves were handed out is what R4 needs: the boxes go.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from secagg import hybrid, merkle, suite, transcript
from secagg.errors import Check, VerificationError
from secagg.messages import DeliveredLeaf, LeafDelivery, ShareBoxes, ShareLeaf, ShareLeaves
from secagg.server.dealt import Dealt, PairKeys
from secagg.transcript import ShareKind
from secagg.verification import check_share_root, equal


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    """A leaf without its box."""

    self_seed_share_sha256: bytes
    mask_key_share_sha256: bytes
    mask_kem: bytes
    sealed: bytes
    pair_secret_sha256: bytes


class Leaves(Dealt):
    """What is kept are the signed roots, and of each leaf all but the box."""

    _kept: Mapping[tuple[str, str], _Kept]

    def check(self, message: ShareBoxes | ShareLeaves) -> None:
        """Check one silo's root and that its leaves are under it.

        Raises:
            VerificationError: suite, share_recipients, share_signature, leaf_count or leaf.
        """
        sender = message.sender
        if not isinstance(message, ShareLeaves):
            raise VerificationError(Check.SUITE, "boxes of another suite", silo=sender)
        due = tuple(member for member in self.bundles if member != sender)
        if tuple(leaf.recipient for leaf in message.leaves) != due:
            raise VerificationError(
                Check.SHARE_RECIPIENTS, "not one leaf for each other silo", silo=sender
            )
        check_share_root(self._aggregation.roster, self._ctx, message.root, self.bundles)
        if any(leaf.deals != (sender < leaf.recipient) for leaf in message.leaves):
            raise VerificationError(
                Check.LEAF, "a pair's secret is dealt by its lower id", silo=sender
            )
        if not equal(self._tree(message).root, message.root.root):
            raise VerificationError(Check.LEAF, "the leaves are not under the root", silo=sender)

    def deliver(
        self, received: Mapping[str, ShareBoxes | ShareLeaves]
    ) -> Mapping[str, LeafDelivery]:
        """Give each silo of U2 every root with its own leaves."""
        messages = {
            sender: message
            for sender, message in received.items()
            if isinstance(message, ShareLeaves)
        }
        self.headers = {sender: message.root for sender, message in messages.items()}
        own: dict[str, dict[str, DeliveredLeaf]] = {silo_id: {} for silo_id in messages}
        kept = {}
        for sender, message in messages.items():
            tree = self._tree(message)
            for index, leaf in enumerate(message.leaves):
                # Who gave up before R1 gets nothing.
                if leaf.recipient in messages:
                    delivered = DeliveredLeaf(leaf=leaf, path=tree.path(index))
                    own[leaf.recipient][sender] = delivered
                    kept[sender, leaf.recipient] = _without_box(leaf)
        self._kept = kept
        roots = tuple(message.root for message in messages.values())
        return {
            silo_id: LeafDelivery(roots=roots, leaves=leaves) for silo_id, leaves in own.items()
        }

    def share_sha256(self, owner: str, holder: str, kind: ShareKind) -> bytes:
        """Return the hash in the holder's leaf."""
        leaf = self._kept[owner, holder]
        seed = kind is ShareKind.SELF_SEED
        return leaf.self_seed_share_sha256 if seed else leaf.mask_key_share_sha256

    def self_mask_key(self, owner: str, self_seed: bytes) -> bytes:
        """Derive it from b_i."""
        return hybrid.self_mask_key(self_seed, self._ctx, owner)

    def is_pair_secret(self, one: str, other: str, secret: bytes) -> bool:
        """Compare its hash with the one in the dealer's leaf."""
        low, high = sorted((one, other))
        found = transcript.pair_secret_sha256(self._ctx, low, high, secret)
        return equal(found, self._kept[low, high].pair_secret_sha256)

    def pair_keys(self, lost: str, secret: bytes, released: Mapping[str, bytes | None]) -> PairKeys:
        """Derive them from the recovered mask seed and the pairs' secrets.

        Raises:
            VerificationError: mask_key or pair_secret.
        """
        masks = hybrid.mask_keys(secret, self._aggregation.descriptor.sha256, lost)
        advertised = self.bundles[lost]
        if (
            advertised.kem_keys is None
            or not equal(masks.agreement_public, advertised.mask_key)
            or not equal(masks.kem_public, advertised.kem_keys.mask_key)
        ):
            raise VerificationError(
                Check.MASK_KEY, "the recovered keys are not the advertised ones", silo=lost
            )
        keys, bad = {}, set()
        for survivor, offered in released.items():
            low, high = sorted((survivor, lost))
            found = self._recovered(low, high, secret if lost == low else masks)
            if found is None or not self.is_pair_secret(low, high, found):
                bad.add(low)
                found = offered
            if found is None:
                raise VerificationError(
                    Check.PAIR_SECRET, f"the secret with {high} is not the signed one", silo=low
                )
            agreed = suite.agree(masks.agreement, self.bundles[survivor].mask_key)
            keys[survivor] = hybrid.pair_mask_key(agreed, found, self._ctx, low, high)
        return PairKeys(keys=keys, bad_dealers=frozenset(bad))

    def _recovered(self, low: str, high: str, of_lost: bytes | hybrid.PrivateKeys) -> bytes | None:
        """Derive a pair's secret from the dealer's mask seed, or open it with the other's keys."""
        if isinstance(of_lost, bytes):
            return hybrid.pair_secret(of_lost, self._ctx, low, high)
        leaf = self._kept[low, high]
        kem_shared = hybrid.decapsulate(of_lost.kem, leaf.mask_kem)
        return suite.unseal(
            hybrid.seal_key(kem_shared, self._ctx, low, high, leaf.mask_kem),
            transcript.seal_associated_data(self._ctx, low, high),
            leaf.sealed,
        )

    def _tree(self, message: ShareLeaves) -> merkle.Tree:
        return merkle.Tree(
            [
                merkle.leaf_hash(leaf.signed_bytes(self._ctx, message.sender))
                for leaf in message.leaves
            ]
        )


def _without_box(leaf: ShareLeaf) -> _Kept:
    return _Kept(
        self_seed_share_sha256=leaf.self_seed_share_sha256,
        mask_key_share_sha256=leaf.mask_key_share_sha256,
        mask_kem=leaf.mask_kem,
        sealed=leaf.sealed,
        pair_secret_sha256=leaf.pair_secret_sha256,
    )
