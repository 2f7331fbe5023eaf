"""R4 at the coordinator: gather shares and recover what must be subtracted.

A share that does not match the hash its dealer signed is discarded and its sender named, so up to
n - t corrupt shares cost a look-up each and never a search over subsets. A recovered seed must
match its commitment and a recovered mask key its signed public key; shares beyond t must lie on the
same polynomial, or their dealer is named.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from secagg import shamir, suite, transcript
from secagg.errors import Check, VerificationError
from secagg.messages import ShareBoxHeader, UnmaskingShare, UnmaskingShares
from secagg.prg import Mask
from secagg.server.state import Aggregation, ServerState
from secagg.server.unmasking import Unmasking
from secagg.shamir import Interpolation
from secagg.transcript import Members, ShareKind
from secagg.verification import check_ordered_subset, check_signature, equal


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedShare:
    """A share that was discarded."""

    sender: str
    owner: str
    kind: ShareKind


class CollectUnmasking(ServerState[UnmaskingShares]):
    """Waits for the shares of each survivor."""

    __slots__ = (
        "_mask_keys",
        "_members",
        "_rejected",
        "_share_headers",
        "_shares",
        "_survivors",
        "_survivors_sha256",
    )

    def __init__(
        self,
        aggregation: Aggregation,
        members: Members,
        survivors: tuple[str, ...],
        survivors_sha256: bytes,
        *,
        mask_keys: Mapping[str, bytes],
        share_headers: Mapping[str, ShareBoxHeader],
    ) -> None:
        super().__init__(aggregation, survivors)
        self._members = members
        self._survivors = survivors
        self._survivors_sha256 = survivors_sha256
        self._mask_keys = mask_keys
        self._share_headers = share_headers
        self._rejected: list[RejectedShare] = []
        # Good shares by x, for each secret that is needed.
        self._shares: dict[tuple[ShareKind, str], dict[int, bytes]] = {
            (self._kind(owner), owner): {} for owner in members.silo_ids
        }

    @property
    def rejected(self) -> tuple[RejectedShare, ...]:
        """The shares discarded so far, by sender."""
        return tuple(self._rejected)

    @property
    def survivors(self) -> tuple[str, ...]:
        """U3."""
        return self._survivors

    @property
    def ready(self) -> bool:
        """Whether every secret has t good shares."""
        return all(len(shares) >= self._needed for shares in self._shares.values())

    @property
    def _needed(self) -> int:
        return self._aggregation.parameters.t

    def receive(self, message: UnmaskingShares) -> bool:
        """Take one silo's shares, keep the good ones, and say whether they are new.

        Raises:
            UnexpectedMessageError: The state is closed.
            VerificationError: sender, duplicate, unmask_signature or unmask_kind.
        """
        sender = message.silo_id
        if self._is_repeat(sender, message):
            return False
        check_signature(
            self._aggregation.roster,
            sender,
            message.signature,
            message.signed_bytes(self._members.ctx, self._survivors_sha256),
            Check.UNMASK_SIGNATURE,
        )
        offered = (
            (ShareKind.SELF_SEED, message.self_seed_shares),
            (ShareKind.MASK_KEY, message.mask_key_shares),
        )
        for kind, shares in offered:
            owners = [owner for wanted, owner in self._shares if wanted is kind]
            check_ordered_subset(
                (share.owner for share in shares), owners, Check.UNMASK_KIND, Check.UNMASK_KIND
            )
        self._received[sender] = message
        x = self._aggregation.descriptor.cohort.index(sender) + 1
        for kind, shares in offered:
            for share in shares:
                self._keep(sender, x, kind, share)
        return True

    def finish(self) -> Unmasking:
        """Recover the secrets of the masks to take off the accumulator.

        Raises:
            UnexpectedMessageError: Already finished.
            VerificationError: share_count; or commitment, mask_key or share_range, which name the
                dealer whose signed shares do not hide what it committed to.
        """
        self._require_open()
        if not self.ready:
            raise VerificationError(Check.SHARE_COUNT, f"a secret lacks {self._needed} shares")
        self._closed = True
        interpolations: dict[tuple[int, ...], Interpolation] = {}
        masks: list[Mask] = []
        inconsistent = []
        for (kind, owner), shares in self._shares.items():
            xs = tuple(sorted(shares)[: self._needed])
            if xs not in interpolations:
                interpolations[xs] = Interpolation(xs, self._needed)
            try:
                opened = interpolations[xs].open(shares)
            except VerificationError as error:
                raise VerificationError(error.check, "the dealt shares", silo=owner) from error
            if not opened.spares_agree:
                inconsistent.append(owner)
            if kind is ShareKind.SELF_SEED:
                masks.append(self._self_mask(owner, opened.secret))
            else:
                masks.extend(self._pairwise_masks(owner, opened.secret))
        return Unmasking(
            masks=tuple(masks),
            words=self._aggregation.descriptor.words,
            survivors=self._survivors,
            rejected_senders=tuple(sorted({share.sender for share in self._rejected})),
            inconsistent_dealers=tuple(sorted(inconsistent)),
        )

    def _kind(self, owner: str) -> ShareKind:
        return ShareKind.SELF_SEED if owner in self._survivors else ShareKind.MASK_KEY

    def _keep(self, sender: str, x: int, kind: ShareKind, share: UnmaskingShare) -> None:
        header = self._share_headers[share.owner]
        if share.owner == sender:
            signed = header.own_self_seed_share_sha256
        else:
            box = header.box_for(sender)
            # Safety: R1 headers were accepted only with one box for each other silo of U1.
            if box is None:
                raise VerificationError(Check.SHARE_RECIPIENTS, "no box", silo=share.owner)
            seed = kind is ShareKind.SELF_SEED
            signed = box.self_seed_share_sha256 if seed else box.mask_key_share_sha256
        found = transcript.share_sha256(self._members.ctx, share.owner, sender, kind, share.share)
        if not equal(found, signed) or not shamir.is_share(share.share):
            self._rejected.append(RejectedShare(sender=sender, owner=share.owner, kind=kind))
            return
        self._shares[kind, share.owner][x] = share.share

    def _self_mask(self, owner: str, self_seed: bytes) -> Mask:
        ctx = self._members.ctx
        committed = self._share_headers[owner].self_seed_commitment
        if not equal(transcript.self_seed_commitment(ctx, owner, self_seed), committed):
            raise VerificationError(
                Check.COMMITMENT, "the recovered seed is not the committed one", silo=owner
            )
        return Mask(key=suite.derive_key(self_seed, "self", ctx, owner), sign=-1)

    def _pairwise_masks(self, dropped: str, mask_private: bytes) -> list[Mask]:
        if not equal(suite.agreement_public_key(mask_private), self._mask_keys[dropped]):
            raise VerificationError(
                Check.MASK_KEY, "the recovered key is not the advertised one", silo=dropped
            )
        masks = []
        private = suite.agreement_key(mask_private)
        for survivor in self._survivors:
            pair = suite.agree(private, self._mask_keys[survivor])
            low, high = sorted((survivor, dropped))
            key = suite.derive_key(pair, "mask", self._members.ctx, low, high)
            # The survivor added it when the dropped silo comes later, so it is taken off with the
            # other sign.
            masks.append(Mask(key=key, sign=-1 if dropped > survivor else 1))
        return masks
