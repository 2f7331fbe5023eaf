"""What rounds in simulated time ask of the rest of a setting.

Covered: sums of whoever is ready, so no aggregation that keeps something of each silo or of the
rounds; names that are silo ids; numbers that fit the file. Not covered: what the table asks of
itself (``lab/experiment/tables.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lab.experiment.methods import Method
from lab.experiment.tables import AggregationTable, OrchestrationTable, SiloTable
from secagg import bounds
from secagg.errors import MalformedMessageError

__all__ = ["unsimulated"]

_ANY_NUMBER: Final = frozenset({"fedavg", "ffa", "rolora"})
"""Aggregations that keep nothing from one round to the next."""


def unsimulated(
    table: OrchestrationTable,
    *,
    method: Method,
    aggregation: AggregationTable,
    silos: Sequence[SiloTable],
    is_chosen_otherwise: bool,
) -> Iterator[str]:
    """Everything that does not go together, one line each."""
    if method.topology != "federated" or method.clustered or method.personal:
        yield "orchestration: the method is not one sum of those who are ready"
    if is_chosen_otherwise:
        yield "orchestration: it chooses who takes part: leave groups, attack and per_round out"
    if aggregation.method not in _ANY_NUMBER or aggregation.server_optimiser != "fedavg":
        yield (
            f"orchestration: rounds have other numbers of silos: aggregation.method is one of "
            f"{', '.join(sorted(_ANY_NUMBER))}, with the plain server step"
        )
    there = len(silos)
    if max(table.quorum, table.selection.count or 0, table.liars + table.silent) > there:
        yield f"orchestration: there are {there} silos, and it speaks of more"
    for silo in silos:
        try:
            bounds.require_silo_id(silo.name, "silo.name")
        except MalformedMessageError as error:
            yield f"orchestration: {error}"
