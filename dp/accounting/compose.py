"""What charges of several kinds of unit add up to, for every kind of unit.

A task lies in its user, and a user in its silo. So what is released about a unit tells of every
unit inside it, and what hides a unit hides every unit inside it.

    of one release           each kind pays for the smallest charged unit that contains it: at its
                             own sensitivity if it is that unit, else at that of a change inside it
                             (``Charge.rdp_inside``). Larger charged units cost it nothing more:
                             their noise is added to what already hides it (post-processing).
    a kind that no charged   the release is counted: it is protected for a smaller unit only, and
    unit contains            no ε of this kind speaks of it
    a release without any    the release is counted beside every kind: mode ``none``
    charge

Invariants:
    1. Releases add up, order by order, and failure probabilities with them; counts never shrink.
    2. ε is never handed out without its counts: ``Epsilon`` holds them, and ``str`` shows them.
    3. The rule is for charges of one spec at a time. Charges of two are two ``Spent`` to be added.

Adjacency of every ε: zero-out (a unit's contribution is there, or is the null one). For a unit that
pays for a larger one, both contributions of the larger unit may be anything.

Covered: releases of all modes and kinds of unit in any order, for a ledger and for a forecast.
Not covered: groups of units of one kind; ε of a kind for the releases that are only counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, Self

import numpy as np

from dp.accounting.charge import UNIT_KINDS, Charge, UnitKind, epsilon_after, run_charges
from dp.accounting.rdp import ORDERS, Divergences
from dp.config import PrivacySpec

_INWARDS: Final[tuple[UnitKind, ...]] = ("silo", "user", "task")
"""Each kind lies in those before it."""


@dataclass(frozen=True, slots=True)
class Epsilon:
    """ε of one kind of unit, and the releases that it does not speak of.

    ``str`` is how people see it, ``dataclasses.asdict`` the JSON form.
    """

    epsilon: float
    """What a cap is compared with; may be infinite."""
    partial_releases: int = 0
    """Releases that were protected for a smaller unit only."""
    unprotected_releases: int = 0
    """Releases in mode ``none``."""
    adjacency: Literal["zero-out"] = field(default="zero-out", init=False)
    """Between which data sets it bounds the difference."""

    @property
    def exceptions(self) -> str:
        """The releases in words, empty if ε speaks of all."""
        parts = []
        if self.partial_releases:
            parts.append(f"{_releases(self.partial_releases)} protected for a smaller unit only")
        if self.unprotected_releases:
            parts.append(f"{_releases(self.unprotected_releases)} in mode none")
        return " and ".join(parts)

    def __str__(self) -> str:
        """ε to four digits, with what it does not speak of."""
        exceptions = self.exceptions
        return f"{self.epsilon:.4g}" + (f" and {exceptions}" if exceptions else "")


class Cost(NamedTuple):
    """What one kind of unit paid."""

    rdp: Divergences
    """Rényi divergences at ``dp.accounting.rdp.ORDERS``."""
    failure: float
    """Probability of a failure, which comes off δ."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Spent:
    """Everything that was charged: it can be added to, and composes exactly."""

    kinds: Mapping[UnitKind, Cost]
    """Every kind."""
    unprotected: int
    """Releases in mode ``none``."""
    partial: Mapping[UnitKind, int]
    """By kind, releases that were protected for a smaller unit only."""

    @classmethod
    def nothing(cls) -> Self:
        """What a new data set has spent."""
        return cls._of(dict.fromkeys(UNIT_KINDS, Cost(np.zeros(len(ORDERS)), 0.0)), 0, {})

    @classmethod
    def of(
        cls,
        charges: Iterable[Charge],
        *,
        releases: int,
        written: Iterable[Divergences] | None = None,
    ) -> Self:
        """What charges of one spec cost every kind.

        ``releases`` are the uploads among what they pay for: none for a training alone. ``written``
        are the divergences of each charge as a ledger holds them; those of now when not given.
        """
        made = tuple(charges)
        own = [charge.rdp for charge in made] if written is None else list(written)
        kinds: dict[UnitKind, Cost] = {}
        partial: dict[UnitKind, int] = {}
        for kind in UNIT_KINDS:
            bearer = _bearer(kind, made)
            rdp, failure = np.zeros(len(ORDERS)), 0.0
            for charge, divergences in zip(made, own, strict=True):
                if charge.unit == bearer:
                    rdp = rdp + (divergences if bearer == kind else charge.rdp_inside)
                    failure += charge.delta
            kinds[kind] = Cost(rdp, failure)
            if made and bearer is None:
                partial[kind] = releases
        return cls._of(kinds, 0 if made else releases, partial)

    @classmethod
    def of_run(
        cls,
        spec: PrivacySpec,
        *,
        releases: int,
        first_steps: int | None = None,
        trainings: int | None = None,
    ) -> Self:
        """What a run costs at most; ``dp.accounting.charge.run_charges`` says what is counted."""
        charges = run_charges(spec, releases=releases, first_steps=first_steps, trainings=trainings)
        return cls.of(charges, releases=releases)

    def __add__(self, other: Self) -> Self:
        """Both, one after the other."""
        return self._of(
            {
                kind: Cost(
                    self.kinds[kind].rdp + other.kinds[kind].rdp,
                    self.kinds[kind].failure + other.kinds[kind].failure,
                )
                for kind in UNIT_KINDS
            },
            self.unprotected + other.unprotected,
            {kind: self.partial[kind] + other.partial[kind] for kind in UNIT_KINDS},
        )

    def epsilons(self, delta: float) -> dict[UnitKind, Epsilon]:
        """ε of every kind at δ, in the order of ``UNIT_KINDS``; infinite where no δ is left."""
        return {
            kind: Epsilon(
                epsilon_after(self.kinds[kind].rdp, delta, self.kinds[kind].failure),
                self.partial[kind],
                self.unprotected,
            )
            for kind in UNIT_KINDS
        }

    @classmethod
    def _of(
        cls, kinds: Mapping[UnitKind, Cost], unprotected: int, partial: Mapping[UnitKind, int]
    ) -> Self:
        return cls(
            kinds=MappingProxyType(dict(kinds)),
            unprotected=unprotected,
            partial=MappingProxyType({kind: partial.get(kind, 0) for kind in UNIT_KINDS}),
        )


def epsilon_of(charges: Iterable[Charge], delta: float) -> dict[UnitKind, float]:
    """ε at δ of charges of one spec, for each kind that they cost anything; to compare with."""
    return {kind: found.epsilon for kind, found in shown_epsilon_of(charges, delta).items()}


def shown_epsilon_of(charges: Iterable[Charge], delta: float) -> dict[UnitKind, Epsilon]:
    """The same, to be shown: of a kind that they cost anything, one spec leaves no release out."""
    made = tuple(charges)
    found = Spent.of(made, releases=0).epsilons(delta)
    return {kind: found[kind] for kind in charged_kinds(made)}


def charged_kinds(charges: Iterable[Charge]) -> tuple[UnitKind, ...]:
    """The kinds that charges of one spec cost anything, in the order of ``UNIT_KINDS``."""
    made = tuple(charges)
    return tuple(kind for kind in UNIT_KINDS if _bearer(kind, made) is not None)


def capped_kinds(charges: Iterable[Charge], caps: Mapping[UnitKind, float]) -> tuple[UnitKind, ...]:
    """The kinds whose caps hold against charges of one spec, in the order of ``UNIT_KINDS``.

    Each kind that a charge is made for, whether it has a cap or not; and each kind inside one of
    them that has a cap above 0.
    """
    made = tuple(charges)
    own = {charge.unit for charge in made}
    return tuple(kind for kind in charged_kinds(made) if kind in own or caps.get(kind, 0.0) > 0.0)


def kinds_inside(unit: UnitKind) -> tuple[UnitKind, ...]:
    """The smaller kinds, in the order of ``UNIT_KINDS``."""
    inside = _INWARDS[_INWARDS.index(unit) + 1 :]
    return tuple(kind for kind in UNIT_KINDS if kind in inside)


def _bearer(kind: UnitKind, charges: tuple[Charge, ...]) -> UnitKind | None:
    """The smallest charged unit that is or contains ``kind``."""
    charged = {charge.unit for charge in charges}
    around = reversed(_INWARDS[: _INWARDS.index(kind) + 1])
    return next((unit for unit in around if unit in charged), None)


def _releases(count: int) -> str:
    return f"{count} release" + ("" if count == 1 else "s")
