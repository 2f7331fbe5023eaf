"""The roster: who may take part, as the root or enough members say, and never the coordinator.

A silo pins the root from its invite. It refuses a roster with an epoch below the newest it has
seen, and another roster with the same epoch. TLS certificates are not in it; they renew without a
new epoch. c, the colluding silos assumed, is fixed here and nowhere else.

A roster is accepted if the root signed it, or, after the first, if k members of the roster before
it approved it, where k = t(n, c) of that roster (``secagg.parameters.threshold``). Ordered checks
of an approved one:

1. The verifier holds the roster before it: the one that it accepted last, by epoch and digest.
2. Federation, coordinator key and c are the same, the epoch is the next one, and the silos that
   remain withstand c. Whatever else changes takes the root.
3. Every approval is by a member of the roster before it, each member once, over one statement that
   names both rosters by their digests. So none is good for another roster, another epoch, or the
   same change made to another roster.
4. They are at least k.

Why nobody gets in that the members do not want: of the n members at most c work with the
coordinator, and t = max(⌊(n+c)/2⌋ + 1, c + 2) > c. So among any k approvals at least k - c ≥ 2 are
by honest members, who saw what changes. The same holds for every roster of a chain of approved
ones, back to the one that the root signed: the coordinator with all of its c can add nobody, not in
any number of steps. As 2t > n + c, two different rosters approved after the same one share more
than c approvers, hence an honest one who approved both.

Covered: signature, approvals, epoch, unique ids, URIs and keys, keys that anybody can sign for. Not
covered: an honest member who approves two rosters after the same one: each is one that it saw,
silos that took the one refuse the other, and nothing but rounds is lost; rosters of more than 200
silos, which only the root signs; revocation lists; how the last roster is remembered.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg import bounds, canonical, suite
from secagg.errors import Check, MalformedMessageError, ParameterError, VerificationError
from secagg.parameters import threshold

_DOMAIN: Final = "chorale/v1/roster"
_APPROVAL_DOMAIN: Final = "chorale/v1/roster-approval"
# Then the root signs again, so that a silo which was away has a bounded way back.
MAX_APPROVED_IN_A_ROW: Final = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class RosterEntry:
    """One silo that may take part."""

    silo_id: str
    # The URI in the silo's TLS certificate.
    spiffe_uri: str
    # Ed25519 key of the silo's protocol messages.
    verification_key: bytes

    def __post_init__(self) -> None:
        bounds.require_silo_id(self.silo_id, "roster entry silo_id")
        bounds.require_spiffe_uri(self.spiffe_uri, "roster entry spiffe_uri")
        bounds.require_verification_key(self.verification_key, f"roster key of {self.silo_id}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Roster:
    """The members of a federation at one epoch."""

    federation: str
    # Grows with every join, leave, revocation or key change.
    epoch: int
    # Colluding silos assumed.
    colluding: int
    # Ed25519 key that signs descriptors, tasks and records.
    coordinator_key: bytes
    # In ascending order of silo id.
    entries: tuple[RosterEntry, ...]

    def __post_init__(self) -> None:
        bounds.require_name(self.federation, "federation")
        bounds.require_integer(self.epoch, 1, bounds.UINT64_MAX, "roster epoch")
        bounds.require_integer(self.colluding, 1, bounds.MAX_COHORT, "colluding")
        bounds.require_verification_key(self.coordinator_key, "coordinator_key")
        bounds.require_sequence(self.entries, RosterEntry, 1, bounds.MAX_ROSTER, "roster entries")
        if not bounds.is_strictly_sorted(entry.silo_id for entry in self.entries):
            raise MalformedMessageError("roster entries are not in ascending order of silo id")
        if len({entry.spiffe_uri for entry in self.entries}) != len(self.entries):
            raise MalformedMessageError("two roster entries share a SPIFFE URI")
        keys = {entry.verification_key for entry in self.entries} | {self.coordinator_key}
        if len(keys) != len(self.entries) + 1:
            raise MalformedMessageError("two roster members share a verification key")

    def signed_bytes(self) -> bytes:
        """Return what the consortium root signs."""
        return canonical.encode(
            _DOMAIN,
            self.federation,
            self.epoch,
            self.colluding,
            self.coordinator_key,
            tuple((e.silo_id, e.spiffe_uri, e.verification_key) for e in self.entries),
        )

    @property
    def sha256(self) -> bytes:
        """Digest of the signed bytes, by which descriptors name this roster."""
        return hashlib.sha256(self.signed_bytes()).digest()

    @property
    def silo_ids(self) -> tuple[str, ...]:
        """All silo ids in ascending order."""
        return tuple(entry.silo_id for entry in self.entries)

    def entry(self, silo_id: str) -> RosterEntry | None:
        """Return the entry of a silo, or None for a stranger."""
        return next((entry for entry in self.entries if entry.silo_id == silo_id), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class RosterApproval:
    """One member's approval of the next roster."""

    silo_id: str
    # By its verification key in the roster before, over the approval statement.
    signature: bytes

    def __post_init__(self) -> None:
        bounds.require_silo_id(self.silo_id, "approval silo_id")
        bounds.require_bytes(self.signature, bounds.SIGNATURE_BYTES, "approval signature")


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedRoster:
    """A roster with the root's signature or with approvals, not yet verified by being one."""

    roster: Roster
    # The root's; empty where members approved it instead.
    signature: bytes
    # In ascending order of silo id; none where the root signed.
    approvals: tuple[RosterApproval, ...] = ()

    def __post_init__(self) -> None:
        bounds.require_sequence(
            self.approvals, RosterApproval, 0, bounds.MAX_COHORT, "roster approvals"
        )
        size_bytes = 0 if self.approvals else bounds.SIGNATURE_BYTES
        bounds.require_bytes(self.signature, size_bytes, "roster signature")
        if not bounds.is_strictly_sorted(approval.silo_id for approval in self.approvals):
            raise MalformedMessageError("roster approvals are not in ascending order of silo id")


def sign_roster(roster: Roster, root_key: Ed25519PrivateKey) -> SignedRoster:
    """Sign a roster with the consortium root."""
    return SignedRoster(roster=roster, signature=suite.sign(root_key, roster.signed_bytes()))


def root_key_sha256(root_public_key: bytes) -> bytes:
    """Return the digest by which an invite pins the consortium root."""
    return hashlib.sha256(root_public_key).digest()


def approval_statement(previous: Roster, roster: Roster) -> bytes:
    """Return what a member of one roster signs to approve the next."""
    return canonical.encode(
        _APPROVAL_DOMAIN, roster.federation, roster.epoch, previous.sha256, roster.sha256
    )


def approve_roster(
    previous: Roster, roster: Roster, silo_id: str, key: Ed25519PrivateKey
) -> RosterApproval:
    """Approve a roster as a member of the one before it.

    Raises:
        VerificationError: roster_epoch or roster_approvals: no approval can make it valid.
    """
    require_approvable(previous, roster)
    signature = suite.sign(key, approval_statement(previous, roster))
    return RosterApproval(silo_id=silo_id, signature=signature)


def is_approval(previous: Roster, roster: Roster, approval: RosterApproval) -> bool:
    """Tell whether a member of the previous roster approved this very one."""
    entry = previous.entry(approval.silo_id)
    return entry is not None and suite.verify(
        entry.verification_key, approval.signature, approval_statement(previous, roster)
    )


def approvals_needed(previous: Roster) -> int:
    """Return k: how many members of a roster must approve the next one.

    Raises:
        VerificationError: roster_approvals: it is so large that only the root signs the next.
    """
    try:
        return threshold(len(previous.entries), previous.colluding)
    except ParameterError as error:
        raise VerificationError(
            Check.ROSTER_APPROVALS, f"only the root may change this roster: {error}"
        ) from error


def require_approvable(previous: Roster, roster: Roster) -> None:
    """Go on only with a roster that members of the previous one may make valid.

    Raises:
        VerificationError: roster_epoch or roster_approvals.
    """
    for what, before, after in (
        ("the federation", previous.federation, roster.federation),
        ("the coordinator's key", previous.coordinator_key, roster.coordinator_key),
        ("c", previous.colluding, roster.colluding),
    ):
        if before != after:
            raise VerificationError(Check.ROSTER_APPROVALS, f"only the root may change {what}")
    if roster.epoch != previous.epoch + 1:
        raise VerificationError(
            Check.ROSTER_EPOCH, f"epoch {roster.epoch} is not the one after {previous.epoch}"
        )
    approvals_needed(previous)
    approvals_needed(roster)


def verify_roster(
    signed: SignedRoster,
    root_public_key: bytes,
    last_epoch: int,
    last_sha256: bytes | None = None,
    previous: Roster | None = None,
) -> Roster:
    """Accept a roster, or refuse it.

    Args:
        signed: The roster as received.
        root_public_key: The root whose digest the silo pinned.
        last_epoch: The newest epoch this silo has accepted; 0 before the first.
        last_sha256: Digest of the roster accepted at `last_epoch`. Only that very roster is
            accepted again at the same epoch, so that a silo can restart.
        previous: The roster accepted at `last_epoch`, without which no approval counts.

    Raises:
        VerificationError: roster_signature, roster_epoch or roster_approvals.
    """
    roster = signed.roster
    same_again = roster.epoch == last_epoch and last_sha256 == roster.sha256
    if signed.approvals:
        # An approved roster that was accepted before is known by its digest.
        if not same_again:
            _verify_approvals(signed, last_epoch, last_sha256, previous)
    elif not suite.verify(root_public_key, signed.signature, roster.signed_bytes()):
        raise VerificationError(Check.ROSTER_SIGNATURE, "the roster is not signed by the root")
    if roster.epoch <= last_epoch and not same_again:
        raise VerificationError(
            Check.ROSTER_EPOCH, f"epoch {roster.epoch} is not newer than {last_epoch}"
        )
    return roster


def follow_rosters(
    rosters: Iterable[SignedRoster],
    root_public_key: bytes,
    last_epoch: int,
    last_sha256: bytes | None = None,
) -> Roster:
    """Accept rosters one after the other, from the one accepted last or from one the root signed.

    They come in ascending order of epoch, and the first may be the one accepted last; the last of
    them is returned. The silo pinned the digest of the root's key. `last_epoch` is the newest that
    this silo has accepted, 0 before the first, and `last_sha256` the digest of the roster accepted
    then.

    Raises:
        VerificationError: roster_signature, roster_epoch or roster_approvals.
    """
    previous: Roster | None = None
    for signed in rosters:
        previous = verify_roster(signed, root_public_key, last_epoch, last_sha256, previous)
        last_epoch, last_sha256 = previous.epoch, previous.sha256
    if previous is None:
        raise VerificationError(Check.ROSTER_SIGNATURE, "there is no roster")
    return previous


def _verify_approvals(
    signed: SignedRoster, last_epoch: int, last_sha256: bytes | None, previous: Roster | None
) -> None:
    roster = signed.roster
    if roster.epoch <= last_epoch:
        raise VerificationError(
            Check.ROSTER_EPOCH, f"epoch {roster.epoch} is not newer than {last_epoch}"
        )
    if previous is None or (previous.epoch, previous.sha256) != (last_epoch, last_sha256):
        raise VerificationError(
            Check.ROSTER_APPROVALS,
            f"epoch {roster.epoch} was approved by members of a roster that is not the newest one "
            f"accepted here, of epoch {last_epoch}",
        )
    require_approvable(previous, roster)
    for approval in signed.approvals:
        if not is_approval(previous, roster, approval):
            raise VerificationError(
                Check.ROSTER_APPROVALS,
                "not an approval of this roster by a member of the one before it",
                silo=approval.silo_id,
            )
    needed = approvals_needed(previous)
    if len(signed.approvals) < needed:
        raise VerificationError(
            Check.ROSTER_APPROVALS,
            f"{len(signed.approvals)} members approved it, {needed} are needed",
        )
