"""R0 and R1 of suite v2: keys from two seeds, a leaf for each peer, and one signed root over them.

The mask seed is shared among the others, as the mask key is in suite v1. The box seed never leaves.
Both stay until what the others dealt has been opened.

Of each pair the lower id deals the secret s_ij, so it is derived and kept here; the other gets it
sealed. What was sent is sent again from memory if it must be: no key encapsulates twice.
"""

from dataclasses import replace

from secagg import hybrid, merkle, shamir, suite, transcript
from secagg.client.advertise_keys import AdvertiseKeys
from secagg.client.hybrid_share_keys import HybridShareKeys, agree_with
from secagg.client.setup import ClientSetup, Membership
from secagg.client.vault import Vault
from secagg.errors import Check, VerificationError
from secagg.messages import KemKeys, KeyBundle, ShareLeaf, ShareLeaves, ShareRoot
from secagg.suite import SECRET_BYTES
from secagg.transcript import ShareKind


def advertise(
    setup: ClientSetup, membership: Membership
) -> tuple["HybridAdvertiseKeys", KeyBundle]:
    """Make both seeds of this aggregation and give the message of R0."""
    own, descriptor_sha256 = membership.silo_id, membership.descriptor.sha256
    vault = Vault()
    for kind in ("mask_seed", "box_seed"):
        seed = suite.draw(membership.entropy, SECRET_BYTES)
        vault.put(kind, own, seed)
        seed[:] = bytes(SECRET_BYTES)
    masks = hybrid.mask_keys(vault.get("mask_seed", own), descriptor_sha256, own)
    boxes = hybrid.box_keys(vault.get("box_seed", own), descriptor_sha256, own)
    unsigned = KeyBundle(
        silo_id=own,
        cipher_key=boxes.agreement_public,
        mask_key=masks.agreement_public,
        ledger_seq=setup.ledger_head.seq,
        ledger_sha256=setup.ledger_head.sha256,
        families=setup.families,
        signature=bytes(64),
        kem_keys=KemKeys(cipher_key=boxes.kem_public, mask_key=masks.kem_public),
        debit=setup.debit_head,
        cohort_may_vary=setup.cohort_may_vary,
    )
    signed_bytes = unsigned.signed_bytes(descriptor_sha256)
    bundle = replace(unsigned, signature=membership.sign(signed_bytes))
    return HybridAdvertiseKeys(membership, vault, bundle), bundle


class HybridAdvertiseKeys(AdvertiseKeys):
    """Holds the mask seed and the box seed."""

    __slots__ = ()

    def _share(
        self, ctx: bytes, bundles: tuple[KeyBundle, ...]
    ) -> tuple[HybridShareKeys, ShareLeaves]:
        me, own, vault = self._membership, self.silo_id, self._vault
        n, t = me.parameters.n, me.parameters.t
        self_seed = suite.draw(me.entropy, SECRET_BYTES)
        vault.put("own_seed", own, self_seed)
        seed_shares = shamir.split(self_seed, n, t, me.entropy)
        key_shares = shamir.split(vault.get("mask_seed", own), n, t, me.entropy)
        own_share = seed_shares[me.descriptor.cohort.index(own)]
        vault.put(ShareKind.SELF_SEED, own, own_share)
        boxes = hybrid.box_keys(vault.get("box_seed", own), me.descriptor.sha256, own)
        leaves = []
        for bundle in bundles:
            if bundle.silo_id != own:
                position = me.descriptor.cohort.index(bundle.silo_id)
                shares = seed_shares[position], key_shares[position]
                leaves.append(self._leaf(ctx, boxes, bundle, shares))
        tree = merkle.Tree([merkle.leaf_hash(leaf.signed_bytes(ctx, own)) for leaf in leaves])
        unsigned = ShareRoot(
            sender=own,
            leaf_count=len(leaves),
            root=tree.root,
            self_seed_commitment=transcript.self_seed_commitment(ctx, own, self_seed),
            own_self_seed_share_sha256=transcript.share_sha256(
                ctx, own, own, ShareKind.SELF_SEED, own_share
            ),
            signature=bytes(64),
        )
        self_seed[:] = bytes(SECRET_BYTES)
        root = replace(unsigned, signature=me.sign(unsigned.signed_bytes(ctx)))
        members = {bundle.silo_id: bundle for bundle in bundles}
        following = HybridShareKeys(me, vault, ctx, members, root)
        return following, ShareLeaves(root=root, leaves=tuple(leaves))

    def _leaf(
        self,
        ctx: bytes,
        boxes: hybrid.PrivateKeys,
        bundle: KeyBundle,
        shares: tuple[bytes, bytes],
    ) -> ShareLeaf:
        own, peer, kem = self.silo_id, bundle.silo_id, bundle.kem_keys
        # Safety: check_bundle has refused a bundle without KEM keys.
        if kem is None:
            raise VerificationError(Check.SUITE, "no KEM keys", silo=peer)
        agreed = agree_with(boxes, bundle.cipher_key, peer)
        kem_shared, box_kem = self._membership.encapsulate(kem.cipher_key)
        unpaired = ShareLeaf(
            recipient=peer,
            box_kem=box_kem,
            ciphertext=suite.seal(
                hybrid.box_key(agreed, kem_shared, ctx, (own, peer), box_kem),
                transcript.box_associated_data(ctx, own, peer),
                b"".join(shares),
            ),
            self_seed_share_sha256=transcript.share_sha256(
                ctx, own, peer, ShareKind.SELF_SEED, shares[0]
            ),
            mask_key_share_sha256=transcript.share_sha256(
                ctx, own, peer, ShareKind.MASK_KEY, shares[1]
            ),
        )
        return unpaired if peer < own else self._dealing(ctx, unpaired, kem.mask_key)

    def _dealing(self, ctx: bytes, leaf: ShareLeaf, mask_kem_key: bytes) -> ShareLeaf:
        """Add the secret of a pair whose lower id this silo is, and keep it."""
        own, peer = self.silo_id, leaf.recipient
        secret = hybrid.pair_secret(self._vault.get("mask_seed", own), ctx, own, peer)
        self._vault.put("pair", peer, secret)
        kem_shared, mask_kem = self._membership.encapsulate(mask_kem_key)
        return replace(
            leaf,
            mask_kem=mask_kem,
            sealed=suite.seal(
                hybrid.seal_key(kem_shared, ctx, own, peer, mask_kem),
                transcript.seal_associated_data(ctx, own, peer),
                secret,
            ),
            pair_secret_sha256=transcript.pair_secret_sha256(ctx, own, peer, secret),
        )
