"""R1 done, waiting for the boxes; U2 is fixed here.

Verified in order: U2 is an ordered part of U1; |U2| >= max(t, n_min); this silo's header is in it
verbatim; every header's signature and recipients; one ciphertext per other member, each with the
digest its sender signed. A ciphertext with another digest is the coordinator's doing and aborts.

A box that has the signed digest yet does not open, or holds a share that does not match its signed
hash, is its sender's doing. That sender is named in `MaskedInput.rejected` and excluded from what
this silo answers in R4: it never releases a share it could not check. The sender stays in U2, which
is the same for all, and its secrets can still be recovered from t other silos.
"""

import hashlib
from collections.abc import Iterable, Sequence

from secagg import shamir, suite, transcript
from secagg.client.masked_input import MaskedInput
from secagg.client.setup import Membership
from secagg.client.state import ClientState, RejectedSender
from secagg.client.vault import Vault
from secagg.errors import Check, VerificationError
from secagg.messages import BoxDelivery, LeafDelivery, ShareBoxHeader, ShareRoot
from secagg.shamir import SHARE_BYTES
from secagg.transcript import ShareKind
from secagg.verification import check_ordered_subset, check_share_header, equal


class ShareKeys(ClientState):
    """Holds b_i and its own share of it, the keys of incoming boxes, and the pairwise mask keys."""

    __slots__ = ("_ctx", "_header", "_key_members")

    def __init__(
        self,
        membership: Membership,
        vault: Vault,
        ctx: bytes,
        key_members: tuple[str, ...],
        header: ShareBoxHeader | ShareRoot,
    ) -> None:
        super().__init__(membership, vault)
        self._ctx = ctx
        # U1.
        self._key_members = key_members
        # What this silo signed in R1.
        self._header = header

    def handle(self, message: object) -> tuple[MaskedInput, None]:
        """Take the boxes; nothing is sent until the vector is masked.

        Raises:
            UnexpectedMessageError: No delivery, or this state is over.
            VerificationError: A check failed; the secrets are erased.
        """
        self._require_live(message)
        if not isinstance(message, BoxDelivery | LeafDelivery):
            raise self._unexpected(message)
        with self._acting():
            return self._take(message), None

    def _take(self, message: BoxDelivery | LeafDelivery) -> MaskedInput:
        if not isinstance(message, BoxDelivery):
            raise VerificationError(Check.SUITE, "a delivery of another suite")
        self._check(message)
        return self._open(message)

    def _check_senders(
        self, headers: Sequence[ShareBoxHeader | ShareRoot], delivered: Iterable[str]
    ) -> None:
        """Check U2, and that something was delivered from each other silo of it."""
        senders = check_ordered_subset(
            (header.sender for header in headers),
            self._key_members,
            Check.SHARE_SET,
            Check.SHARE_SET,
        )
        if len(senders) < self._membership.parameters.least_survivors:
            raise VerificationError(Check.SHARES_SIZE, f"only {len(senders)} silos shared keys")
        if self._header not in headers:
            raise VerificationError(Check.OWN_SHARES, "this silo's header is missing or altered")
        if set(delivered) != set(senders) - {self.silo_id}:
            raise VerificationError(Check.BOX_SET, "not one ciphertext from each other member")

    def _check(self, message: BoxDelivery) -> None:
        self._check_senders(message.headers, message.ciphertexts)
        for header in message.headers:
            check_share_header(self._membership.roster, self._ctx, header, self._key_members)
            if header.sender == self.silo_id:
                continue
            box = header.box_for(self.silo_id)
            ciphertext_sha256 = hashlib.sha256(message.ciphertexts[header.sender]).digest()
            if box is None or not equal(box.ciphertext_sha256, ciphertext_sha256):
                raise VerificationError(
                    Check.BOX_DIGEST, "not the ciphertext that was signed", silo=header.sender
                )

    def _open(self, message: BoxDelivery) -> MaskedInput:
        own = self.silo_id
        rejected = []
        for header in message.headers:
            sender = header.sender
            if sender == own:
                continue
            check = self._keep_shares(header, message.ciphertexts[sender])
            if check is not None:
                rejected.append(RejectedSender(silo_id=sender, check=check))
        self._vault.wipe("box")
        members = transcript.members(self._ctx, message.headers)
        return MaskedInput(self._membership, self._vault, members, tuple(rejected))

    def _keep_shares(self, header: ShareBoxHeader, ciphertext: bytes) -> Check | None:
        """Keep both shares of a sender, or tell which check they fail."""
        sender, own = header.sender, self.silo_id
        plaintext = suite.unseal(
            self._vault.get("box", sender),
            transcript.box_associated_data(self._ctx, sender, own),
            ciphertext,
        )
        signed = header.box_for(own)
        if signed is None:
            return Check.SHARE_RECIPIENTS
        hashes = (signed.self_seed_share_sha256, signed.mask_key_share_sha256)
        return self._keep_opened(sender, plaintext, hashes)

    def _keep_opened(
        self, sender: str, plaintext: bytes | None, signed: tuple[bytes, bytes]
    ) -> Check | None:
        """Keep the shares of an opened box, or tell which check they fail.

        `signed` are the hashes of the share of b_i and of the mask's secret, as the sender signed
        them.
        """
        if plaintext is None:
            return Check.BOX_OPEN
        shares = (
            (ShareKind.SELF_SEED, plaintext[:SHARE_BYTES], signed[0]),
            (ShareKind.MASK_KEY, plaintext[SHARE_BYTES:], signed[1]),
        )
        for kind, share, sha256 in shares:
            if not shamir.is_share(share):
                return Check.SHARE_RANGE
            found = transcript.share_sha256(self._ctx, sender, self.silo_id, kind, share)
            if not equal(found, sha256):
                return Check.SHARE_HASH
        for kind, share, _ in shares:
            self._vault.put(kind, sender, share)
        return None
