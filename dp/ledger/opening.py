"""What a ledger starts from: what was spent before it, and the form it is written in.

    {kinds: {silo|task|user: {rdp: [R(α) for α in dp.accounting.rdp.ORDERS], failure}},
     unprotected, partial: {silo|task|user: count},
     cohort: [id, …], elsewhere: {federation: [id, …]}}

An ε does not compose with another, so the whole curve is carried, and every count with it.

No ε speaks of sums without noise: what limits them is whose the newest one was, which is carried as
well, of this federation in ``cohort`` and of others in ``elsewhere``. Either field is there only if
it says something, and earlier releases neither write nor read it.

Invariants of reading: exactly these fields for every kind, each of its very type; divergences and
failure probabilities are finite and not negative; counts are below 2^53; no release is protected
for a unit smaller than a task; silos of a cohort are in ascending order.

Covered: form and bounds of what another party may have written. Not covered: whether it is true
(who signed it: the caller), and where it is kept (``dp.ledger.ledger``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from dp.accounting.charge import UNIT_KINDS, UnitKind
from dp.accounting.compose import Cost, Spent
from dp.accounting.rdp import ORDERS
from dp.errors import SpecError

__all__ = ["MAX_ELSEWHERE", "Carried", "carried_fields", "cohort_of", "read_carried"]

MAX_ELSEWHERE: Final = 15
"""Other federations in which the data set was in a sum without noise."""
_MAX_COUNT: Final = (1 << 53) - 1
_MAX_COHORT: Final = 200
_MAX_SILO_CHARACTERS: Final = 63
_MAX_FEDERATION_CHARACTERS: Final = 128


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Carried(Spent):
    """What was spent, and whose the newest sums without noise were. Sums of these name nobody."""

    cohort: tuple[str, ...] | None = None
    """Whose the newest one of this federation was, in ascending order; None if none is known."""
    elsewhere: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The same of every other federation of which it is known, by name."""


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
    if carried.cohort is not None:
        fields["cohort"] = list(carried.cohort)
    if carried.elsewhere:
        fields["elsewhere"] = {name: list(ids) for name, ids in carried.elsewhere.items()}
    read_carried(fields)
    return fields


def read_carried(value: object) -> Carried:
    """What was spent, from its JSON form.

    Raises:
        SpecError: If it is of another form or out of bounds.
    """
    named = ("cohort", "elsewhere")
    known = tuple(name for name in named if isinstance(value, dict) and name in value)
    fields = _exactly(value, ("kinds", "unprotected", "partial", *known))
    costs = _exactly(fields["kinds"], UNIT_KINDS)
    counts = _exactly(fields["partial"], UNIT_KINDS)
    partial: dict[UnitKind, int] = {kind: _count(counts[kind]) for kind in UNIT_KINDS}
    if partial["task"]:
        raise SpecError("no release is protected for a unit smaller than a task")
    return Carried(
        kinds=MappingProxyType({kind: _cost(costs[kind]) for kind in UNIT_KINDS}),
        unprotected=_count(fields["unprotected"]),
        partial=MappingProxyType(partial),
        cohort=cohort_of(fields["cohort"]) if "cohort" in fields else None,
        elsewhere=_elsewhere(fields["elsewhere"]) if "elsewhere" in fields else {},
    )


def cohort_of(names: object) -> tuple[str, ...]:
    """Silo ids in ascending order, bounded.

    Raises:
        SpecError: If they are none, too many, out of order or no names.
    """
    if not isinstance(names, list) or not 1 <= len(names) <= _MAX_COHORT:
        raise SpecError(f"a cohort has 1 to {_MAX_COHORT} silos")
    for name in names:
        if type(name) is not str or not 1 <= len(name) <= _MAX_SILO_CHARACTERS:
            raise SpecError("a silo of a cohort has no name")
    if any(left >= right for left, right in pairwise(names)):
        raise SpecError("the silos of a cohort are not in ascending order")
    return tuple(names)


def _elsewhere(value: object) -> Mapping[str, tuple[str, ...]]:
    if not isinstance(value, dict) or not 1 <= len(value) <= MAX_ELSEWHERE:
        raise SpecError(f"sums without noise are known of 1 to {MAX_ELSEWHERE} other federations")
    if any(not 1 <= len(name) <= _MAX_FEDERATION_CHARACTERS for name in value):
        raise SpecError("a federation of what was spent before has no name")
    return MappingProxyType({name: cohort_of(ids) for name, ids in value.items()})


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
