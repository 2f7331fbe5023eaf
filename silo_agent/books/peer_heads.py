"""The ledger heads that peers have signed, against a peer whose ledger went back in time.

Every R0 bundle carries the head of its silo's privacy ledger under that silo's signature, which
also covers the aggregation it is for. A silo whose ledger was restored from an old copy, together
with its own memory of it, would spend twice what it had spent before; its peers remember.

Of an honest silo two things are true in whatever order a coordinator shows its bundles: there is
one record under each number, and inside a run a newer identity has a higher number, because each
identity that is joined is a new record and must be newer than the run's last. Across runs there is
no such order: a coordinator may hold back the bundles of one run until it has shown another's.

Ordered invariants, for the bundles of one attempt, their signatures verified before:

1. Refused is a head that is behind the highest head that this silo has seen of that peer, or
   another one under the same number. The attempt ends; the highest head stays what it was.
2. The peer is never believed again if that cannot be an honest silo's: two records under one
   number, or a newer identity of the same run with a lower head. The proof is its own signature,
   twice. A head that is behind in another run is no proof: the same peer is taken at its word in
   the next attempt that shows the head seen or a higher one, as after putting the newest ledger
   back.
3. What was seen is durable before any share of this silo leaves.
4. What is read back from ``state.json`` is what was written, or an error; nothing is filled in.
5. Heads belong to a verification key: a silo that enrolled anew begins a new ledger. Only members
   of the roster in force are remembered.

Covered: rollback and fork of a peer's ledger that this silo has seen ahead, until the peer's
ledger is longer than what was seen. Not covered: a coordinator that withholds the echo and lets a
rolled-back silo join k attempts that these peers do not see, or see in other runs only: each
appends a record, and a ledger that passes the number seen without showing another record under it
is believed. Bundles carry heads and no chains. Nor a head that only silos of other cohorts have
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
from secagg.messages import KeyBundle, KeyBundles
from secagg.roster import Roster

__all__ = ["PeerHead", "PeerHeads"]

_DIGEST_BYTES: Final = 32


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
            VerificationError: ledger_head, naming the peer that is behind or shows a fork.
            LocalStoreError: What was seen cannot be made durable.
        """
        known = self._store.peer_heads()
        keys = {entry.silo_id: entry.verification_key for entry in roster.entries}
        seen = {
            silo_id: head
            for silo_id, head in known.items()
            if head.verification_key == keys.get(silo_id)
        }
        higher = dict(seen)
        for bundle in bundles.bundles:
            before = seen.get(bundle.silo_id)
            problem = "" if before is None else _problem(bundle, before)
            if before is not None and problem:
                if _is_proof(bundle, before, identity):
                    caught = replace(before, rolled_back=True)
                    self._store.set_peer_heads({**seen, bundle.silo_id: caught})
                raise VerificationError(Check.LEDGER_HEAD, problem, silo=bundle.silo_id)
            higher[bundle.silo_id] = PeerHead(
                verification_key=keys[bundle.silo_id],
                seq=bundle.ledger_seq,
                sha256=bundle.ledger_sha256,
                identity=identity,
            )
        self._store.set_peer_heads(higher)


def _problem(bundle: KeyBundle, before: PeerHead) -> str:
    """Why this head is not accepted after the one before; empty if it is."""
    if before.rolled_back:
        return "its ledger was rolled back before: it has to enrol anew"
    if bundle.ledger_seq < before.seq:
        return (
            f"its ledger stands at record {bundle.ledger_seq}, and it has signed record "
            f"{before.seq} before: its ledger was rolled back, or its bundles of two runs come in "
            "another order than it signed them"
        )
    if _is_fork(bundle, before):
        return f"it has signed two different records {before.seq} of its ledger"
    return ""


def _is_proof(bundle: KeyBundle, before: PeerHead, identity: AggregationId) -> bool:
    """Whether no honest silo can have signed both heads, whatever a coordinator did."""
    return _is_fork(bundle, before) or _is_back(bundle, before, identity)


def _is_fork(bundle: KeyBundle, before: PeerHead) -> bool:
    same = hmac.compare_digest(bundle.ledger_sha256, before.sha256)
    return bundle.ledger_seq == before.seq and not same


def _is_back(bundle: KeyBundle, before: PeerHead, identity: AggregationId) -> bool:
    """A newer identity of the same run with a lower head."""
    newer = identity.fields() > before.identity.fields()
    return identity.run_id == before.identity.run_id and newer and bundle.ledger_seq < before.seq


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


def _digest(value: str) -> bytes:
    digest = bytes.fromhex(value)
    if len(digest) != _DIGEST_BYTES:
        raise ValueError("not 32 bytes")
    return digest
