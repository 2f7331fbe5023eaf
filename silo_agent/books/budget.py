"""What the privacy ledger says, read beside a daemon that holds it.

For each kind of unit::

    spent       ε of everything charged so far: local trainings, and attempts that reached the
                upload. This is the figure that the cap is compared with.
    reserved    the part of it that is charged for local trainings alone whose round has no charged
                upload yet: spent, less ε without those trainings. It becomes a release when the
                round goes on. It is never given back, for what was trained could be trained on.
    left        cap less spent, and not below zero.

Invariants:

1. The ledger's file is copied and the copy is opened, so the daemon's lock is neither needed nor
   disturbed, and nothing here can write to the ledger.
2. The copy passes the same checks as the ledger itself: framing, checksums, chain, and that it
   holds the highest head this silo remembers. A ledger that is lost, damaged, of another format or
   older than that is refused: no figure is shown that a daemon would not start with.
3. A record that the daemon was writing at that moment is not counted; it is as if the question had
   been asked a millisecond earlier.

ε is not additive: the parts that runs would have cost alone add up to more than the total.

Covered: a running daemon, none at all. Not covered: comparing with heads that only peers or the
coordinator have seen.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dp.accounting.charge import UNIT_KINDS, Charge, UnitKind
from dp.accounting.compose import epsilon_of
from dp.config import Mode
from dp.ledger.entry import LedgerEntry, TrainingEntry
from dp.ledger.journal import Journal
from dp.ledger.ledger import Ledger
from dp.ledger.record import read_spent, read_trained
from silo_agent.books.ledger import LEDGER_FILE
from silo_agent.books.local_store import LocalStore
from silo_agent.errors import LocalStoreError

__all__ = ["Budget", "RunBudget", "UnitBudget", "read_budget"]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitBudget:
    """One kind of unit; the module says what each figure is."""

    unit: UnitKind
    """Whose contribution ε is about."""
    epsilon_spent: float
    """Of everything charged so far."""
    epsilon_reserved: float
    """The part of it that nothing was released for yet."""
    epsilon_left: float
    """Cap less spent."""
    epsilon_cap: float
    """The silo's own; 0 where its policy names none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunBudget:
    """What one run was charged."""

    run: str
    """Its id."""
    epsilons: Mapping[UnitKind, float]
    """ε as if it were the only run, for each kind of unit that it was charged to."""
    attempts: int
    """Charged attempts that reached the upload."""
    trainings: int
    """Charged local trainings."""
    unprotected: int
    """Attempts in mode ``none``, which no ε describes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The whole ledger in figures."""

    delta: float
    """At which every ε here is computed."""
    units: tuple[UnitBudget, ...]
    """Each kind that has a cap or was charged."""
    runs: tuple[RunBudget, ...]
    """In the order of their first charge."""
    unprotected: int
    """Attempts in mode ``none`` of all runs."""
    ledger_seq: int | None
    """Number of the newest record; None before the first."""
    ledger_sha256: str | None
    """Its digest: the head that this silo signs and its peers remember."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Debit:
    """One charged record of the ledger."""

    run: str
    round: int
    mode: Mode
    charges: tuple[Charge, ...]
    uploaded: bool
    """True for an attempt that reached the upload, False for a local training."""

    @classmethod
    def of(cls, entry: LedgerEntry | TrainingEntry, *, uploaded: bool) -> Self:
        """What the figures need of a record."""
        return cls(
            run=entry.run,
            round=entry.round,
            mode=entry.mode,
            charges=entry.charges,
            uploaded=uploaded,
        )


def read_budget(data_dir: Path, *, delta: float, caps: Mapping[UnitKind, float]) -> Budget:
    """Read the ledger of a data directory.

    ``delta`` and ``caps`` are those of the site's policy.

    Raises:
        LocalStoreError: The ledger cannot be read, or is gone.
        PrivacyError: It is damaged, of another format, or older than this silo remembers.
    """
    source = data_dir / LEDGER_FILE
    # Read before the copy is made: the daemon remembers a head after it has written it.
    store = LocalStore(data_dir)
    remembered = store.ledger_head()
    if not source.exists():
        if remembered is not None or store.chain_heads():
            raise LocalStoreError(
                f"{source} is missing, but this silo took part in runs: put the newest copy of it "
                "back; without it nobody knows what was spent"
            )
        return Budget(
            delta=delta,
            units=_units({}, {}, caps),
            runs=(),
            unprotected=0,
            ledger_seq=None,
            ledger_sha256=None,
        )
    with tempfile.TemporaryDirectory(prefix="chorale-budget-") as directory:
        copy = Path(directory) / LEDGER_FILE
        try:
            shutil.copyfile(source, copy)
        except OSError as error:
            raise LocalStoreError(f"cannot read {source}: {error}") from error
        with Ledger.open(copy, delta=delta, caps=caps) as ledger:
            if remembered is not None:
                ledger.require_contains(*remembered)
            spent = ledger.spent_epsilons()
            seq, sha256 = ledger.head()
        debits = _debits(copy)
    return Budget(
        delta=delta,
        units=_units(spent, _released(debits, spent, delta), caps),
        runs=_runs(debits, delta),
        unprotected=sum(debit.mode is Mode.NONE for debit in debits),
        ledger_seq=seq,
        ledger_sha256=sha256.hex(),
    )


def _units(
    spent: Mapping[UnitKind, float],
    released: Mapping[UnitKind, float],
    caps: Mapping[UnitKind, float],
) -> tuple[UnitBudget, ...]:
    return tuple(
        UnitBudget(
            unit=unit,
            epsilon_spent=spent.get(unit, 0.0),
            epsilon_reserved=_less(spent.get(unit, 0.0), released.get(unit, 0.0)),
            epsilon_left=_less(caps.get(unit, 0.0), spent.get(unit, 0.0)),
            epsilon_cap=caps.get(unit, 0.0),
        )
        for unit in UNIT_KINDS
        if spent.get(unit, 0.0) > 0.0 or caps.get(unit, 0.0) > 0.0
    )


def _less(whole: float, part: float) -> float:
    # Infinite ε less infinite ε is none, not NaN.
    return max(0.0, whole - part) if whole != part else 0.0


def _released(
    debits: Sequence[_Debit], spent: Mapping[UnitKind, float], delta: float
) -> Mapping[UnitKind, float]:
    """ε without the trainings of rounds that have no charged upload yet."""
    uploaded = {(debit.run, debit.round) for debit in debits if debit.uploaded}
    released = [debit for debit in debits if (debit.run, debit.round) in uploaded]
    return spent if len(released) == len(debits) else _epsilons(released, delta)


def _runs(debits: Sequence[_Debit], delta: float) -> tuple[RunBudget, ...]:
    of_run: dict[str, list[_Debit]] = {}
    for debit in debits:
        of_run.setdefault(debit.run, []).append(debit)
    return tuple(
        RunBudget(
            run=run,
            epsilons=_epsilons(own, delta),
            attempts=sum(debit.uploaded for debit in own),
            trainings=sum(not debit.uploaded for debit in own),
            unprotected=sum(debit.mode is Mode.NONE for debit in own),
        )
        for run, own in of_run.items()
    )


def _epsilons(debits: Iterable[_Debit], delta: float) -> dict[UnitKind, float]:
    """ε of some debits alone; equal mechanisms are composed at once, which is the same sum."""
    steps: dict[tuple[UnitKind, float, float], int] = {}
    failures: dict[tuple[UnitKind, float, float], float] = {}
    for debit in debits:
        for charge in debit.charges:
            key = (charge.unit, charge.q, charge.z)
            steps[key] = steps.get(key, 0) + charge.steps
            failures[key] = failures.get(key, 0.0) + charge.delta
    below_one = math.nextafter(1.0, 0.0)
    return epsilon_of(
        (
            Charge(unit=unit, q=q, z=z, steps=count, delta=min(failures[unit, q, z], below_one))
            for (unit, q, z), count in steps.items()
        ),
        delta,
    )


def _debits(path: Path) -> tuple[_Debit, ...]:
    """Every charged record, in order; the ledger has verified them."""
    journal = Journal(path)
    try:
        records = journal.load()
    finally:
        journal.close()
    debits = []
    for record in records:
        if record["kind"] == "spent":
            entry, _ = read_spent(record)
            debits.append(_Debit.of(entry, uploaded=True))
        elif record["kind"] == "trained":
            training, _ = read_trained(record)
            debits.append(_Debit.of(training, uploaded=False))
    return tuple(debits)
