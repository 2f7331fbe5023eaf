"""The seam between a run and where its members work.

An engine is given the local work of a round and yields what came of it. Invariants of each:

1. Results come in the order of the work, one for each.
2. They are the same bits with every engine (``local_round.py``).
3. When a result is yielded, the member's stores are those that its round left (``stores.py``).
4. Work is begun as results are taken, so that as many deltas are in memory as are being made, and
   not as many as there are members.

Covered: what a run asks of an engine, and the engine of one process. Not covered: Ray
(``ray_engine.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from evolution.methods.evolver import Evolution
from evolution.rollout.engine import RolloutEngine
from lab.experiment.config import Run
from lab.experiment.engines.local_round import LocalRound, play_local_round
from lab.experiment.engines.machines import machines_of
from lab.experiment.engines.stores import Stores

__all__ = ["MACHINES", "MemberEngine", "ProcessEngine"]

MACHINES: Final = "machines"
"""Where processes that train are handed their jobs, in the run's scratch directory."""


class MemberEngine(ABC):
    """See the module."""

    stores: Stores
    """The members'."""
    rollout: RolloutEngine
    """What the judge plays with, in the run's own process."""

    @abstractmethod
    def play(self, work: Sequence[LocalRound]) -> Iterator[Evolution]:
        """Do this work; a member is in it once at most.

        Raises:
            ExperimentError: Some of it cannot be done.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the models, and end what was started."""


class ProcessEngine(MemberEngine):
    """One member after another, in this process, with one engine and one trainer for all."""

    def __init__(self, run: Run, scratch: Path) -> None:
        """Load the base model.

        Raises:
            EvolverSetupError: This machine does not have what the file asks for.
            RolloutError: The rollout engine cannot be made.
        """
        self._run = run
        self._machines = machines_of(run, scratch / MACHINES)
        self.stores = Stores(scratch)
        self.rollout = self._machines.engine

    def play(self, work: Sequence[LocalRound]) -> Iterator[Evolution]:
        """See ``MemberEngine``."""
        for one in work:
            attempt = self.stores.begin(one.indices)
            try:
                evolution = play_local_round(self._run, one, attempt, machines=self._machines)
                self.stores.keep(one.indices, attempt)
            except BaseException:
                self.stores.forget(attempt)
                raise
            yield evolution

    def close(self) -> None:
        """Release the models."""
        self._machines.close()
