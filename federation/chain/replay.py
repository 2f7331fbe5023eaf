"""An optimiser's state, rebuilt from what is published of the run so far.

A coordinator that restarts holds the run's records and sums, and a silo can fetch them. Nothing
else is needed: the state is zero at step 0 of the round, or at the run's first release where it
crosses rounds, and after every rollback. So no sum from before the newest rollback is needed.

Ordered checks, for every release from there on: the record is of the next place; an aggregated one
comes with its sums, byte for byte those that it names.

Covered: the state. Not covered: the records' signatures and links (``federation.chain.record``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from federation.aggregate.optimiser import Optimiser
from federation.aggregate.rounds import FIRST_ROUND
from federation.aggregate.server_step import SignedVector
from federation.chain.record import AdapterRecord, place_at, position_of
from federation.chain.sums import digest_of_sum, move_of_release, signed_sum
from federation.errors import UpdateError
from federation.plan.plan import Plan


def replay_start(optimiser: Optimiser, plan: Plan, round_number: int) -> int:
    """Position in the chain of the release at which the state of a round's optimiser begins."""
    first = FIRST_ROUND if optimiser.crosses_rounds else round_number
    return position_of(first, 0, plan.sums_per_round)


def since_rollback(records: Sequence[AdapterRecord]) -> Sequence[AdapterRecord]:
    """The records of a part of a chain from its newest rollback on; all of them without one."""
    for index in range(len(records) - 1, -1, -1):
        if records[index].kind == "rollback":
            return records[index:]
    return records


def replay(
    optimiser: Optimiser,
    *,
    plan: Plan,
    round_number: int,
    dimension: int,
    releases: Iterable[tuple[AdapterRecord, Sequence[npt.NDArray[np.integer]]]],
) -> None:
    """Bring an optimiser, whatever its state, to the end of the releases before one.

    The optimiser is the plan's, and ``round_number`` that of the release that comes next.
    ``dimension`` counts the coordinates that it shares (``Aggregator.shared_layout``); where a
    state crosses rounds every round shares the same. The releases are verified records from
    ``replay_start`` on, or from a rollback after it, with the whole published sums of each by part,
    delta then metrics block; none for one without a sum.

    Raises:
        UpdateError: If a record is out of order or a sum is not the one it names.
    """
    position = replay_start(optimiser, plan, round_number) - 1
    for number, (record, totals) in enumerate(releases):
        position += 1
        if number == 0 and record.kind == "rollback":
            # Nothing before it is left in the state.
            position = max(position, position_of(*record.place, plan.sums_per_round))
        place = place_at(position, plan.sums_per_round)
        if record.place != place:
            raise UpdateError(
                f"round {place.round} step {place.step} cannot be replayed from {record.place}"
            )
        if record.kind == "rollback":
            optimiser.restart(round_number=place.round, step=place.step)
            continue
        if record.kind != "aggregated":
            optimiser.skip(round_number=place.round, step=place.step)
            continue
        named = [part.sum_sha256 for part in record.parts]
        if [digest_of_sum(total) for total in totals] != named:
            raise UpdateError(f"{record.place}: the sum is not the one that the record names")
        move_of_release(
            plan,
            optimiser,
            deltas_of(record, totals, dimension=dimension),
            round_number=place.round,
            step=place.step,
        )


def deltas_of(
    record: AdapterRecord, totals: Sequence[npt.NDArray[np.integer]], *, dimension: int
) -> list[tuple[SignedVector, int]]:
    """The deltas of a record's sums, each with its survivors K; ``totals`` are its sums by part.

    Raises:
        UpdateError: If a sum is no vector of signed integers, or shorter than ``dimension``.
    """
    deltas = []
    for total, part in zip(totals, record.parts, strict=True):
        if total.size < dimension:
            raise UpdateError(f"the sum has {total.size} elements, the round shares {dimension}")
        deltas.append((signed_sum(total)[:dimension], len(part.survivors)))
    return deltas
