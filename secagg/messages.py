"""The messages of R0 to R4, with what each signature covers.

Field bounds are checked when a message is made; order, senders and signatures are for the states.
Every ``signed_bytes`` names its message in the domain and starts with what binds it to one
aggregation: the descriptor's digest in R0, ctx = H(D ‖ bundles) from then on.

Covered: the content of each step. Not covered: transport, chunking, who may send when.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from secagg import bounds, canonical, hybrid, merkle
from secagg.errors import MalformedMessageError
from secagg.shamir import SHARE_BYTES
from secagg.suite import TAG_BYTES

# A box holds a share of b_i and a share of msk_i.
BOX_BYTES: Final = 2 * SHARE_BYTES + TAG_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class KemKeys:
    """The ML-KEM-768 halves of a bundle's two keys."""

    cipher_key: bytes
    mask_key: bytes

    def __post_init__(self) -> None:
        bounds.require_bytes(self.cipher_key, hybrid.KEM_KEY_BYTES, "KEM cipher_key")
        bounds.require_bytes(self.mask_key, hybrid.KEM_KEY_BYTES, "KEM mask_key")

    def fields(self) -> tuple[canonical.Field, ...]:
        """Return the signed fields in order."""
        return (self.cipher_key, self.mask_key)


@dataclass(frozen=True, kw_only=True, slots=True)
class DebitHead:
    """A record of the silo's ledger that charges a release, or marks one of mode none as spent."""

    # 0, with a digest of zeros, before the first.
    seq: int
    sha256: bytes

    def __post_init__(self) -> None:
        bounds.require_integer(self.seq, 0, bounds.UINT64_MAX, "debit seq")
        bounds.require_bytes(self.sha256, bounds.DIGEST_BYTES, "debit sha256")

    def fields(self) -> tuple[canonical.Field, ...]:
        """Return the signed fields in order."""
        return (self.seq, self.sha256)


NO_DEBIT: Final = DebitHead(seq=0, sha256=bytes(bounds.DIGEST_BYTES))


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyBundle:
    """R0: two X25519 keys made for this aggregation alone, and what the silo declares."""

    silo_id: str
    # For the boxes that carry shares.
    cipher_key: bytes
    # For the pairwise masks.
    mask_key: bytes
    # Head of the silo's privacy ledger, so that peers can prove a rollback.
    ledger_seq: int
    ledger_sha256: bytes
    # Environment families, in ascending order.
    families: tuple[str, ...]
    signature: bytes
    # From version 2 on: the ML-KEM halves of the two keys, and the newest charge.
    kem_keys: KemKeys | None = None
    debit: DebitHead | None = None
    # From version 2 on: the silo lets the cohorts of a run without noise vary. They grow only
    # where every silo of U1 says so.
    cohort_may_vary: bool = False

    def __post_init__(self) -> None:
        if (self.kem_keys is None) != (self.debit is None):
            raise MalformedMessageError("a bundle has KEM keys and a debit head, or neither")
        if type(self.cohort_may_vary) is not bool:
            raise MalformedMessageError("cohort_may_vary is no bool")
        if self.cohort_may_vary and self.kem_keys is None:
            raise MalformedMessageError("cohort_may_vary belongs to version 2 and later")
        bounds.require_silo_id(self.silo_id, "bundle silo_id")
        bounds.require_bytes(self.cipher_key, bounds.KEY_BYTES, "cipher_key")
        bounds.require_bytes(self.mask_key, bounds.KEY_BYTES, "mask_key")
        bounds.require_integer(self.ledger_seq, 0, bounds.UINT64_MAX, "ledger_seq")
        bounds.require_bytes(self.ledger_sha256, bounds.DIGEST_BYTES, "ledger_sha256")
        bounds.require_families(self.families, "bundle families")
        bounds.require_bytes(self.signature, bounds.SIGNATURE_BYTES, "bundle signature")

    def fields(self) -> tuple[canonical.Field, ...]:
        """Return the signed fields in order."""
        later: tuple[canonical.Field, ...] = ()
        if self.kem_keys is not None and self.debit is not None:
            later = (*self.kem_keys.fields(), *self.debit.fields(), self.cohort_may_vary)
        return (
            self.silo_id,
            self.cipher_key,
            self.mask_key,
            self.ledger_seq,
            self.ledger_sha256,
            self.families,
            *later,
        )

    def signed_bytes(self, descriptor_sha256: bytes) -> bytes:
        """Return what the silo signs."""
        domain = "chorale/v1/key-bundle" if self.kem_keys is None else "chorale/v2/key-bundle"
        return canonical.encode(domain, descriptor_sha256, *self.fields())


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyBundles:
    """All bundles of U1, in ascending order of silo id."""

    bundles: tuple[KeyBundle, ...]

    def __post_init__(self) -> None:
        bounds.require_sequence(self.bundles, KeyBundle, 1, bounds.MAX_COHORT, "bundles")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareBox:
    """One encrypted pair of shares, with the hashes that make a corrupt one attributable."""

    recipient: str
    ciphertext: bytes
    self_seed_share_sha256: bytes
    mask_key_share_sha256: bytes

    def __post_init__(self) -> None:
        bounds.require_silo_id(self.recipient, "box recipient")
        bounds.require_bytes(self.ciphertext, BOX_BYTES, "box ciphertext")
        bounds.require_bytes(self.self_seed_share_sha256, bounds.DIGEST_BYTES, "share hash")
        bounds.require_bytes(self.mask_key_share_sha256, bounds.DIGEST_BYTES, "share hash")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareBoxDigest:
    """A ShareBox with the ciphertext replaced by its SHA-256."""

    recipient: str
    ciphertext_sha256: bytes
    self_seed_share_sha256: bytes
    mask_key_share_sha256: bytes

    def __post_init__(self) -> None:
        bounds.require_silo_id(self.recipient, "box recipient")
        bounds.require_bytes(self.ciphertext_sha256, bounds.DIGEST_BYTES, "ciphertext_sha256")
        bounds.require_bytes(self.self_seed_share_sha256, bounds.DIGEST_BYTES, "share hash")
        bounds.require_bytes(self.mask_key_share_sha256, bounds.DIGEST_BYTES, "share hash")

    def fields(self) -> tuple[canonical.Field, ...]:
        """Return the signed fields in order."""
        return (
            self.recipient,
            self.ciphertext_sha256,
            self.self_seed_share_sha256,
            self.mask_key_share_sha256,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareBoxHeader:
    """R1 without the ciphertexts. The sender's signature is over this form."""

    sender: str
    # One for each other silo of U1, in ascending order of recipient.
    boxes: tuple[ShareBoxDigest, ...]
    # H(b_i), checked when b_i is reconstructed.
    self_seed_commitment: bytes
    # Hash of the share of b_i that the sender keeps.
    own_self_seed_share_sha256: bytes
    signature: bytes

    def __post_init__(self) -> None:
        bounds.require_silo_id(self.sender, "boxes sender")
        bounds.require_sequence(self.boxes, ShareBoxDigest, 1, bounds.MAX_COHORT, "box digests")
        bounds.require_bytes(self.self_seed_commitment, bounds.DIGEST_BYTES, "commitment")
        bounds.require_bytes(self.own_self_seed_share_sha256, bounds.DIGEST_BYTES, "share hash")
        bounds.require_bytes(self.signature, bounds.SIGNATURE_BYTES, "boxes signature")

    def signed_bytes(self, ctx: bytes) -> bytes:
        """Return what the sender signs."""
        return canonical.encode(
            "chorale/v1/share-boxes",
            ctx,
            self.sender,
            tuple(box.fields() for box in self.boxes),
            self.self_seed_commitment,
            self.own_self_seed_share_sha256,
        )

    def box_for(self, recipient: str) -> ShareBoxDigest | None:
        """Return the digest of one recipient's box."""
        return next((box for box in self.boxes if box.recipient == recipient), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareBoxes:
    """R1: one box for each other silo of U1."""

    sender: str
    boxes: tuple[ShareBox, ...]
    self_seed_commitment: bytes
    own_self_seed_share_sha256: bytes
    signature: bytes

    def __post_init__(self) -> None:
        bounds.require_sequence(self.boxes, ShareBox, 1, bounds.MAX_COHORT, "boxes")
        # The header checks the remaining fields.
        self.header()

    def header(self) -> ShareBoxHeader:
        """Return the form that is signed and shown to every silo."""
        return ShareBoxHeader(
            sender=self.sender,
            boxes=tuple(
                ShareBoxDigest(
                    recipient=box.recipient,
                    ciphertext_sha256=hashlib.sha256(box.ciphertext).digest(),
                    self_seed_share_sha256=box.self_seed_share_sha256,
                    mask_key_share_sha256=box.mask_key_share_sha256,
                )
                for box in self.boxes
            ),
            self_seed_commitment=self.self_seed_commitment,
            own_self_seed_share_sha256=self.own_self_seed_share_sha256,
            signature=self.signature,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BoxDelivery:
    """Every R1 header, so that U2 is the same for all, and this silo's own boxes."""

    # In ascending order of sender; this silo's own header included.
    headers: tuple[ShareBoxHeader, ...]
    # One ciphertext for this silo by sender.
    ciphertexts: Mapping[str, bytes]

    def __post_init__(self) -> None:
        bounds.require_sequence(self.headers, ShareBoxHeader, 1, bounds.MAX_COHORT, "headers")
        if len(self.ciphertexts) > bounds.MAX_COHORT:
            raise MalformedMessageError("too many ciphertexts")
        for sender, ciphertext in self.ciphertexts.items():
            bounds.require_silo_id(sender, "ciphertext sender")
            bounds.require_bytes(ciphertext, BOX_BYTES, "box ciphertext")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareLeaf:
    """What one silo deals to one other from version 2 on: a leaf of the sender's tree of R1."""

    recipient: str
    # ML-KEM encapsulation of the box's key, and the box.
    box_kem: bytes
    ciphertext: bytes
    self_seed_share_sha256: bytes
    mask_key_share_sha256: bytes
    # The lower id of a pair deals its secret: encapsulation, sealed s_ij and H(ctx ‖ i→j ‖ s_ij).
    # All three are empty where the sender comes after the recipient.
    mask_kem: bytes = b""
    sealed: bytes = b""
    pair_secret_sha256: bytes = b""

    def __post_init__(self) -> None:
        bounds.require_silo_id(self.recipient, "leaf recipient")
        bounds.require_bytes(self.box_kem, hybrid.KEM_CIPHERTEXT_BYTES, "box encapsulation")
        bounds.require_bytes(self.ciphertext, BOX_BYTES, "box ciphertext")
        bounds.require_bytes(self.self_seed_share_sha256, bounds.DIGEST_BYTES, "share hash")
        bounds.require_bytes(self.mask_key_share_sha256, bounds.DIGEST_BYTES, "share hash")
        deals = bool(self.mask_kem)
        sizes = (
            (self.mask_kem, hybrid.KEM_CIPHERTEXT_BYTES, "mask encapsulation"),
            (self.sealed, hybrid.SEALED_BYTES, "sealed pair secret"),
            (self.pair_secret_sha256, bounds.DIGEST_BYTES, "pair secret hash"),
        )
        for value, size_bytes, name in sizes:
            bounds.require_bytes(value, size_bytes if deals else 0, name)

    @property
    def deals(self) -> bool:
        """Whether it carries the pair's secret."""
        return bool(self.mask_kem)

    def signed_bytes(self, ctx: bytes, sender: str) -> bytes:
        """Return what the leaf's hash is over."""
        return canonical.encode(
            "chorale/v2/r1",
            ctx,
            sender,
            self.recipient,
            self.box_kem,
            self.ciphertext,
            self.mask_kem,
            self.sealed,
            self.self_seed_share_sha256,
            self.mask_key_share_sha256,
            self.pair_secret_sha256,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareRoot:
    """R1 from version 2 on, as it is signed: the root of the sender's leaves."""

    sender: str
    leaf_count: int
    root: bytes
    # H(b_i), checked when b_i is reconstructed.
    self_seed_commitment: bytes
    # Hash of the share of b_i that the sender keeps.
    own_self_seed_share_sha256: bytes
    signature: bytes

    def __post_init__(self) -> None:
        bounds.require_silo_id(self.sender, "leaves sender")
        bounds.require_integer(self.leaf_count, 1, bounds.MAX_COHORT - 1, "leaf_count")
        bounds.require_bytes(self.root, bounds.DIGEST_BYTES, "root of the leaves")
        bounds.require_bytes(self.self_seed_commitment, bounds.DIGEST_BYTES, "commitment")
        bounds.require_bytes(self.own_self_seed_share_sha256, bounds.DIGEST_BYTES, "share hash")
        bounds.require_bytes(self.signature, bounds.SIGNATURE_BYTES, "root signature")

    def signed_bytes(self, ctx: bytes) -> bytes:
        """Return what the sender signs."""
        return canonical.encode(
            "chorale/v2/share-root",
            ctx,
            self.sender,
            self.leaf_count,
            self.root,
            self.self_seed_commitment,
            self.own_self_seed_share_sha256,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareLeaves:
    """R1 from version 2 on: a leaf for each other silo of U1, in ascending order of recipient."""

    root: ShareRoot
    leaves: tuple[ShareLeaf, ...]

    def __post_init__(self) -> None:
        if type(self.root) is not ShareRoot:
            raise MalformedMessageError("the signed root is missing")
        bounds.require_sequence(self.leaves, ShareLeaf, 1, bounds.MAX_COHORT - 1, "leaves")

    @property
    def sender(self) -> str:
        """Who deals."""
        return self.root.sender


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveredLeaf:
    """One sender's leaf for this silo, and the hashes that lead from it to the signed root."""

    leaf: ShareLeaf
    # From the leaf's sibling upwards (RFC 6962 §2.1.1).
    path: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if type(self.leaf) is not ShareLeaf:
            raise MalformedMessageError("the leaf is missing")
        bounds.require_sequence(self.path, bytes, 0, merkle.MAX_PATH, "path")
        for step in self.path:
            bounds.require_bytes(step, bounds.DIGEST_BYTES, "path step")


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafDelivery:
    """Every signed root, so that U2 is the same for all, and this silo's own leaves."""

    # In ascending order of sender; this silo's own root included.
    roots: tuple[ShareRoot, ...]
    # One leaf for this silo by sender.
    leaves: Mapping[str, DeliveredLeaf]

    def __post_init__(self) -> None:
        bounds.require_sequence(self.roots, ShareRoot, 1, bounds.MAX_COHORT, "roots")
        if len(self.leaves) > bounds.MAX_COHORT:
            raise MalformedMessageError("too many leaves")
        for sender in self.leaves:
            bounds.require_silo_id(sender, "leaf sender")


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedInputHeader:
    """R2's signed statement of the upload; the bytes travel as chunks."""

    silo_id: str
    length_bytes: int
    # SHA-256 of the bytes; from version 2 on the root of their digest tree.
    masked_sha256: bytes
    signature: bytes
    # From version 2 on: this attempt's own charge, and the senders whose pair secret is missing
    # from the mask, in ascending order.
    debit: DebitHead | None = None
    rejected: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        bounds.require_sequence(self.rejected, str, 0, bounds.MAX_COHORT, "rejected senders")
        for sender in self.rejected:
            bounds.require_silo_id(sender, "rejected sender")
        if not bounds.is_strictly_sorted(self.rejected) or self.silo_id in self.rejected:
            raise MalformedMessageError("rejected senders are others, in ascending order")
        if self.rejected and self.debit is None:
            raise MalformedMessageError("rejected senders belong to version 2 and later")
        bounds.require_silo_id(self.silo_id, "upload silo_id")
        bounds.require_integer(self.length_bytes, 1, bounds.UINT64_MAX, "length_bytes")
        bounds.require_bytes(self.masked_sha256, bounds.DIGEST_BYTES, "masked_sha256")
        bounds.require_bytes(self.signature, bounds.SIGNATURE_BYTES, "upload signature")

    def fields(self) -> tuple[canonical.Field, ...]:
        """Return the signed fields in order."""
        later: tuple[canonical.Field, ...] = ()
        if self.debit is not None:
            later = (*self.debit.fields(), self.rejected)
        return (self.silo_id, self.length_bytes, self.masked_sha256, *later)

    def signed_bytes(self, ctx: bytes, members_sha256: bytes) -> bytes:
        """Return what the silo signs; `members_sha256` is H(U2)."""
        domain = "chorale/v1/masked-input" if self.debit is None else "chorale/v2/masked-input"
        return canonical.encode(domain, ctx, members_sha256, *self.fields())


@dataclass(frozen=True, kw_only=True, slots=True)
class Survivors:
    """U3, shown by the signed upload headers in ascending order of silo id."""

    headers: tuple[MaskedInputHeader, ...]

    def __post_init__(self) -> None:
        bounds.require_sequence(self.headers, MaskedInputHeader, 1, bounds.MAX_COHORT, "survivors")


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsistencySignature:
    """R3: one signature on U2 and U3, once per ctx."""

    silo_id: str
    signature: bytes

    def __post_init__(self) -> None:
        bounds.require_silo_id(self.silo_id, "agreement silo_id")
        bounds.require_bytes(self.signature, bounds.SIGNATURE_BYTES, "agreement signature")

    def signed_bytes(self, ctx: bytes, members_sha256: bytes, survivors_sha256: bytes) -> bytes:
        """Return what the silo signs; the digests are H(U2) and H(U3)."""
        return agreement_bytes(ctx, members_sha256, survivors_sha256)


def agreement_bytes(ctx: bytes, members_sha256: bytes, survivors_sha256: bytes) -> bytes:
    """Return what every silo signs in R3. It names no silo: all sign the same bytes."""
    return canonical.encode("chorale/v1/consistency", ctx, members_sha256, survivors_sha256)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsistencySignatures:
    """At least t signatures of R3, in ascending order of silo id."""

    signatures: tuple[ConsistencySignature, ...]

    def __post_init__(self) -> None:
        bounds.require_sequence(
            self.signatures, ConsistencySignature, 1, bounds.MAX_COHORT, "agreement signatures"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class UnmaskingShare:
    """A share of one silo's secret."""

    # Whose secret this is a share of.
    owner: str
    share: bytes = field(repr=False)

    def __post_init__(self) -> None:
        bounds.require_silo_id(self.owner, "share owner")
        bounds.require_bytes(self.share, SHARE_BYTES, "share")

    def fields(self) -> tuple[canonical.Field, ...]:
        """Return the signed fields in order."""
        return (self.owner, self.share)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairSecret:
    """s_ij of a survivor and a silo that dropped, whichever of the two dealt it."""

    # The one that dropped.
    silo_id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        bounds.require_silo_id(self.silo_id, "pair secret silo_id")
        bounds.require_bytes(self.secret, hybrid.SECRET_BYTES, "pair secret")

    def fields(self) -> tuple[canonical.Field, ...]:
        """Return the signed fields in order."""
        return (self.silo_id, self.secret)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnmaskingShares:
    """R4: exactly one kind of share per peer."""

    silo_id: str
    # Of survivors, in ascending order of owner; the silo's own included.
    self_seed_shares: tuple[UnmaskingShare, ...]
    # Of silos that shared keys and then dropped, in ascending order of owner.
    mask_key_shares: tuple[UnmaskingShare, ...]
    signature: bytes
    # From version 2 on: of each pair that the sender has with a silo that dropped and that it did
    # not reject, in ascending order. None before.
    pair_secrets: tuple[PairSecret, ...] | None = None

    def __post_init__(self) -> None:
        if self.pair_secrets is not None:
            bounds.require_sequence(
                self.pair_secrets, PairSecret, 0, bounds.MAX_COHORT, "pair secrets"
            )
        bounds.require_silo_id(self.silo_id, "shares silo_id")
        for shares in (self.self_seed_shares, self.mask_key_shares):
            bounds.require_sequence(shares, UnmaskingShare, 0, bounds.MAX_COHORT, "shares")
        bounds.require_bytes(self.signature, bounds.SIGNATURE_BYTES, "shares signature")

    def signed_bytes(self, ctx: bytes, survivors_sha256: bytes) -> bytes:
        """Return what the silo signs; `survivors_sha256` is H(U3)."""
        domain = "chorale/v1/unmasking-shares"
        later: tuple[canonical.Field, ...] = ()
        if self.pair_secrets is not None:
            domain = "chorale/v2/unmasking-shares"
            later = (tuple(secret.fields() for secret in self.pair_secrets),)
        return canonical.encode(
            domain,
            ctx,
            survivors_sha256,
            self.silo_id,
            tuple(share.fields() for share in self.self_seed_shares),
            tuple(share.fields() for share in self.mask_key_shares),
            *later,
        )
