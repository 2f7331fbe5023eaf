"""R1 of suite v1: boxes under signed hashes, and masks that follow from X25519 alone."""

from collections.abc import Mapping

from secagg import suite
from secagg.errors import Check, VerificationError
from secagg.messages import BoxDelivery, ShareBoxes, ShareBoxHeader, ShareLeaves
from secagg.server.dealt import Dealt, PairKeys
from secagg.transcript import ShareKind
from secagg.verification import check_share_header, equal


class Boxes(Dealt):
    """What is kept are the signed headers."""

    headers: Mapping[str, ShareBoxHeader]

    def check(self, message: ShareBoxes | ShareLeaves) -> None:
        """Check one silo's boxes.

        Raises:
            VerificationError: suite, share_signature or share_recipients.
        """
        if not isinstance(message, ShareBoxes):
            raise VerificationError(Check.SUITE, "leaves of another suite", silo=message.sender)
        check_share_header(self._aggregation.roster, self._ctx, message.header(), self.bundles)

    def deliver(
        self, received: Mapping[str, ShareBoxes | ShareLeaves]
    ) -> Mapping[str, BoxDelivery]:
        """Give each silo of U2 every header with its own boxes."""
        messages = {
            sender: message
            for sender, message in received.items()
            if isinstance(message, ShareBoxes)
        }
        self.headers = {sender: message.header() for sender, message in messages.items()}
        boxes = {
            (sender, box.recipient): box.ciphertext
            for sender, message in messages.items()
            for box in message.boxes
        }
        ordered = tuple(self.headers.values())
        return {
            silo_id: BoxDelivery(
                headers=ordered,
                ciphertexts={
                    sender: boxes[sender, silo_id] for sender in messages if sender != silo_id
                },
            )
            for silo_id in messages
        }

    def share_sha256(self, owner: str, holder: str, kind: ShareKind) -> bytes:
        """Return the hash in the holder's box digest."""
        box = self.headers[owner].box_for(holder)
        # Safety: R1 headers were accepted only with one box for each other silo of U1.
        if box is None:
            raise VerificationError(Check.SHARE_RECIPIENTS, "no box", silo=owner)
        seed = kind is ShareKind.SELF_SEED
        return box.self_seed_share_sha256 if seed else box.mask_key_share_sha256

    def self_mask_key(self, owner: str, self_seed: bytes) -> bytes:
        """Derive it from b_i."""
        return suite.derive_key(self_seed, "self", self._ctx, owner)

    def is_pair_secret(
        self,
        one: str,  # noqa: ARG002 - of no pair of this suite
        other: str,  # noqa: ARG002
        secret: bytes,  # noqa: ARG002
    ) -> bool:
        """Tell that a pair has none."""
        return False

    def pair_keys(self, lost: str, secret: bytes, released: Mapping[str, bytes | None]) -> PairKeys:
        """Derive them from the recovered mask key.

        Raises:
            VerificationError: mask_key.
        """
        if not equal(suite.agreement_public_key(secret), self.bundles[lost].mask_key):
            raise VerificationError(
                Check.MASK_KEY, "the recovered key is not the advertised one", silo=lost
            )
        private = suite.agreement_key(secret)
        keys = {}
        for survivor in released:
            pair = suite.agree(private, self.bundles[survivor].mask_key)
            low, high = sorted((survivor, lost))
            keys[survivor] = suite.derive_key(pair, "mask", self._ctx, low, high)
        return PairKeys(keys=keys)
