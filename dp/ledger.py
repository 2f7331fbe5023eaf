"""The silo's privacy ledger: what was charged, what was uploaded, what was agreed on.

One append-only file per (silo, dataset, unit kind); the caller names the file, the silo's own
policy supplies δ and the cap. ``dp.journal`` keeps the bytes.

Record kinds:
    genesis    a random id, so that two ledgers never share a head
    joined     the silo is about to show its keys for an identity (R0); nothing is charged
    spent      one attempt that reached upload: the debit and the "spent" mark in one record
    signed_r3  the silo signed R3 for an identity; later attempts of it are refused for ever

Ordered invariants of ``reserve``:
    1. The identity is new, not older than the run's newest step, and not agreed on.
    2. The projected ε is at or below the cap.
    3. The record is on disk.
    4. Only then does a receipt exist. So released ≤ debited, whatever crashes where.

Invariant of ``mark_joined``: an identity is joined once, under one descriptor, and only if it is
newer than everything joined or charged before in its run. A silo calls it before its keys leave, so
no restart and no second descriptor makes it show other keys under the same name.

Charging: every attempt that reaches ``reserve`` is charged, aborted or not. Re-sending identical
bytes needs no new receipt and costs nothing. Every figure in the file is a function of the
configuration alone, so showing ε leaks nothing. Mode ``none`` charges nothing, because there is
nothing to charge with: ``unprotected_releases`` counts its uploads instead.

Covered: crashes, two processes, damage, rollback behind a head that a peer has seen.
Not covered: a rollback that no peer can contradict.
"""

from __future__ import annotations

import hmac
import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from dp.config import Mode
from dp.errors import (
    BudgetExceededError,
    IdentityError,
    LedgerCorruptError,
    LedgerRolledBackError,
    SpecError,
)
from dp.journal import Journal
from dp.ledger_entry import DIGEST_BYTES, Identity, LedgerEntry
from dp.rdp import ORDERS, Divergences, epsilon
from dp.receipt import ISSUER, Receipt

__all__ = ["Identity", "Ledger", "LedgerEntry"]

_FORMAT: Final = 1
_ID_BYTES: Final = 16
_CHAIN_KEYS: Final = frozenset({"seq", "prev_sha256", "kind"})
_IDENTITY_KEYS: Final = frozenset({"run", "round", "step", "part", "attempt"})
_JOINED_KEYS: Final = _IDENTITY_KEYS | {"descriptor_sha256"}
_SPENT_KEYS: Final = _IDENTITY_KEYS | {"mode", "q", "z", "steps", "d", "descriptor_sha256", "rdp"}


class Ledger:
    """An open ledger; use ``open``, and close it or use it as a context manager."""

    def __init__(self, journal: Journal, *, delta: float, epsilon_cap: float) -> None:
        """Replay the journal; callers use ``open``."""
        self._journal = journal
        self._delta = delta
        self._epsilon_cap = epsilon_cap
        self._lock = threading.Lock()
        self._total = np.zeros(len(ORDERS))
        self._spent: dict[Identity, bytes] = {}
        self._newest: dict[str, Identity] = {}
        self._newest_attempt: dict[tuple[str, int, int, int], int] = {}
        self._agreed: set[tuple[str, int, int, int]] = set()
        self._joined: dict[str, tuple[Identity, bytes]] = {}
        self._unprotected = 0
        for seq, record in enumerate(journal.load()):
            self._replay(seq, record)
        if journal.length == 0:
            genesis = {"kind": "genesis", "format": _FORMAT, "id": os.urandom(_ID_BYTES).hex()}
            journal.append(genesis)

    @classmethod
    def open(cls, path: Path | str, *, delta: float, epsilon_cap: float) -> Self:
        """Open or create a ledger, verify its whole chain and hold its lock.

        Args:
            path: The file; its directory must exist.
            delta: δ at which ε is computed.
            epsilon_cap: ε that no reservation may pass.

        Raises:
            LedgerLockedError: If another process holds it.
            LedgerCorruptError: If its bytes or its chain are damaged.
        """
        if not 0 < delta < 1:
            raise SpecError(f"delta must lie in (0, 1), got {delta!r}")
        if not (math.isfinite(epsilon_cap) and epsilon_cap > 0):
            raise SpecError(f"the cap on epsilon must be positive and finite, got {epsilon_cap!r}")
        journal = Journal(Path(path))
        try:
            return cls(journal, delta=delta, epsilon_cap=epsilon_cap)
        except BaseException:
            # Whatever the failure, the lock must not outlive it; the error goes on.
            journal.close()
            raise

    def mark_joined(self, identity: Identity, descriptor_sha256: bytes) -> None:
        """Record durably that keys are shown for an identity; call it before they leave.

        Raises:
            IdentityError: If the identity is not newer than all of its run, or is agreed on.
            LedgerCorruptError: If the ledger may not be written any more.
        """
        if len(descriptor_sha256) != DIGEST_BYTES:
            raise SpecError("the descriptor digest is not a SHA-256")
        with self._lock:
            self._require_joinable(identity)
            self._journal.append(
                {
                    "kind": "joined",
                    **Identity(*identity)._asdict(),
                    "descriptor_sha256": descriptor_sha256.hex(),
                }
            )
            self._joined[identity.run] = (identity, descriptor_sha256)

    def reserve(self, entry: LedgerEntry) -> Receipt:
        """Charge one attempt durably and return the receipt that lets it be encoded.

        Raises:
            IdentityError: If the identity was used, is outdated, or is agreed on.
            BudgetExceededError: If ε would pass the cap.
            LedgerCorruptError: If the ledger may not be written any more.
        """
        with self._lock:
            self._require_new(entry.identity, entry.descriptor_sha256)
            projected = self._projected(entry)
            if not projected <= self._epsilon_cap:
                raise BudgetExceededError(
                    projected_epsilon=projected, epsilon_cap=self._epsilon_cap
                )
            rdp = entry.rdp
            self._journal.append(
                {
                    "kind": "spent",
                    **entry.identity._asdict(),
                    "mode": entry.mode.value,
                    "q": float(entry.q),
                    "z": float(entry.z),
                    "steps": entry.steps,
                    "d": entry.dimension,
                    "descriptor_sha256": entry.descriptor_sha256.hex(),
                    "rdp": rdp.tolist(),
                }
            )
            self._charge(entry, rdp)
        return Receipt(
            issuer=ISSUER,
            descriptor_sha256=entry.descriptor_sha256,
            dimension=entry.dimension,
            mode=entry.mode,
        )

    def mark_agreed(self, identity: Identity) -> None:
        """Record durably that R3 is being signed; call it before the signature leaves.

        Raises:
            IdentityError: If the identity was never spent or its aggregation is agreed on already.
        """
        with self._lock:
            self._require_agreeable(identity)
            self._journal.append({"kind": "signed_r3", **Identity(*identity)._asdict()})
            self._agreed.add(identity.aggregation)

    def has_joined(self, identity: Identity, descriptor_sha256: bytes) -> bool:
        """Whether this is the newest identity joined in its run, under this very descriptor."""
        return self._joined.get(identity.run) == (identity, descriptor_sha256)

    def has_spent(self, identity: Identity, descriptor_sha256: bytes | None = None) -> bool:
        """Whether this very attempt was charged, and under this descriptor if one is given."""
        charged = self._spent.get(identity)
        return charged is not None and descriptor_sha256 in (None, charged)

    def has_agreed(self, run: str, round: int, step: int, part: int) -> bool:  # noqa: A002 - the protocol's word
        """Whether R3 was signed for any attempt of this aggregation."""
        return (run, round, step, part) in self._agreed

    def highest_identity(self, run: str) -> Identity | None:
        """The newest identity of a run that was joined or charged."""
        known = [self._newest[run]] if run in self._newest else []
        known += [self._joined[run][0]] if run in self._joined else []
        return max(known, default=None)

    def spent_epsilon(self) -> float:
        """ε of everything charged so far at this ledger's δ."""
        with self._lock:
            return epsilon(self._total, self._delta)

    def projected_epsilon(self, entry: LedgerEntry) -> float:
        """ε if ``entry`` were charged as well."""
        with self._lock:
            return self._projected(entry)

    def head(self) -> tuple[int, bytes]:
        """Sequence number and digest of the last record, for the signed R0 bundle."""
        with self._lock:
            return self._journal.length - 1, self._journal.tip

    def check_head_not_behind(self, seq: int, sha256: bytes) -> None:
        """Compare with a head of this ledger that a peer has seen.

        Raises:
            LedgerRolledBackError: If this ledger does not contain that head.
        """
        with self._lock:
            if not 0 <= seq < self._journal.length:
                raise LedgerRolledBackError(
                    f"a peer has seen record {seq}, this ledger ends at {self._journal.length - 1}"
                )
            if not hmac.compare_digest(self._journal.digest_at(seq), sha256):
                raise LedgerRolledBackError(f"record {seq} is not the one that a peer has seen")

    @property
    def delta(self) -> float:
        """δ at which this ledger computes ε."""
        return self._delta

    @property
    def epsilon_cap(self) -> float:
        """ε that no reservation may pass."""
        return self._epsilon_cap

    @property
    def unprotected_releases(self) -> int:
        """Uploads under mode ``none``, which no ε describes."""
        return self._unprotected

    @property
    def torn_tail_repaired(self) -> bool:
        """Whether opening cut off a record whose write never returned."""
        return self._journal.torn_tail_repaired

    def close(self) -> None:
        """Release the lock."""
        with self._lock:
            self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _projected(self, entry: LedgerEntry) -> float:
        return epsilon(self._total + entry.rdp, self._delta)

    def _require_joinable(self, identity: Identity) -> None:
        if identity.aggregation in self._agreed:
            raise IdentityError(f"{identity} was agreed on: no later attempt of it is accepted")
        newest = self.highest_identity(identity.run)
        if newest is not None and identity <= newest:
            raise IdentityError(f"{identity} is not newer than {newest}")

    def _require_new(self, identity: Identity, descriptor_sha256: bytes) -> None:
        if identity.aggregation in self._agreed:
            raise IdentityError(f"{identity} was agreed on: no later attempt of it is accepted")
        if identity.attempt <= self._newest_attempt.get(identity.aggregation, -1):
            raise IdentityError(f"{identity} or a later attempt of it was already spent")
        joined, joined_sha256 = self._joined.get(identity.run, (None, b""))
        if joined is not None and joined.aggregation == identity.aggregation:
            if identity < joined:
                raise IdentityError(f"{identity} is older than {joined}, which was joined")
            if identity == joined and not hmac.compare_digest(joined_sha256, descriptor_sha256):
                raise IdentityError(f"{identity} was joined under another descriptor")
        newest = self.highest_identity(identity.run)
        # Parts of one step may be uploaded in any order, so they take no part in this comparison.
        if newest is not None and (identity.round, identity.step) < (newest.round, newest.step):
            raise IdentityError(f"{identity} is older than {newest}")

    def _require_agreeable(self, identity: Identity) -> None:
        if identity not in self._spent:
            raise IdentityError(f"{identity} was never spent, so it cannot be agreed on")
        if identity.aggregation in self._agreed:
            raise IdentityError(f"{identity} was already agreed on")

    def _charge(self, entry: LedgerEntry, rdp: Divergences) -> None:
        identity = entry.identity
        self._total = self._total + rdp
        self._spent[identity] = entry.descriptor_sha256
        self._newest[identity.run] = max(identity, self._newest.get(identity.run, identity))
        self._newest_attempt[identity.aggregation] = identity.attempt
        self._unprotected += entry.mode is Mode.NONE

    def _replay(self, seq: int, record: Mapping[str, Any]) -> None:
        """Apply one verified record under the rules it was written under."""
        kind, keys = record.get("kind"), set(record) - _CHAIN_KEYS
        try:
            if (kind == "genesis") != (seq == 0):
                raise LedgerCorruptError("a ledger begins with its only genesis record")
            if kind == "genesis" and keys == {"format", "id"} and record["format"] == _FORMAT:
                return
            if kind == "spent" and keys == _SPENT_KEYS:
                self._replay_spent(record)
            elif kind == "joined" and keys == _JOINED_KEYS:
                identity = _identity(record)
                self._require_joinable(identity)
                self._joined[identity.run] = (identity, _digest(record["descriptor_sha256"]))
            elif kind == "signed_r3" and keys == _IDENTITY_KEYS:
                identity = _identity(record)
                self._require_agreeable(identity)
                self._agreed.add(identity.aggregation)
            else:
                raise LedgerCorruptError(f"ledger record {seq} is of an unknown kind or form")
        except (IdentityError, SpecError, TypeError, ValueError) as error:
            raise LedgerCorruptError(f"ledger record {seq} cannot have been written") from error

    def _replay_spent(self, record: Mapping[str, Any]) -> None:
        identity = _identity(record)
        entry = LedgerEntry(
            **identity._asdict(),
            mode=Mode(record["mode"]),
            q=record["q"],
            z=record["z"],
            steps=record["steps"],
            dimension=record["d"],
            descriptor_sha256=bytes.fromhex(record["descriptor_sha256"]),
        )
        rdp = np.array(record["rdp"], dtype=np.float64)
        # The stored figures are what was charged, so an accountant that changes later cannot
        # rewrite the past; they are checked for being divergences at all.
        if rdp.shape != (len(ORDERS),) or not np.isfinite(rdp).all() or rdp.min() < 0:
            raise LedgerCorruptError("a ledger record holds no valid divergences")
        self._require_new(identity, entry.descriptor_sha256)
        self._charge(entry, rdp)


def _identity(record: Mapping[str, Any]) -> Identity:
    run = record["run"]
    numbers = [record[name] for name in ("round", "step", "part", "attempt")]
    if not isinstance(run, str) or not all(type(number) is int for number in numbers):
        raise LedgerCorruptError("a ledger record names no valid identity")
    return Identity(run, *numbers)


def _digest(value: str) -> bytes:
    digest = bytes.fromhex(value)
    if len(digest) != DIGEST_BYTES:
        raise LedgerCorruptError("a ledger record names no valid digest")
    return digest
