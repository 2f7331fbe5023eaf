"""What the privacy ledger says, read beside a daemon that holds it.

For each kind of unit::

    spent       ε of everything charged so far: local trainings, and attempts that reached the
                upload, also those that were charged to a unit around this one; and what was spent
                before the ledger began. This is the figure that the cap is compared with. Beside it
                stand the releases that it does not speak of.
    reserved    the part of it that is charged for local trainings alone whose round has no charged
                upload yet: spent, less ε without those trainings. It becomes a release when the
                round goes on. It is never given back, for what was trained could be trained on.
    left        cap less spent, and not below zero; a kind without a cap has nothing left.

The figures are of a verified copy of the ledger (``silo_agent/books/ledger_copy.py``): none is
shown that a daemon would not start with.

ε is not additive: the parts that runs would have cost alone add up to more than the total.

Covered: what was charged here, and what was carried in. Not covered: what other data directories
were charged with for the same data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, Self

from dp.accounting.charge import Charge, UnitKind
from dp.accounting.compose import Epsilon, Spent
from dp.config import ADJACENCY, Mode
from dp.ledger.entry import LedgerEntry, TrainingEntry
from dp.ledger.record import read_spent, read_trained
from silo_agent.books.ledger_copy import ledger_copy

__all__ = ["Budget", "RunBudget", "UnitBudget", "read_budget"]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitBudget:
    """One kind of unit; the module says what each figure is."""

    unit: UnitKind
    """Whose contribution ε is about."""
    epsilon_spent: Epsilon
    """Of everything charged so far."""
    epsilon_reserved: float
    """The part of it that nothing was released for yet."""
    epsilon_left: float
    """Cap less spent."""
    epsilon_cap: float
    """The silo's own; 0 where its policy names none."""

    @property
    def line(self) -> str:
        """For people."""
        said = f"epsilon for each {self.unit}: {self.epsilon_spent} spent ({ADJACENCY}), "
        if self.epsilon_cap <= 0.0:
            return said + "no cap"
        return said + f"{self.epsilon_left:.4g} left of {self.epsilon_cap:.4g}"

    @property
    def over_cap(self) -> bool:
        """Whether what was charged is above the cap, as a ledger may be that was recomputed."""
        return 0.0 < self.epsilon_cap < self.epsilon_spent.epsilon


@dataclass(frozen=True, kw_only=True, slots=True)
class RunBudget:
    """What one run was charged."""

    run: str
    """Its id."""
    epsilons: Mapping[UnitKind, Epsilon]
    """ε as if it were the only run, for each kind of unit that it costs anything."""
    attempts: int
    """Charged attempts that reached the upload."""
    trainings: int
    """Charged local trainings."""
    trainings_beyond: int
    """Those of them beyond the rounds that released: cut short, or waiting for their upload."""
    unprotected: int
    """Attempts in mode ``none``, which no ε describes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The whole ledger in figures."""

    delta: float
    """At which every ε here is computed."""
    units: tuple[UnitBudget, ...]
    """Each kind that has a cap, was charged or left unprotected."""
    runs: tuple[RunBudget, ...]
    """In the order of their first charge."""
    unprotected: int
    """Attempts in mode ``none`` of all runs, those before the ledger began included."""
    carried: Mapping[UnitKind, Epsilon]
    """What was spent before the ledger began, as if it were all, for each kind that has some."""
    ledger_seq: int | None
    """Number of the newest record; None before the first."""
    ledger_sha256: str | None
    """Its digest: the head that this silo signs and its peers remember."""
    debit_seq: int = 0
    """Number of the newest record that charged something, signed beside it; 0 before the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Debit:
    """One charged record of the ledger."""

    run: str
    round: int
    mode: Mode
    charges: tuple[Charge, ...]
    uploaded: bool
    """True for an attempt that reached the upload, False for a local training."""

    @property
    def spent(self) -> Spent:
        """What it cost every kind."""
        return Spent.of(self.charges, releases=int(self.uploaded))

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
    with ledger_copy(data_dir, delta=delta, caps=caps) as copy:
        if copy is None:
            return Budget(
                delta=delta,
                units=_units(Spent.nothing().epsilons(delta), {}, caps),
                runs=(),
                unprotected=0,
                carried={},
                ledger_seq=None,
                ledger_sha256=None,
            )
        ledger = copy.ledger
        spent, opening = ledger.epsilons(), ledger.opening or Spent.nothing()
        unprotected = ledger.unprotected_releases
        seq, sha256 = ledger.head()
        newest = ledger.newest_debit()
        debits = _debits(copy.records)
    return Budget(
        delta=delta,
        units=_units(spent, _released(debits, opening, delta), caps),
        runs=_runs(debits, delta),
        unprotected=unprotected,
        carried={
            unit: found for unit, found in opening.epsilons(delta).items() if found != Epsilon(0.0)
        },
        ledger_seq=seq,
        ledger_sha256=sha256.hex(),
        debit_seq=0 if newest is None else newest.seq,
    )


def _units(
    spent: Mapping[UnitKind, Epsilon],
    released: Mapping[UnitKind, float],
    caps: Mapping[UnitKind, float],
) -> tuple[UnitBudget, ...]:
    return tuple(
        UnitBudget(
            unit=unit,
            epsilon_spent=found,
            epsilon_reserved=_less(found.epsilon, released.get(unit, found.epsilon)),
            epsilon_left=_less(caps.get(unit, 0.0), found.epsilon),
            epsilon_cap=caps.get(unit, 0.0),
        )
        for unit, found in spent.items()
        if caps.get(unit, 0.0) > 0.0 or found != Epsilon(0.0)
    )


def _less(whole: float, part: float) -> float:
    # Infinite ε less infinite ε is none, not NaN.
    return max(0.0, whole - part) if whole != part else 0.0


def _released(debits: Sequence[_Debit], opening: Spent, delta: float) -> Mapping[UnitKind, float]:
    """ε without the trainings of rounds that have no charged upload yet; empty if there are none.

    Summed in the order of the ledger, so that equal sums are equal to the last digit.
    """
    uploaded = {(debit.run, debit.round) for debit in debits if debit.uploaded}
    released = [debit for debit in debits if (debit.run, debit.round) in uploaded]
    if len(released) == len(debits):
        return {}
    found = _sum(released, opening).epsilons(delta)
    return {unit: epsilon.epsilon for unit, epsilon in found.items()}


def _runs(debits: Sequence[_Debit], delta: float) -> tuple[RunBudget, ...]:
    of_run: dict[str, list[_Debit]] = {}
    for debit in debits:
        of_run.setdefault(debit.run, []).append(debit)
    return tuple(
        RunBudget(
            run=run,
            epsilons={
                unit: found
                for unit, found in _sum(own, Spent.nothing()).epsilons(delta).items()
                if found.epsilon > 0.0
            },
            attempts=sum(debit.uploaded for debit in own),
            trainings=sum(not debit.uploaded for debit in own),
            trainings_beyond=_beyond(own),
            unprotected=sum(debit.mode is Mode.NONE for debit in own),
        )
        for run, own in of_run.items()
    )


def _sum(debits: Iterable[_Debit], opening: Spent) -> Spent:
    return reduce(add, (debit.spent for debit in debits), opening)


def _beyond(debits: Sequence[_Debit]) -> int:
    """Trainings of one run, less one for each of its rounds that was trained and uploaded."""
    trained = [debit.round for debit in debits if not debit.uploaded]
    return len(trained) - len({d.round for d in debits if d.uploaded}.intersection(trained))


def _debits(records: Iterable[Mapping[str, Any]]) -> tuple[_Debit, ...]:
    """Every charged record, in order; the ledger has verified them."""
    debits = []
    for record in records:
        if record["kind"] == "spent":
            entry, _ = read_spent(record)
            debits.append(_Debit.of(entry, uploaded=True))
        elif record["kind"] == "trained":
            training, _ = read_trained(record)
            debits.append(_Debit.of(training, uploaded=False))
    return tuple(debits)
