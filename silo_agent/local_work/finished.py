"""What a round of local work left, waiting for the descriptors of its sums.

Invariants:

1. A round's figures go into one sum: that of step 0. The blocks of later steps are zeros under full
   noise, so that the figures are charged once.
2. What the block says of the update's norm is said of the vector that is released. Under
   ``record_distributed`` it is zero: the norm of a sum of unit gradients is no figure of a silo.
3. Nothing here is printed.

Covered: all privacy modes. Not covered: clip and noise (``dp.noise.share``).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from dp.config import Mode
from dp.noise.grid import l2_norm
from dp.noise.unit_sum import UnitSum
from evolution.methods.evolver import Evolution
from federation.adapter.layout import Layout
from federation.chain.sums import UPDATE_NORM_SQ
from federation.chain.task import RoundTask
from federation.plan.plan import Plan
from secagg.descriptor import OTHER_FAMILY, MetricsLayout
from silo_agent.local_work.contribution import Contribution

__all__ = ["FinishedWork", "KeptWork"]

KEPT_RUNS: Final = 4
"""Deltas of several runs are in memory at once: of those paused most recently, and the newest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedWork:
    """One round's."""

    run_id: str
    """The run."""
    round: int
    """The round."""
    plan: Plan
    """Under which it was done."""
    layout: Layout
    """Of the shared vector."""
    delta: np.ndarray
    """Flat float32 over ``layout``; not clipped. Empty under ``record_distributed``."""
    episodes: Mapping[str, int]
    """Played, by family."""
    successes: Mapping[str, int]
    """Solved, by family."""

    @classmethod
    def of(
        cls, task: RoundTask, plan: Plan, layout: Layout, evolution: Evolution, delta: np.ndarray
    ) -> Self:
        """What a round's evolution leaves behind.

        Args:
            task: The round.
            plan: Under which it was done.
            layout: Of the shared vector.
            evolution: With the counts.
            delta: Flat; not looked at under ``record_distributed``, whose sums come one by one.
        """
        stepped = plan.spec.mode is Mode.RECORD_DISTRIBUTED
        return cls(
            run_id=task.run_id,
            round=task.round,
            plan=plan,
            layout=layout,
            delta=np.zeros(0, dtype=np.float32) if stepped else delta,
            episodes=evolution.episodes,
            successes=evolution.successes,
        )

    def contribution(
        self, metrics: MetricsLayout, *, step: int = 0, unit_sum: Future[UnitSum] | None = None
    ) -> Contribution:
        """The vector and the metrics block for one attempt.

        Args:
            metrics: The block's coordinates.
            step: Of the attempt's identity.
            unit_sum: ``record_distributed``: the sum that is computed for this attempt alone.
        """
        return Contribution(
            delta=self.delta if unit_sum is None else unit_sum,
            metrics=self._figures(metrics.names)
            if step == 0
            else dict.fromkeys(metrics.names, 0.0),
        )

    def _figures(self, names: tuple[str, ...]) -> dict[str, float]:
        """Values by coordinate name; families that are not listed are counted as `other`."""
        figures = dict.fromkeys(names, 0.0)
        spec = self.plan.spec
        if UPDATE_NORM_SQ in figures and spec.mode is not Mode.RECORD_DISTRIBUTED:
            # What is released is the clipped vector, so its norm is what the sum is compared with.
            # NaN passes through min() on the left alone; the encoder must see it and refuse it.
            figures[UPDATE_NORM_SQ] = min(l2_norm(self.delta), spec.release.clip_l2) ** 2
        for kind, counts in (("episodes", self.episodes), ("successes", self.successes)):
            for family, count in counts.items():
                name = f"{kind}/{family}"
                if name not in figures:
                    name = f"{kind}/{OTHER_FAMILY}"
                if name in figures:
                    figures[name] += count
        return figures

    def __repr__(self) -> str:
        """Redacted: these numbers must not reach a log."""
        return f"FinishedWork(run_id={self.run_id!r}, round={self.round}, values redacted)"


class KeptWork:
    """The newest result of each of the last runs; not safe for threads by itself."""

    def __init__(self) -> None:
        self._newest: dict[str, FinishedWork] = {}

    def find(self, run_id: str, round_number: int) -> FinishedWork | None:
        """Return the result of a round, if it is kept."""
        done = self._newest.get(run_id)
        return done if done is not None and done.round == round_number else None

    def keep(self, finished: FinishedWork) -> tuple[str, int] | None:
        """Keep a result in the place of its run's older one.

        Args:
            finished: The result.

        Returns:
            Run and round of the result that had to go to make room, if one had to.
        """
        self._newest.pop(finished.run_id, None)
        self._newest[finished.run_id] = finished
        if len(self._newest) <= KEPT_RUNS:
            return None
        gone = self._newest.pop(next(iter(self._newest)))
        return gone.run_id, gone.round
