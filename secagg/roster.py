"""The roster: who may take part, signed by the consortium root and never by the coordinator.

A silo pins the root from its invite. It refuses a roster with an epoch below the newest it has
seen, and another roster with the same epoch. TLS certificates are not in it; they renew without a
new epoch. c, the colluding silos assumed, is fixed here and nowhere else.

Covered: signature, epoch, unique ids, URIs and keys. Not covered: k-of-n signatures, revocation
lists, how the last epoch is remembered.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg import bounds, canonical, suite
from secagg.errors import Check, MalformedMessageError, VerificationError

_DOMAIN: Final = "chorale/v1/roster"


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
        bounds.require_bytes(self.verification_key, bounds.KEY_BYTES, "roster entry key")


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
        bounds.require_bytes(self.coordinator_key, bounds.KEY_BYTES, "coordinator_key")
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
class SignedRoster:
    """A roster with the root's signature, not yet verified by being one of these."""

    roster: Roster
    signature: bytes

    def __post_init__(self) -> None:
        bounds.require_bytes(self.signature, bounds.SIGNATURE_BYTES, "roster signature")


def sign_roster(roster: Roster, root_key: Ed25519PrivateKey) -> SignedRoster:
    """Sign a roster with the consortium root."""
    return SignedRoster(roster=roster, signature=suite.sign(root_key, roster.signed_bytes()))


def root_key_sha256(root_public_key: bytes) -> bytes:
    """Return the digest by which an invite pins the consortium root."""
    return hashlib.sha256(root_public_key).digest()


def verify_roster(
    signed: SignedRoster,
    root_public_key: bytes,
    last_epoch: int,
    last_sha256: bytes | None = None,
) -> Roster:
    """Accept a roster, or refuse it.

    Args:
        signed: The roster as received.
        root_public_key: The root whose digest the silo pinned.
        last_epoch: The newest epoch this silo has accepted; 0 before the first.
        last_sha256: Digest of the roster accepted at `last_epoch`. Only that very roster is
            accepted again at the same epoch, so that a silo can restart.

    Returns:
        The roster.

    Raises:
        VerificationError: roster_signature or roster_epoch.
    """
    roster = signed.roster
    if not suite.verify(root_public_key, signed.signature, roster.signed_bytes()):
        raise VerificationError(Check.ROSTER_SIGNATURE, "the roster is not signed by the root")
    same_again = roster.epoch == last_epoch and last_sha256 == roster.sha256
    if roster.epoch <= last_epoch and not same_again:
        raise VerificationError(
            Check.ROSTER_EPOCH, f"epoch {roster.epoch} is not newer than {last_epoch}"
        )
    return roster
