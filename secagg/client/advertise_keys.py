"""R0 done, waiting for all key bundles; answers with R1 share_keys.

Verified in order: U1 is an ordered part of the cohort; |U1| >= max(t, n_min); this silo's bundle is
in it verbatim; every signature; all keys distinct; none of low order; each family with coordinates
declared by enough silos; in suite v2 a family of the plan too. Then ctx = H(D ‖ bundles).

The two private keys do not outlive this state: what later states need is derived here.
"""

from dataclasses import replace

from secagg import shamir, suite, transcript
from secagg.client.setup import ClientSetup, Membership
from secagg.client.share_keys import ShareKeys
from secagg.client.state import ClientState
from secagg.client.vault import Vault
from secagg.errors import Check, VerificationError
from secagg.messages import KeyBundle, KeyBundles, ShareBox, ShareBoxes, ShareLeaves
from secagg.suite import SECRET_BYTES
from secagg.transcript import ShareKind
from secagg.verification import (
    check_bundle,
    check_contributors,
    check_families,
    check_ordered_subset,
)


def advertise(setup: ClientSetup, membership: Membership) -> tuple["AdvertiseKeys", KeyBundle]:
    """Make the keys of this aggregation and give the message of R0."""
    vault = Vault()
    public = {}
    for kind in ("cipher_private", "mask_private"):
        private = suite.draw(membership.entropy, SECRET_BYTES)
        public[kind] = suite.agreement_public_key(private)
        vault.put(kind, membership.silo_id, private)
        private[:] = bytes(SECRET_BYTES)
    unsigned = KeyBundle(
        silo_id=membership.silo_id,
        cipher_key=public["cipher_private"],
        mask_key=public["mask_private"],
        ledger_seq=setup.ledger_head.seq,
        ledger_sha256=setup.ledger_head.sha256,
        families=setup.families,
        signature=bytes(64),
    )
    signed_bytes = unsigned.signed_bytes(membership.descriptor.sha256)
    bundle = replace(unsigned, signature=membership.sign(signed_bytes))
    return AdvertiseKeys(membership, vault, bundle), bundle


class AdvertiseKeys(ClientState):
    """Holds both private keys, in suite v2 the two seeds that they follow from."""

    __slots__ = ("_bundle",)

    def __init__(self, membership: Membership, vault: Vault, bundle: KeyBundle) -> None:
        super().__init__(membership, vault)
        self._bundle = bundle

    def handle(self, message: object) -> tuple[ShareKeys, ShareBoxes | ShareLeaves]:
        """Take the bundles of U1 and send each peer its encrypted shares, leaves in suite v2.

        Raises:
            UnexpectedMessageError: Not KeyBundles, or this state is over.
            VerificationError: A check failed; the secrets are erased.
        """
        self._require_live(message)
        if not isinstance(message, KeyBundles):
            raise self._unexpected(message)
        with self._acting():
            self._check(message)
            ctx = transcript.context(self._membership.descriptor, message.bundles)
            return self._share(ctx, message.bundles)

    def _check(self, message: KeyBundles) -> None:
        members = check_ordered_subset(
            (bundle.silo_id for bundle in message.bundles),
            self._membership.descriptor.cohort,
            Check.BUNDLE_SET,
            Check.BUNDLE_SET,
        )
        if len(members) < self._membership.parameters.least_survivors:
            raise VerificationError(Check.BUNDLES_SIZE, f"only {len(members)} silos sent keys")
        if self._bundle not in message.bundles:
            raise VerificationError(Check.OWN_BUNDLE, "this silo's bundle is missing or altered")
        descriptor, parameters = self._membership.descriptor, self._membership.parameters
        seen: set[bytes] = set()
        descriptor_sha256 = descriptor.sha256
        for bundle in message.bundles:
            check_bundle(
                self._membership.roster,
                descriptor_sha256,
                bundle,
                seen,
                is_hybrid=descriptor.is_hybrid,
            )
        check_families(descriptor, message.bundles, parameters.least_survivors)
        if descriptor.is_hybrid:
            declared = {bundle.silo_id: bundle.families for bundle in message.bundles}
            check_contributors(descriptor, declared, members, parameters, after_upload=False)

    def _share(
        self, ctx: bytes, bundles: tuple[KeyBundle, ...]
    ) -> tuple[ShareKeys, ShareBoxes | ShareLeaves]:
        me, own = self._membership, self._membership.silo_id
        n, t = me.parameters.n, me.parameters.t
        vault = self._vault
        self_seed = suite.draw(me.entropy, SECRET_BYTES)
        vault.put("own_seed", own, self_seed)
        seed_shares = shamir.split(self_seed, n, t, me.entropy)
        mask_private = self._vault.get("mask_private", own)
        key_shares = shamir.split(mask_private, n, t, me.entropy)
        cipher_private = suite.agreement_key(self._vault.get("cipher_private", own))
        mask_agreement = suite.agreement_key(mask_private)
        boxes = []
        for bundle in bundles:
            peer = bundle.silo_id
            seed_share = seed_shares[me.descriptor.cohort.index(peer)]
            key_share = key_shares[me.descriptor.cohort.index(peer)]
            if peer == own:
                vault.put(ShareKind.SELF_SEED, own, seed_share)
                own_hash = transcript.share_sha256(ctx, own, own, ShareKind.SELF_SEED, seed_share)
                continue
            try:
                channel = suite.agree(cipher_private, bundle.cipher_key)
                pair = suite.agree(mask_agreement, bundle.mask_key)
            # Safety: check_bundle has refused low-order keys; this states the same at the use.
            except suite.LowOrderError as error:
                raise VerificationError(Check.LOW_ORDER_KEY, str(error), silo=peer) from error
            vault.put("box", peer, suite.derive_key(channel, "box", ctx, peer, own))
            low, high = sorted((own, peer))
            vault.put("mask", peer, suite.derive_key(pair, "mask", ctx, low, high))
            boxes.append(
                ShareBox(
                    recipient=peer,
                    ciphertext=suite.seal(
                        suite.derive_key(channel, "box", ctx, own, peer),
                        transcript.box_associated_data(ctx, own, peer),
                        seed_share + key_share,
                    ),
                    self_seed_share_sha256=transcript.share_sha256(
                        ctx, own, peer, ShareKind.SELF_SEED, seed_share
                    ),
                    mask_key_share_sha256=transcript.share_sha256(
                        ctx, own, peer, ShareKind.MASK_KEY, key_share
                    ),
                )
            )
        unsigned = ShareBoxes(
            sender=own,
            boxes=tuple(boxes),
            self_seed_commitment=transcript.self_seed_commitment(ctx, own, self_seed),
            own_self_seed_share_sha256=own_hash,
            signature=bytes(64),
        )
        self_seed[:] = bytes(SECRET_BYTES)
        vault.wipe("cipher_private", "mask_private")
        message = replace(unsigned, signature=me.sign(unsigned.header().signed_bytes(ctx)))
        members = tuple(bundle.silo_id for bundle in bundles)
        return ShareKeys(me, vault, ctx, members, message.header()), message
