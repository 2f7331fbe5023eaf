"""R3 signed, waiting for the others' signatures; releases one kind of share per peer, once.

Verified in order: the signers come in order without repeats and are survivors; every signature is
over the very bytes this silo signed; there are at least t. Since 2t > n + c, no other survivor set
can also gather t signatures.

Then for a survivor the share of b_j goes out, for a silo that dropped after sharing keys the share
of msk_j, in suite v2 of its mask seed, never both. In suite v2 the secret of each pair with a silo
that dropped goes out too, unless this silo masked without it. Then everything is erased.
"""

from dataclasses import replace

from secagg.client.setup import Membership
from secagg.client.state import ClientState, Finished
from secagg.client.vault import Vault
from secagg.errors import Check, VerificationError
from secagg.messages import (
    ConsistencySignatures,
    PairSecret,
    UnmaskingShare,
    UnmaskingShares,
    agreement_bytes,
)
from secagg.transcript import Members, ShareKind
from secagg.verification import check_ordered_subset, check_signature


class Unmask(ClientState):
    """Holds the shares received and what this silo signed."""

    __slots__ = ("_members", "_rejected", "_survivors", "_survivors_sha256")

    def __init__(
        self,
        membership: Membership,
        vault: Vault,
        *,
        members: Members,
        survivors: tuple[str, ...],
        survivors_sha256: bytes,
        rejected: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(membership, vault)
        # Whose pair secrets this silo masked without; None in suite v1.
        self._rejected = rejected
        self._members = members
        self._survivors = survivors
        self._survivors_sha256 = survivors_sha256

    @property
    def survivors(self) -> tuple[str, ...]:
        """U3 as signed."""
        return self._survivors

    def handle(self, message: object) -> tuple[Finished, UnmaskingShares]:
        """Take the signatures and release the shares.

        Raises:
            UnexpectedMessageError: Not ConsistencySignatures, or this state is over.
            VerificationError: A check failed; the secrets are erased.
        """
        self._require_live(message)
        if not isinstance(message, ConsistencySignatures):
            raise self._unexpected(message)
        with self._acting():
            self._check(message)
            shares = self._release()
            self._vault.wipe()
        return Finished(silo_id=self.silo_id, identity=self.identity), shares

    def _check(self, message: ConsistencySignatures) -> None:
        signers = check_ordered_subset(
            (signature.silo_id for signature in message.signatures),
            self._survivors,
            Check.AGREEMENT_SET,
            Check.AGREEMENT_SET,
        )
        agreed = agreement_bytes(self._members.ctx, self._members.sha256, self._survivors_sha256)
        for signature in message.signatures:
            check_signature(
                self._membership.roster,
                signature.silo_id,
                signature.signature,
                agreed,
                Check.AGREEMENT_SIGNATURES,
            )
        if len(signers) < self._membership.parameters.t:
            raise VerificationError(Check.AGREEMENT_SIZE, f"only {len(signers)} silos agreed")

    def _release(self) -> UnmaskingShares:
        alive = [silo for silo in self._members.silo_ids if silo in self._survivors]
        dropped = [silo for silo in self._members.silo_ids if silo not in self._survivors]
        unsigned = UnmaskingShares(
            silo_id=self.silo_id,
            self_seed_shares=self._shares(ShareKind.SELF_SEED, alive),
            mask_key_shares=self._shares(ShareKind.MASK_KEY, dropped),
            signature=bytes(64),
            pair_secrets=self._pair_secrets(dropped),
        )
        signed_bytes = unsigned.signed_bytes(self._members.ctx, self._survivors_sha256)
        return replace(unsigned, signature=self._membership.sign(signed_bytes))

    def _shares(self, kind: ShareKind, owners: list[str]) -> tuple[UnmaskingShare, ...]:
        # A sender rejected in R1 has no share here.
        return tuple(
            UnmaskingShare(owner=owner, share=bytes(self._vault.get(kind, owner)))
            for owner in owners
            if self._vault.has(kind, owner)
        )

    def _pair_secrets(self, dropped: list[str]) -> tuple[PairSecret, ...] | None:
        rejected = self._rejected
        if rejected is None:
            return None
        return tuple(
            PairSecret(silo_id=silo, secret=bytes(self._vault.get("pair", silo)))
            for silo in dropped
            if silo not in rejected
        )
