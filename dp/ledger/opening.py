"""What a ledger starts from: what was spent before it, and the form it is written in.

    {kinds: {silo|task|user: {rdp: [R(α) for α in dp.accounting.rdp.ORDERS], failure}},
     unprotected, partial: {silo|task|user: count}}

An ε does not compose with another, so the whole curve is carried, and every count with it.

Invariants of reading: exactly these fields for every kind, each of its very type; divergences and
failure probabilities are finite and not negative; counts are below 2^53; no release is protected
for a unit smaller than a task.

Covered: form and bounds of what another party may have written. Not covered: whether it is true
(who signed it: the caller), and where it is kept (``dp.ledger.ledger``).
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from dp.accounting.charge import UNIT_KINDS, UnitKind
from dp.accounting.compose import Cost
from dp.accounting.compose import Spent as Carried
from dp.accounting.rdp import ORDERS
from dp.errors import SpecError

__all__ = ["Carried", "carried_fields", "read_carried"]

_MAX_COUNT: Final = (1 << 53) - 1


def carried_fields(carried: Carried) -> dict[str, Any]:
    """The JSON form.

    Raises:
        SpecError: If it could not be read again.
    """
    fields: dict[str, Any] = {
        "kinds": {
            kind: {"rdp": cost.rdp.tolist(), "failure": float(cost.failure)}
            for kind, cost in carried.kinds.items()
        },
        "unprotected": carried.unprotected,
        "partial": dict(carried.partial),
    }
    read_carried(fields)
    return fields


def read_carried(value: object) -> Carried:
    """What was spent, from its JSON form.

    Raises:
        SpecError: If it is of another form or out of bounds.
    """
    fields = _exactly(value, ("kinds", "unprotected", "partial"))
    costs = _exactly(fields["kinds"], UNIT_KINDS)
    counts = _exactly(fields["partial"], UNIT_KINDS)
    partial: dict[UnitKind, int] = {kind: _count(counts[kind]) for kind in UNIT_KINDS}
    if partial["task"]:
        raise SpecError("no release is protected for a unit smaller than a task")
    return Carried(
        kinds=MappingProxyType({kind: _cost(costs[kind]) for kind in UNIT_KINDS}),
        unprotected=_count(fields["unprotected"]),
        partial=MappingProxyType(partial),
    )


def _cost(value: object) -> Cost:
    fields = _exactly(value, ("rdp", "failure"))
    figures = fields["rdp"]
    if not isinstance(figures, list) or len(figures) != len(ORDERS):
        raise SpecError(f"what was spent before has {len(ORDERS)} divergences for each kind")
    rdp = np.array([_figure(figure) for figure in figures], dtype=np.float64)
    rdp.flags.writeable = False
    return Cost(rdp, _figure(fields["failure"]))


def _exactly(value: object, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != set(keys):
        raise SpecError(f"what was spent before has the fields {', '.join(keys)}, and no others")
    return value


def _figure(value: object) -> float:
    if type(value) is not float or not (math.isfinite(value) and value >= 0.0):
        raise SpecError("a figure of what was spent before is finite, a float and not negative")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise SpecError("a count of what was spent before is an integer in [0, 2^53)")
    return value
