"""An optimiser's state, rebuilt from what is published of the round so far.

A coordinator that restarts and a silo that joins in the middle of a round hold the round's earlier
records and sums, and nothing else is needed: the state is zero at step 0.

Ordered checks, for every release from step 0 on: the record is of the round and of the next step;
an aggregated one comes with its sum, byte for byte the one that it names.

Covered: the state. Not covered: the records' signatures and links (``federation.record``).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from federation.aggregate.optimiser import Optimiser
from federation.errors import UpdateError
from federation.plan import Plan
from federation.record import AdapterRecord
from federation.sums import digest_of_sum, mean_of_release, signed_sum


def replay(
    optimiser: Optimiser,
    *,
    plan: Plan,
    round_number: int,
    dimension: int,
    releases: Iterable[tuple[AdapterRecord, npt.NDArray[np.integer] | None]],
) -> None:
    """Bring an optimiser, whatever its state, to the end of a round's earlier releases.

    Args:
        optimiser: The plan's.
        plan: The run's plan.
        round_number: The round.
        dimension: Coordinates that it shares (``Aggregator.shared_layout``).
        releases: Verified records of steps 0, 1, … with the whole published sum of each, delta
            then metrics block; None for a skipped one.

    Raises:
        UpdateError: If a record is out of order or a sum is not the one it names.
    """
    for step, (record, total) in enumerate(releases):
        if record.place != (round_number, step):
            raise UpdateError(
                f"round {round_number} step {step} cannot be replayed from {record.place}"
            )
        if record.kind != "aggregated":
            optimiser.skip(round_number=round_number, step=step)
            continue
        if total is None or digest_of_sum(total) != record.sum_sha256:
            raise UpdateError(f"{record.place}: the sum is not the one that the record names")
        if total.size < dimension:
            raise UpdateError(f"the sum has {total.size} elements, the round shares {dimension}")
        mean = mean_of_release(plan, signed_sum(total)[:dimension], len(record.survivors))
        optimiser.move(mean, round_number=round_number, step=step)
