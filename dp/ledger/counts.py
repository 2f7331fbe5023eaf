"""What the records of a ledger add up to, and the ceilings that a new debit has to stay under.

    Totals      by unit kind: ε = min over α of the conversion of ΣR(α) at δ − Σ failure
                probabilities, against the silo's own caps; what was carried into the ledger is the
                first term, and ``dp.accounting.compose`` says who pays for a charge
    RunCount    by run: attempts and trainings, against what the run's plan states ε for
    DayCount    by UTC day: debits of either kind, against the site's ceiling. A day is counted in
                whole days since 1970-01-01 00:00 UTC, but is never before the newest debited one

Invariants:
    1. Kinds do not pay for each other: each has its own sum, its own failures and its own cap.
    2. A kind without a cap, or with a cap of 0, is charged for nothing that was made to protect it.
       What it pays because it lies inside a charged unit is counted, and capped if it has a cap.
    3. All charges of a debit fit, or none is made.
    4. Days never go back, so a clock that is set back neither empties the count of the day that it
       left nor begins another count. A clock that stood ahead for a while keeps its day until the
       right time has reached it: that errs on the side of fewer debits.

A plan states ε for so many attempts and trainings. A coordinator that asks for more of them would
charge a silo past that figure, although each one alone is a lawful attempt. The ceiling on
trainings is asked for here, under the ledger's lock, because tasks may come faster than work;
attempts come one at a time and are refused before a key is shown
(``silo_agent/books/ledger.py``).

Covered: sums, caps, counts, and the ceilings that the caller gives. Not covered: what is written
(``dp.ledger.ledger``), how many debits a plan states (``federation.plan.plan``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from dp.accounting.charge import UNIT_KINDS, Charge, UnitKind
from dp.accounting.compose import Epsilon, Spent, capped_kinds
from dp.errors import BudgetExceededError, SpecError, TooManyDebitsError
from dp.ledger.record import Debit

DAY_S: Final = 86_400
_MAX_DAY: Final = (1 << 32) - 1


class Totals:
    """What was spent so far, and the caps on it."""

    __slots__ = ("_spent", "caps", "delta")

    def __init__(self, *, delta: float, caps: Mapping[UnitKind, float]) -> None:
        """Begin with nothing spent, to compute ε at δ.

        Raises:
            SpecError: If δ or a cap is out of range, or a kind is unknown.
        """
        if not 0 < delta < 1:
            raise SpecError(f"delta must lie in (0, 1), got {delta!r}")
        for unit, cap in caps.items():
            if unit not in UNIT_KINDS:
                raise SpecError(f"a cap is for one of {', '.join(UNIT_KINDS)}, got {unit!r}")
            if isinstance(cap, bool) or not (math.isfinite(cap) and cap >= 0):
                raise SpecError(f"the cap on {unit}-level epsilon must be finite, got {cap!r}")
        self.delta = delta
        self.caps: Mapping[UnitKind, float] = MappingProxyType(
            {unit: float(caps.get(unit, 0.0)) for unit in UNIT_KINDS}
        )
        self._spent = Spent.nothing()

    @property
    def spent(self) -> Spent:
        """Everything that was counted."""
        return self._spent

    def carry(self, before: Spent) -> None:
        """Count what was spent before the ledger began."""
        self._spent = self._spent + before

    def add(self, debits: tuple[Debit, ...], *, releases: int) -> None:
        """Count one record: an upload is one release, a training none."""
        self._spent = self._spent + Spent.of(
            (debit.charge for debit in debits),
            releases=releases,
            written=(debit.rdp for debit in debits),
        )

    def epsilons(self) -> dict[UnitKind, Epsilon]:
        """ε of every kind, with what it does not cover; 0 where nothing was charged."""
        return self._spent.epsilons(self.delta)

    def projected(self, charges: Iterable[Charge]) -> dict[UnitKind, float]:
        """ε of every kind if charges of one spec were made as well, to be compared with a cap."""
        after = self._spent + Spent.of(charges, releases=0)
        return {kind: found.epsilon for kind, found in after.epsilons(self.delta).items()}

    def require_affordable(self, charges: tuple[Charge, ...]) -> None:
        """Refuse charges of one spec that would pass a cap.

        Raises:
            BudgetExceededError: Naming the first unit kind that would.
        """
        projected = self.projected(charges)
        for unit in capped_kinds(charges, self.caps):
            # ε may round to zero, and a cap of zero still allows nothing.
            if not (projected[unit] <= self.caps[unit] and self.caps[unit] > 0):
                raise BudgetExceededError(
                    unit=unit, projected_epsilon=projected[unit], epsilon_cap=self.caps[unit]
                )


class RunDebits(NamedTuple):
    """Debits of one run."""

    releases: int = 0
    """Attempts that reached the upload, under every mode."""
    first_steps: int = 0
    """How many of them were of a round's step 0."""
    trainings: int = 0
    """Local trainings."""


class RunCount:
    """Debits of every run."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        """Begin with no debit."""
        self._runs: dict[str, RunDebits] = {}

    def of(self, run: str) -> RunDebits:
        """What a run holds."""
        return self._runs.get(run, RunDebits())

    def require_room(self, run: str, *, most_trainings: int | None) -> None:
        """Refuse another training of a run that holds as many as it may.

        Raises:
            TooManyDebitsError: If it does.
        """
        done = self.of(run).trainings
        if most_trainings is not None and done >= most_trainings:
            raise TooManyDebitsError(
                f"run {run} was charged for {done} trainings, its plan states epsilon for "
                f"{most_trainings}",
                of_run=True,
            )

    def add_release(self, run: str, *, step: int) -> None:
        """Count one attempt."""
        before = self.of(run)
        self._runs[run] = before._replace(
            releases=before.releases + 1, first_steps=before.first_steps + (step == 0)
        )

    def add_training(self, run: str) -> None:
        """Count one training."""
        before = self.of(run)
        self._runs[run] = before._replace(trainings=before.trainings + 1)


class DayCount:
    """Debits of the newest day."""

    __slots__ = ("_clock", "_count", "_most", "_newest")

    def __init__(self, clock: Callable[[], float], *, most: int | None = None) -> None:
        """Begin with no debit; ``clock`` gives Unix seconds, ``most`` is a day's ceiling."""
        self._clock = clock
        self._most = most
        self._newest = 0
        self._count = 0

    def today(self) -> int:
        """The day that a debit of now belongs to."""
        return max(self._newest, int(self._clock() // DAY_S))

    def next_day(self) -> int:
        """The day of a debit that is made now.

        Raises:
            TooManyDebitsError: If it holds as many as it may.
        """
        if self._most is not None and self.debits() >= self._most:
            raise TooManyDebitsError(
                f"this day already holds {self.debits()} debits, limits.max_attempts_per_day "
                f"{self._most} allows no more (days are UTC; setting the clock back begins none)",
                of_run=False,
            )
        return self.today()

    def add(self, day: int) -> None:
        """Count one debit.

        Raises:
            SpecError: If the day lies before one that was counted, or is none.
        """
        if not self._newest <= day <= _MAX_DAY:
            raise SpecError(f"a debit of day {day} follows one of day {self._newest}")
        self._count = self._count + 1 if day == self._newest else 1
        self._newest = day

    def debits(self) -> int:
        """How many debits today holds."""
        return self._count if self.today() == self._newest else 0
