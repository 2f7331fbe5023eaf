"""The ledger heads that peers have signed, against a peer whose ledger went back in time.

Every R0 bundle carries the head of its silo's privacy ledger under that silo's signature, which
also covers the aggregation it is for. A silo whose ledger was restored from an old copy, together
with its own memory of it, would spend twice what it had spent before; its peers remember.

Of an honest silo two things are true in whatever order a coordinator shows its bundles: there is
one record under each number, and inside a run a newer identity has a higher number, because each
identity that is joined is a new record and must be newer than the run's last. Across runs there is
no such order: a coordinator may hold back the bundles of one run until it has shown another's.

From protocol 3 on a bundle carries the newest debit as well, and the header of an upload the debit
that it was charged with. A ledger that went back grows again by attempts that nobody sees, and its
head passes the number seen; its newest debit does not, for a debit is made only where peers agreed
to go on.

Ordered invariants, for the bundles of one attempt, their signatures verified before:

1. Refused is a head that is behind the highest head that this silo has seen of that peer, or
   another one under the same number. The attempt ends; the highest head stays what it was.
2. The peer is never believed again if that cannot be an honest silo's: two records under one
   number, or a newer identity of the same run with a lower head. The proof is its own signature,
   twice. A head that is behind in another run is no proof: the same peer is taken at its word in
   the next attempt that shows the head seen or a higher one, as after putting the newest ledger
   back.
   Of the newest debit the same holds, however far the ledger has grown: it is not behind the
   highest debit seen, it is no other one under the same number, and it is in the ledger whose head
   stands beside it.
3. What was seen is durable before any share of this silo leaves; the debits of all uploads in a sum
   are durable before this silo's signature under that sum's survivors leaves.
4. What is read back from ``state.json`` is what was written, or an error; nothing is filled in. An
   earlier release wrote no debits: then none was seen.
5. Heads belong to a verification key: a silo that enrolled anew begins a new ledger. Only members
   of the roster in force are remembered.

Covered: rollback and fork of a peer's ledger that this silo has seen ahead: by its head until the
ledger is longer than what was seen, by its newest debit for ever. Not covered: runs of suite v1,
whose bundles carry no debit: a coordinator that withholds the echo lets a rolled-back silo join k
attempts that these peers do not see, each appends a record, and a ledger that passes the number
seen without showing another record under it is believed. Bundles carry heads and no chains. Nor a
head that only silos of other cohorts have
seen. Nor a coordinator that shows genuine bundles of two runs in another order than they were
signed: the attempt in which an honest peer is behind is lost, and nothing else.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from secagg.descriptor import AggregationId
from secagg.errors import Check, MalformedMessageError, VerificationError
from secagg.messages import NO_DEBIT, DebitHead, KeyBundle, KeyBundles, Survivors
from secagg.roster import Roster

__all__ = ["PeerHead", "PeerHeads"]

_DIGEST_BYTES: Final = 32
_BEHIND: Final = (
    "its ledger was rolled back, or its bundles of two runs come in another order than it signed "
    "them"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerHead:
    """The highest ledger head that a peer has signed."""

    verification_key: bytes
    """The key it signed with; a silo that enrolled anew has another key and another ledger."""
    seq: int
    """Sequence number of the record."""
    sha256: bytes
    """Its digest."""
    identity: AggregationId
    """The aggregation it was signed for; the signature covers it."""
    debit: DebitHead = NO_DEBIT
    """The highest debit that it has signed."""
    rolled_back: bool = False
    """Whether this peer has signed what no one ledger can hold."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> PeerHead:
        """Read one back.

        Raises:
            KeyError: A field is missing.
            ValueError: One is damaged.
        """
        return cls(
            verification_key=_digest(state["verification_key"]),
            seq=int(state["seq"]),
            sha256=_digest(state["sha256"]),
            identity=_identity(state["identity"]),
            debit=_debit(state["debit"]) if "debit" in state else NO_DEBIT,
            rolled_back=state["rolled_back"] is not False,
        )

    def to_state(self) -> dict[str, Any]:
        """As JSON."""
        place = self.identity
        return {
            "verification_key": self.verification_key.hex(),
            "seq": self.seq,
            "sha256": self.sha256.hex(),
            "identity": {
                "run": place.run_id,
                "round": place.round,
                "step": place.step,
                "part": place.part,
                "attempt": place.attempt,
            },
            "debit": {"seq": self.debit.seq, "sha256": self.debit.sha256.hex()},
            "rolled_back": self.rolled_back,
        }


class Remembers(Protocol):
    """What outlives the process; ``silo_agent/books/local_store.py``."""

    def peer_heads(self) -> dict[str, PeerHead]:
        """The highest head of each peer, by name."""

    def set_peer_heads(self, heads: Mapping[str, PeerHead]) -> None:
        """Replace them, durably."""


class PeerHeads:
    """What this silo knows of its peers' ledgers."""

    def __init__(self, store: Remembers) -> None:
        self._store = store

    def admit(self, bundles: KeyBundles, roster: Roster, identity: AggregationId) -> None:
        """Compare the heads of a verified attempt with those seen before; remember the higher ones.

        Raises:
            VerificationError: ledger_head or debit_head, naming the peer that is behind or shows a
                fork.
            LocalStoreError: What was seen cannot be made durable.
        """
        keys = {entry.silo_id: entry.verification_key for entry in roster.entries}
        seen = self._seen(keys)
        higher = dict(seen)
        for bundle in bundles.bundles:
            before = seen.get(bundle.silo_id)
            if before is not None and (found := _problem(bundle, before)) is not None:
                if _is_proof(bundle, before, identity):
                    caught = replace(before, rolled_back=True)
                    self._store.set_peer_heads({**seen, bundle.silo_id: caught})
                raise VerificationError(*found, silo=bundle.silo_id)
            if not _holds_its_debit(bundle):
                raise VerificationError(
                    Check.DEBIT_HEAD,
                    "its newest debit is not in the ledger whose head it signs beside it",
                    silo=bundle.silo_id,
                )
            higher[bundle.silo_id] = PeerHead(
                verification_key=keys[bundle.silo_id],
                seq=bundle.ledger_seq,
                sha256=bundle.ledger_sha256,
                identity=identity,
                debit=bundle.debit or (NO_DEBIT if before is None else before.debit),
            )
        self._store.set_peer_heads(higher)

    def remember(self, survivors: Survivors, roster: Roster, identity: AggregationId) -> None:
        """Keep the debits that the verified headers of U3 carry; before R3's signature leaves.

        The bundles of all of them were admitted, and no debit is before its silo's R0.

        Raises:
            VerificationError: debit_head, naming the peer whose debit is not above those seen.
            LocalStoreError: What was seen cannot be made durable.
        """
        keys = {entry.silo_id: entry.verification_key for entry in roster.entries}
        seen = self._seen(keys)
        debits = dict(seen)
        for header in survivors.headers:
            debit, before = header.debit, seen.get(header.silo_id)
            if debit is None:
                continue
            if before is not None and _is_behind(debit, before.debit):
                raise VerificationError(
                    Check.DEBIT_HEAD,
                    f"its upload was charged by record {debit.seq}, and it has signed record "
                    f"{before.debit.seq} before",
                    silo=header.silo_id,
                )
            # The debit is a record of the ledger, and so far its last one that anybody has seen.
            debits[header.silo_id] = PeerHead(
                verification_key=keys[header.silo_id],
                seq=debit.seq,
                sha256=debit.sha256,
                identity=identity,
                debit=debit,
            )
        self._store.set_peer_heads(debits)

    def _seen(self, keys: Mapping[str, bytes]) -> dict[str, PeerHead]:
        """What is known of the members that these keys belong to."""
        return {
            silo_id: head
            for silo_id, head in self._store.peer_heads().items()
            if head.verification_key == keys.get(silo_id)
        }


def _problem(bundle: KeyBundle, before: PeerHead) -> tuple[Check, str] | None:
    """Why these heads are not accepted after those before; None if they are."""
    text = ""
    if before.rolled_back:
        text = "its ledger was rolled back before: it has to enrol anew"
    elif bundle.ledger_seq < before.seq:
        text = (
            f"its ledger stands at record {bundle.ledger_seq}, and it has signed record "
            f"{before.seq} before: {_BEHIND}"
        )
    elif _is_fork(bundle, before):
        text = f"it has signed two different records {before.seq} of its ledger"
    if text:
        return Check.LEDGER_HEAD, text
    if bundle.debit is not None and _is_behind(bundle.debit, before.debit):
        return Check.DEBIT_HEAD, (
            f"its newest debit is record {bundle.debit.seq}, and it has signed the debit "
            f"{before.debit.seq} before: {_BEHIND}"
        )
    return None


def _is_behind(debit: DebitHead, before: DebitHead) -> bool:
    """Whether a debit is older than one seen before, or another one under its number."""
    return debit.seq < before.seq or _is_other(debit, before)


def _is_other(debit: DebitHead, before: DebitHead) -> bool:
    same = hmac.compare_digest(debit.sha256, before.sha256)
    return debit.seq == before.seq and not same


def _holds_its_debit(bundle: KeyBundle) -> bool:
    """Whether the head of a ledger and the debit beside it can be of one ledger."""
    if bundle.debit is None:
        return True
    head = DebitHead(seq=bundle.ledger_seq, sha256=bundle.ledger_sha256)
    # Before the first debit there is none, whatever the ledger's first record is.
    return bundle.debit == NO_DEBIT or not _is_behind(head, bundle.debit)


def _is_proof(bundle: KeyBundle, before: PeerHead, identity: AggregationId) -> bool:
    """Whether no honest silo can have signed both heads, whatever a coordinator did."""
    return (
        _is_fork(bundle, before)
        or (bundle.debit is not None and _is_other(bundle.debit, before.debit))
        or _is_back(bundle, before, identity)
    )


def _is_fork(bundle: KeyBundle, before: PeerHead) -> bool:
    same = hmac.compare_digest(bundle.ledger_sha256, before.sha256)
    return bundle.ledger_seq == before.seq and not same


def _is_back(bundle: KeyBundle, before: PeerHead, identity: AggregationId) -> bool:
    """A newer identity of the same run with a lower head, or a lower debit."""
    newer = identity.fields() > before.identity.fields()
    lower = bundle.ledger_seq < before.seq or (
        bundle.debit is not None and bundle.debit.seq < before.debit.seq
    )
    return identity.run_id == before.identity.run_id and newer and lower


def _identity(place: Mapping[str, Any]) -> AggregationId:
    try:
        return AggregationId(
            run_id=place["run"],
            round=place["round"],
            step=place["step"],
            part=place["part"],
            attempt=place["attempt"],
        )
    except MalformedMessageError as error:
        raise ValueError("no aggregation has this name") from error


def _debit(value: Mapping[str, Any]) -> DebitHead:
    try:
        return DebitHead(seq=value["seq"], sha256=_digest(value["sha256"]))
    except MalformedMessageError as error:
        raise ValueError("no record has this number") from error


def _digest(value: str) -> bytes:
    digest = bytes.fromhex(value)
    if len(digest) != _DIGEST_BYTES:
        raise ValueError("not 32 bytes")
    return digest
