"""The server optimiser of one run at the coordinator: in memory, and rebuilt from stored sums.

Invariant: its state is never stored. The published sums since the state began, at the round's first
step or the run's or after the newest rollback, are the state; after a restart or a step without a
sum they are replayed.

Covered: every optimiser of ``federation/aggregate``. Not covered: the step itself
(``server/run/aggregation.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from federation.aggregate.optimiser import Optimiser
from federation.chain.record import AdapterRecord, Place, position_of
from federation.chain.replay import replay, replay_start, since_rollback
from federation.plan.plan import Plan
from server.run.chain import Chain
from server.store.blobs.storage import BlobStorage

__all__ = ["RunOptimiser"]


class RunOptimiser:
    """One run's optimiser, brought to where the chain is whenever it is asked for."""

    def __init__(self, plan: Plan, chain: Chain, blobs: BlobStorage) -> None:
        self._plan = plan
        self._chain = chain
        self._blobs = blobs
        self._optimiser = plan.optimiser()

    def ready_for(self, place: Place, *, dimension: int) -> Optimiser:
        """The optimiser as the release before the one at ``place`` left it.

        ``dimension`` counts the coordinates that the round shares.

        Raises:
            BlobError: A stored sum is missing or damaged.
            UpdateError: A stored sum is not the one that its record names.
        """
        if not self._optimiser.is_ready_for(place.round, place.step):
            replay(
                self._optimiser,
                plan=self._plan,
                round_number=place.round,
                dimension=dimension,
                releases=self._releases_before(place),
            )
        return self._optimiser

    def forget(self) -> None:
        """A step had no sum: what one may have moved must not count, as it counts nowhere."""
        self._optimiser = self._plan.optimiser()

    def _releases_before(
        self, place: Place
    ) -> Iterator[tuple[AdapterRecord, list[npt.NDArray[np.integer]]]]:
        start = replay_start(self._optimiser, self._plan, place.round)
        stop = position_of(place.round, place.step, self._plan.sums_per_round)
        for record in since_rollback(self._chain.between(start, stop)):
            sums = (self._blobs.get(part.sum_sha256) for part in record.parts)
            yield record, [np.frombuffer(each, dtype="<i4") for each in sums]
