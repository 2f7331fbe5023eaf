"""What was spent, unit kind by unit kind, against the silo's own caps.

    ε of a kind = min over α of the conversion of ΣR(α) at δ − Σ failure probabilities

Invariants:
    1. Kinds do not pay for each other: each has its own sum, its own failures and its own cap.
    2. A kind without a cap, or with a cap of 0, pays for nothing.
    3. All charges of a debit fit, or none is made.

Covered: sums and caps. Not covered: what is written (``dp.ledger.ledger``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np

from dp.accounting.charge import UNIT_KINDS, Charge, UnitKind, epsilon_after
from dp.accounting.rdp import ORDERS, Divergences
from dp.errors import BudgetExceededError, SpecError
from dp.ledger.record import Debit, debits_of


class Totals:
    """Divergences and failure probabilities so far."""

    __slots__ = ("_failure", "_rdp", "caps", "delta")

    def __init__(self, *, delta: float, caps: Mapping[UnitKind, float]) -> None:
        """Begin with nothing spent.

        Args:
            delta: δ at which ε is computed.
            caps: Largest ε of each kind; a kind that is missing pays for nothing.

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
        self._rdp: dict[UnitKind, Divergences] = {
            unit: np.zeros(len(ORDERS)) for unit in UNIT_KINDS
        }
        self._failure: dict[UnitKind, float] = dict.fromkeys(UNIT_KINDS, 0.0)

    def add(self, debits: Iterable[Debit]) -> None:
        """Count what was written."""
        for debit in debits:
            unit = debit.charge.unit
            self._rdp[unit] = self._rdp[unit] + debit.rdp
            self._failure[unit] += debit.charge.delta

    def epsilons(self) -> dict[UnitKind, float]:
        """ε of every kind; 0 where nothing was charged."""
        return {
            unit: epsilon_after(self._rdp[unit], self.delta, self._failure[unit])
            for unit in UNIT_KINDS
        }

    def projected(self, charges: Iterable[Charge]) -> dict[UnitKind, float]:
        """ε of every kind if the charges were made as well."""
        after = Totals(delta=self.delta, caps=self.caps)
        after._rdp.update(self._rdp)
        after._failure.update(self._failure)
        after.add(debits_of(tuple(charges)))
        return after.epsilons()

    def require_affordable(self, charges: tuple[Charge, ...]) -> None:
        """Refuse charges that would pass a cap.

        Raises:
            BudgetExceededError: Naming the first unit kind that would.
        """
        projected = self.projected(charges)
        for unit in UNIT_KINDS:
            if not any(charge.unit == unit for charge in charges):
                continue
            # ε may round to zero, and a cap of zero still allows nothing.
            if not (projected[unit] <= self.caps[unit] and self.caps[unit] > 0):
                raise BudgetExceededError(
                    unit=unit, projected_epsilon=projected[unit], epsilon_cap=self.caps[unit]
                )
