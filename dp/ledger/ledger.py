"""The silo's privacy ledger: what was charged, what was uploaded, what was agreed on.

One append-only file per (silo, dataset), with sums for each unit kind (silo, task, user); the
caller names the file, the silo's own policy supplies δ and a cap for each kind.
``dp.ledger.journal`` keeps the bytes, ``dp.ledger.record`` their form, ``dp.ledger.counts`` the
sums and counts.

Record kinds:
    genesis    a random id, so that two ledgers never share a head; and what was spent before, with
               whose the newest sum without noise was
    joined     the silo is about to show its keys for an identity (R0); nothing is charged
    trained    a local training that is about to begin: all of its steps, debited before the first
    spent      one attempt that reached upload: the debits and the "spent" mark in one record
    signed_r3  the silo signed R3 for an identity; later attempts of it are refused for ever. In
               mode ``none`` it names whose sum that was, for the next one may be of no others

Ordered invariants of ``reserve`` and ``reserve_training``:
    1. The identity is new, not older than the run's newest step, and not agreed on. A training is
       of no round before the run's newest. A delta of ``record_local`` is released only in a round
       whose training was charged.
    2. The projected ε of every unit kind that is charged is at or below its cap, and neither the
       day nor, for a training, the run holds as many debits as the caller allows. A kind inside a
       charged unit is charged with it, and is held to a cap if it has one.
    3. One record with all the debits is on disk.
    4. Only then does a receipt exist. So trained ≤ debited and released ≤ debited, whatever crashes
       where.

Invariant of ``mark_joined``: an identity is joined once, under one descriptor, and only if it is
newer than everything joined or charged before in its run. A silo calls it before its keys leave, so
no restart and no second descriptor makes it show other keys under the same name.

Charging: every attempt that reaches ``reserve`` is charged, aborted or not, and so is a training
that is begun again after a crash. Re-sending identical bytes needs no new receipt and costs
nothing. Every figure in the file is a function of the configuration and of the clock alone, so
showing ε leaks nothing. Each debit carries its day, so the count of a day survives a restart.
Mode ``none`` charges nothing, because there is nothing to charge with: its uploads are counted
beside every kind's ε, and so are, beside a larger kind's, those that only a smaller unit's noise
protects (``dp.accounting.compose``).

Opening, following and adopting never refuse for a cap: a ledger whose sums are above one, as they
may be after the rules of composition became stricter, opens, and refuses the next release.

Covered: crashes, two processes, damage, rollback behind a head that somebody has seen.
Not covered: a rollback that nobody can contradict.
"""

from __future__ import annotations

import hmac
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dp.accounting.charge import Charge, UnitKind, training_charges
from dp.accounting.compose import Epsilon
from dp.config import Mode, PrivacySpec
from dp.errors import (
    IdentityError,
    LedgerCorruptError,
    LedgerRolledBackError,
    OpeningError,
    SpecError,
)
from dp.ledger import record as form
from dp.ledger.counts import DayCount, RunCount, RunDebits, Totals
from dp.ledger.entry import DIGEST_BYTES, Head, Identity, LedgerEntry, TrainingEntry
from dp.ledger.journal import Journal
from dp.ledger.opening import Carried, carried_fields, cohort_of
from dp.ledger.receipt import ISSUER, Receipt, TrainingReceipt
from dp.ledger.record import Debit, debits_of

__all__ = ["Head", "Identity", "Ledger", "LedgerEntry"]


class Ledger:
    """An open ledger; use ``open``, and close it or use it as a context manager."""

    def __init__(
        self, journal: Journal, totals: Totals, days: DayCount, opening: Carried | None
    ) -> None:
        """Replay the journal; callers use ``open``."""
        self._journal = journal
        self._totals = totals
        self._days = days
        self._runs = RunCount()
        self._lock = threading.Lock()
        self._spent: dict[Identity, bytes] = {}
        self._newest: dict[str, Identity] = {}
        self._newest_attempt: dict[tuple[str, int, int, int], int] = {}
        self._agreed: set[tuple[str, int, int, int]] = set()
        self._agreed_steps: set[tuple[str, int, int]] = set()
        self._joined: dict[str, tuple[Identity, bytes]] = {}
        self._trained: dict[str, int] = {}
        self._cohort: frozenset[str] | None = None
        self._newest_debit: int | None = None
        self._opening: Carried | None = None
        for seq, record in enumerate(journal.load()):
            self._replay(seq, record)
        if journal.length == 0:
            self._begin(opening)
        elif opening is not None:
            self._require_opening(opening)

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        delta: float,
        caps: Mapping[UnitKind, float],
        clock: Callable[[], float] = time.time,
        max_debits_per_day: int | None = None,
        opening: Carried | None = None,
    ) -> Self:
        """Open or create a ledger, verify its whole chain and hold its lock.

        Its directory must exist. ε is computed at δ, and no reservation may pass the cap of its
        unit kind; nothing is charged to protect a kind without one. Attempts and trainings are
        counted by the clock's days, and None allows any number of them.

        A ledger that is new begins with ``opening``, in its first record; one that is not must have
        begun with the very same. A crash before the first record is on disk leaves a ledger that is
        still new: whoever begins one with an opening gives it again until this has returned.

        Raises:
            OpeningError: If the ledger began with another opening, or with none.
            LedgerLockedError: If another process holds it.
            LedgerCorruptError: If its bytes, its chain or a record is not what was written.
            LedgerFormatError: If it was written in another format.
        """
        totals = Totals(delta=delta, caps=caps)
        journal = Journal(Path(path))
        try:
            return cls(journal, totals, DayCount(clock, most=max_debits_per_day), opening)
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
        Identity(*identity).require_valid()
        with self._lock:
            self._require_joinable(identity)
            self._journal.append(form.joined_record(identity, descriptor_sha256))
            self._joined[identity.run] = (identity, descriptor_sha256)

    def reserve_training(
        self,
        *,
        run: str,
        round: int,  # noqa: A002 - the protocol's word
        spec: PrivacySpec,
        adapter_sha256: bytes,
        max_in_run: int | None = None,
    ) -> TrainingReceipt:
        """Charge all steps of one local training durably, before the first of them.

        The plan's mode must be ``record_local``. Training for the round starts from the released
        adapter of this digest. ``max_in_run`` is how many trainings the run may be charged with;
        None for any number.

        Raises:
            SpecError: If the spec charges no training.
            IdentityError: If the round is older than the run's newest.
            TooManyDebitsError: If the run or the day holds as many as it may.
            BudgetExceededError: If ε would pass a cap.
            LedgerCorruptError: If the ledger may not be written any more.
        """
        entry = TrainingEntry(
            run=run,
            round=round,
            mode=spec.mode,
            charges=training_charges(spec),
            adapter_sha256=adapter_sha256,
            spec_sha256=spec.sha256(),
        )
        with self._lock:
            self._require_trainable(entry)
            self._totals.require_affordable(entry.charges)
            self._runs.require_room(run, most_trainings=max_in_run)
            day = self._days.next_day()
            debits = debits_of(entry.charges)
            self._journal.append(form.trained_record(entry, debits, day=day))
            self._newest_debit = self._journal.length - 1
            self._days.add(day)
            self._charge_training(entry, debits)
        return TrainingReceipt(issuer=ISSUER, spec=spec)

    def reserve(self, entry: LedgerEntry) -> Receipt:
        """Charge one attempt durably and return the receipt that lets it be encoded.

        Raises:
            IdentityError: If the identity was used, is outdated, is agreed on, or releases a delta
                whose training was not charged.
            TooManyDebitsError: If the day holds as many debits as it may.
            BudgetExceededError: If ε would pass a cap.
            LedgerCorruptError: If the ledger may not be written any more.
        """
        with self._lock:
            self._require_new(entry.identity, entry.descriptor_sha256)
            self._require_trained(entry)
            self._totals.require_affordable(entry.charges)
            day = self._days.next_day()
            debits = debits_of(entry.charges)
            self._journal.append(form.spent_record(entry, debits, day=day))
            self._newest_debit = self._journal.length - 1
            record = self._head_at(self._newest_debit)
            self._days.add(day)
            self._charge(entry, debits)
        return Receipt(
            issuer=ISSUER,
            descriptor_sha256=entry.descriptor_sha256,
            dimension=entry.dimension,
            mode=entry.mode,
            record=record,
            units=(charge.unit for charge in entry.charges),
        )

    def mark_agreed(self, identity: Identity, *, cohort: Iterable[str] | None = None) -> None:
        """Record durably that R3 is being signed; call it before the signature leaves.

        ``cohort`` is U3 of a sum without noise, which ``cohort`` then returns.

        Raises:
            IdentityError: If the identity was never spent or its aggregation is agreed on already.
            SpecError: If the cohort is of no silos, or of names that no silo has.
        """
        members = None if cohort is None else cohort_of(sorted(cohort))
        with self._lock:
            self._require_agreeable(identity)
            self._journal.append(form.signed_record(identity, members))
            self._agree(identity, members)

    def has_joined(self, identity: Identity, descriptor_sha256: bytes) -> bool:
        """Whether this is the newest identity joined in its run, under this very descriptor."""
        return self._joined.get(identity.run) == (identity, descriptor_sha256)

    def has_spent(self, identity: Identity, descriptor_sha256: bytes | None = None) -> bool:
        """Whether this very attempt was charged, and under this descriptor if one is given."""
        charged = self._spent.get(identity)
        return charged is not None and descriptor_sha256 in (None, charged)

    def has_trained(self, run: str, round: int) -> bool:  # noqa: A002 - the protocol's word
        """Whether the newest training of a run that was charged is of this round."""
        return self._trained.get(run) == round

    def has_agreed(self, run: str, round: int, step: int, part: int | None = None) -> bool:  # noqa: A002 - the protocol's word
        """Whether R3 was signed for any attempt of this aggregation; without a part, of any."""
        if part is None:
            return (run, round, step) in self._agreed_steps
        return (run, round, step, part) in self._agreed

    def highest_identity(self, run: str) -> Identity | None:
        """The newest identity of a run that was joined or charged."""
        known = [self._newest[run]] if run in self._newest else []
        known += [self._joined[run][0]] if run in self._joined else []
        return max(known, default=None)

    def carried(self) -> Carried:
        """Everything charged and counted so far, the opening included: the next one's opening."""
        with self._lock:
            spent, opening = self._totals.spent, self._opening
            return Carried(
                kinds=spent.kinds,
                unprotected=spent.unprotected,
                partial=spent.partial,
                cohort=None if self._cohort is None else tuple(sorted(self._cohort)),
                elsewhere={} if opening is None else opening.elsewhere,
            )

    def epsilons(self) -> dict[UnitKind, Epsilon]:
        """ε of everything charged so far at this ledger's δ, for every unit kind."""
        with self._lock:
            return self._totals.epsilons()

    def spent_epsilons(self) -> dict[UnitKind, float]:
        """The values of ``epsilons``, to compare with."""
        return {kind: found.epsilon for kind, found in self.epsilons().items()}

    def projected_epsilons(self, charges: Iterable[Charge]) -> dict[UnitKind, float]:
        """ε of every unit kind if these charges of one spec were made as well, to compare with."""
        with self._lock:
            return self._totals.projected(charges)

    def debits_today(self) -> int:
        """How many attempts and trainings this UTC day was charged with."""
        with self._lock:
            return self._days.debits()

    def debits_of_run(self, run: str) -> RunDebits:
        """How many attempts and trainings a run was charged with."""
        with self._lock:
            return self._runs.of(run)

    @property
    def cohort(self) -> frozenset[str] | None:
        """Whose the newest sum without noise is that this silo signed; None before the first.

        In this ledger, or in one before it of the same federation.
        """
        return self._cohort

    def head(self) -> Head:
        """The last record, for the signed R0 bundle."""
        with self._lock:
            return self._head_at(self._journal.length - 1)

    def newest_debit(self) -> Head | None:
        """The newest ``trained`` or ``spent`` record, for the bundle too; None before the first."""
        with self._lock:
            return None if self._newest_debit is None else self._head_at(self._newest_debit)

    @property
    def id(self) -> bytes:
        """Digest of the first record, whose 128 random bits no other ledger has."""
        with self._lock:
            return self._journal.digest_at(0)

    def require_contains(self, seq: int, sha256: bytes) -> None:
        """Compare with a head of this ledger that somebody has seen.

        Raises:
            LedgerRolledBackError: If this ledger does not contain that head.
        """
        with self._lock:
            if not 0 <= seq < self._journal.length:
                raise LedgerRolledBackError(
                    f"record {seq} of this ledger was seen, it ends at {self._journal.length - 1}"
                )
            if not hmac.compare_digest(self._journal.digest_at(seq), sha256):
                raise LedgerRolledBackError(f"record {seq} is not the one that was seen")

    @property
    def delta(self) -> float:
        """δ at which this ledger computes ε."""
        return self._totals.delta

    @property
    def caps(self) -> Mapping[UnitKind, float]:
        """ε that no reservation may pass, for every unit kind; 0 allows nothing."""
        return self._totals.caps

    @property
    def unprotected_releases(self) -> int:
        """Uploads under mode ``none``, which no ε describes, those of before included."""
        return self._totals.spent.unprotected

    @property
    def opening(self) -> Carried | None:
        """What was spent before this ledger began."""
        return self._opening

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

    def _head_at(self, seq: int) -> Head:
        return Head(seq, self._journal.digest_at(seq))

    def _agree(self, identity: Identity, members: tuple[str, ...] | None) -> None:
        self._agreed.add(identity.aggregation)
        self._agreed_steps.add((identity.run, identity.round, identity.step))
        if members is not None:
            self._cohort = frozenset(members)

    def _begin(self, opening: Carried | None) -> None:
        self._journal.append(form.genesis_record(os.urandom(form.ID_BYTES), opening))
        self._carry(opening)

    def _carry(self, opening: Carried | None) -> None:
        self._opening = opening
        if opening is not None:
            self._totals.carry(opening)
            if opening.cohort is not None:
                self._cohort = frozenset(opening.cohort)

    def _require_opening(self, opening: Carried) -> None:
        held = self._opening
        if held is None or carried_fields(held) != carried_fields(opening):
            raise OpeningError(
                "this ledger began with "
                + ("nothing spent" if held is None else "something else spent")
                + " before it: what was spent before is said once, when a ledger is new"
            )

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

    def _require_trainable(self, entry: TrainingEntry) -> None:
        newest = self.highest_identity(entry.run)
        round_reached = max(newest.round if newest else 0, self._trained.get(entry.run, 0))
        if entry.round < round_reached:
            raise IdentityError(f"round {entry.round} is over: the run is at {round_reached}")

    def _require_trained(self, entry: LedgerEntry) -> None:
        if entry.mode is Mode.RECORD_LOCAL and not self.has_trained(entry.run, entry.round):
            raise IdentityError(f"no training was charged for round {entry.round}")

    def _charge(self, entry: LedgerEntry, debits: tuple[Debit, ...]) -> None:
        identity = entry.identity
        self._totals.add(debits, releases=1)
        self._spent[identity] = entry.descriptor_sha256
        self._newest[identity.run] = max(identity, self._newest.get(identity.run, identity))
        self._newest_attempt[identity.aggregation] = identity.attempt
        self._runs.add_release(identity.run, step=identity.step)

    def _charge_training(self, entry: TrainingEntry, debits: tuple[Debit, ...]) -> None:
        self._totals.add(debits, releases=0)
        self._trained[entry.run] = entry.round
        self._runs.add_training(entry.run)

    def _replay(self, seq: int, record: Mapping[str, Any]) -> None:
        """Apply one verified record under the rules it was written under, except the caps."""
        kind = record.get("kind")
        try:
            if (kind == "genesis") != (seq == 0):
                raise LedgerCorruptError("a ledger begins with its only genesis record")
            match kind:
                case "genesis":
                    self._carry(form.read_genesis(record))
                case "joined":
                    identity, descriptor_sha256 = form.read_joined(record)
                    self._require_joinable(identity)
                    self._joined[identity.run] = (identity, descriptor_sha256)
                case "trained":
                    training, debits = form.read_trained(record)
                    self._require_trainable(training)
                    self._days.add(form.read_day(record))
                    self._charge_training(training, debits)
                    self._newest_debit = seq
                case "spent":
                    entry, debits = form.read_spent(record)
                    self._require_new(entry.identity, entry.descriptor_sha256)
                    self._require_trained(entry)
                    self._days.add(form.read_day(record))
                    self._charge(entry, debits)
                    self._newest_debit = seq
                case "signed_r3":
                    identity, members = form.read_signed(record)
                    self._require_agreeable(identity)
                    self._agree(identity, members)
                case _:
                    raise LedgerCorruptError(f"ledger record {seq} is of an unknown kind")
        except (IdentityError, SpecError, ValueError) as error:
            raise LedgerCorruptError(f"ledger record {seq} cannot have been written") from error
