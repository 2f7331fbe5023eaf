"""R4 at the coordinator: gather shares and recover what must be subtracted.

A share that does not match the hash its dealer signed is discarded and its sender named, so up to
n - t corrupt shares cost a look-up each and never a search over subsets. A recovered seed must
match its commitment and a recovered mask key its signed public key; shares beyond t must lie on the
same polynomial, or their dealer is named. In suite v2 a survivor's secret of a pair that is not the
signed one is discarded likewise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from secagg import bounds, shamir, transcript
from secagg.errors import Check, VerificationError
from secagg.messages import PairSecret, UnmaskingShare, UnmaskingShares
from secagg.prg import Mask
from secagg.server.dealt import Dealt
from secagg.server.state import Aggregation, ServerState
from secagg.server.unmasking import Unmasking
from secagg.shamir import Interpolation
from secagg.transcript import Members, ShareKind
from secagg.verification import check_form, check_ordered_subset, check_signature, equal

PAIR: Final = "pair"


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedShare:
    """A share, or in suite v2 the secret of a pair, that was discarded."""

    sender: str
    # Whose secret it is a share of, or the other silo of the pair.
    owner: str
    # A ShareKind or PAIR.
    kind: str


class CollectUnmasking(ServerState[UnmaskingShares]):
    """Waits for the shares of each survivor."""

    __slots__ = (
        "_dealt",
        "_members",
        "_pair_secrets",
        "_rejected",
        "_shares",
        "_survivors",
        "_survivors_sha256",
        "_unpaired",
    )

    def __init__(
        self,
        aggregation: Aggregation,
        members: Members,
        unpaired: Mapping[str, tuple[str, ...]],
        survivors_sha256: bytes,
        dealt: Dealt,
    ) -> None:
        super().__init__(aggregation, unpaired)
        self._members = members
        self._survivors = tuple(unpaired)
        # Whose pair secrets each survivor masked without.
        self._unpaired = unpaired
        self._survivors_sha256 = survivors_sha256
        self._dealt = dealt
        # Good secrets by (survivor, lost silo).
        self._pair_secrets: dict[tuple[str, str], bytes] = {}
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
            VerificationError: sender, duplicate, suite, unmask_signature or unmask_kind.
        """
        sender, pairs = message.silo_id, message.pair_secrets
        if self._is_repeat(sender, message):
            return False
        check_form(
            is_hybrid=pairs is not None,
            expected=self._aggregation.descriptor.is_hybrid,
            silo_id=sender,
        )
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
        named = tuple(pair.silo_id for pair in pairs or ())
        if not bounds.is_strictly_sorted(named) or not self._paired(sender).issuperset(named):
            raise VerificationError(Check.UNMASK_KIND, "not a pair to be opened", silo=sender)
        self._received[sender] = message
        x = self._aggregation.descriptor.cohort.index(sender) + 1
        for kind, shares in offered:
            for share in shares:
                self._keep(sender, x, kind, share)
        for pair in pairs or ():
            self._keep_pair(sender, pair)
        return True

    def finish(self) -> Unmasking:
        """Recover the secrets of the masks to take off the accumulator.

        Raises:
            UnexpectedMessageError: Already finished.
            VerificationError: share_count; or commitment, mask_key, share_range or pair_secret,
                which name the dealer whose signed shares do not hide what it committed to, or whose
                pair secret is not what it signed.
        """
        self._require_open()
        if not self.ready:
            raise VerificationError(Check.SHARE_COUNT, f"a secret lacks {self._needed} shares")
        self._closed = True
        interpolations: dict[tuple[int, ...], Interpolation] = {}
        masks: list[Mask] = []
        inconsistent = []
        bad_pair_dealers: set[str] = set()
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
                released = {
                    survivor: self._pair_secrets.get((survivor, owner))
                    for survivor in self._survivors
                    if owner not in self._unpaired[survivor]
                }
                pairs = self._dealt.pair_keys(owner, opened.secret, released)
                bad_pair_dealers |= pairs.bad_dealers
                # A survivor added it when the lost silo comes later, so it is taken off with the
                # other sign.
                masks += [
                    Mask(key=key, sign=-1 if owner > survivor else 1)
                    for survivor, key in pairs.keys.items()
                ]
        return Unmasking(
            masks=tuple(masks),
            words=self._aggregation.descriptor.words,
            survivors=self._survivors,
            rejected_senders=tuple(sorted({share.sender for share in self._rejected})),
            inconsistent_dealers=tuple(sorted(inconsistent)),
            bad_pair_dealers=tuple(sorted(bad_pair_dealers)),
        )

    def _kind(self, owner: str) -> ShareKind:
        return ShareKind.SELF_SEED if owner in self._survivors else ShareKind.MASK_KEY

    def _paired(self, survivor: str) -> frozenset[str]:
        """The lost silos whose pair with a survivor is masked."""
        lost = frozenset(self._members.silo_ids) - frozenset(self._survivors)
        return lost - frozenset(self._unpaired[survivor])

    def _keep(self, sender: str, x: int, kind: ShareKind, share: UnmaskingShare) -> None:
        owner = share.owner
        if owner == sender:
            signed = self._dealt.headers[owner].own_self_seed_share_sha256
        else:
            signed = self._dealt.share_sha256(owner, sender, kind)
        found = transcript.share_sha256(self._members.ctx, owner, sender, kind, share.share)
        if not equal(found, signed) or not shamir.is_share(share.share):
            self._rejected.append(RejectedShare(sender=sender, owner=owner, kind=kind))
            return
        self._shares[kind, owner][x] = share.share

    def _keep_pair(self, sender: str, pair: PairSecret) -> None:
        if not self._dealt.is_pair_secret(sender, pair.silo_id, pair.secret):
            self._rejected.append(RejectedShare(sender=sender, owner=pair.silo_id, kind=PAIR))
            return
        self._pair_secrets[sender, pair.silo_id] = pair.secret

    def _self_mask(self, owner: str, self_seed: bytes) -> Mask:
        committed = self._dealt.headers[owner].self_seed_commitment
        found = transcript.self_seed_commitment(self._members.ctx, owner, self_seed)
        if not equal(found, committed):
            raise VerificationError(
                Check.COMMITMENT, "the recovered seed is not the committed one", silo=owner
            )
        return Mask(key=self._dealt.self_mask_key(owner, self_seed), sign=-1)
