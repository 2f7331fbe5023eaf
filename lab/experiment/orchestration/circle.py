"""All silos of a run whose rounds pass in simulated time; each sum has those who were ready.

    bytes up      4 for each summed coordinate, from each silo in the sum
    bytes down    4 for each coordinate of the adapter, to every silo, where a round had a sum:
                  those who sit out follow the adapter too

Invariant: a round's arithmetic is that of a ``SharingCircle`` of as many silos as are in its sum,
which keeps nothing between rounds (``config.py`` refuses what would).

Covered: rounds of any size from the quorum on, and lost ones. Not covered: the protocol's own bytes
beside the vectors, some kilobytes a silo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from evolution.methods.evolver import Evolution
from lab.aggregation.aggregation import LabAggregation
from lab.experiment.config import Run
from lab.experiment.engines.local_round import LocalRound
from lab.experiment.errors import ExperimentError
from lab.experiment.federation_round import Circle, CircleState, update_of
from lab.experiment.member import Adapter
from lab.experiment.orchestration.orchestrator import Begun, Orchestrator, Tries
from lab.experiment.sums import RoundMean
from lab.experiment.tables import OrchestrationTable
from lab.experiment.tasks.environments import catalogue_of
from lab.experiment.tasks.own_tasks import task_ids_of

__all__ = ["OrchestratedCircle", "Sums", "orchestrator_of"]

Sums = Callable[[Adapter, int, int], tuple[LabAggregation, RoundMean]]
"""The arithmetic of a round: from an adapter, its number and how many silos are in its sum."""
COORDINATE_BYTES: Final = 4
_TOLD_DIGITS: Final = 3


def orchestrator_of(run: Run, table: OrchestrationTable) -> Orchestrator:
    """Of a run, before its first round."""
    catalogue = catalogue_of(run)
    return Orchestrator(
        table,
        run_id=f"{run.experiment}-{run.setting}-{run.seed}",
        sha256=run.sha256,
        seed=run.seed,
        rounds=run.rounds,
        families={
            silo.name: tuple(sorted({catalogue.family(name) for name in silo.environments}))
            for silo in run.silos
        },
        sizes={
            silo.name: sum(len(task_ids_of(run, place, name)) for name in silo.environments)
            for place, silo in enumerate(run.silos)
        },
        most_tries=run.evolve.episodes * run.evolve.local_epochs,
    )


class OrchestratedCircle(Circle):
    """See the module."""

    def __init__(
        self, run: Run, adapter: Adapter, *, orchestration: OrchestrationTable, sums: Sums
    ) -> None:
        super().__init__([(place,) for place in range(len(run.silos))], adapter)
        self._sums = sums
        self._orchestrator = orchestrator_of(run, orchestration)
        self._places = {silo.name: place for place, silo in enumerate(run.silos)}
        self._begun: Begun | None = None
        self._told: dict[str, Any] = {}

    def work(self, round_number: int) -> list[LocalRound]:
        """Choose, and let those work whose work will be in the sum."""
        began_unix_s = self._orchestrator.now_unix_s
        self._begun = begun = self._orchestrator.begin(round_number)
        timing = begun.timing
        advised_s = self._orchestrator.now_unix_s - began_unix_s
        self._told = {
            "asked": len(begun.choice.silos),
            "ready": len(timing.ready),
            "lost": timing.is_lost,
            "seconds": round(advised_s + timing.seconds, _TOLD_DIGITS),
            "deadline_s": begun.deadline_s,
            "requests": begun.requests,
            "tokens": begun.tokens,
            "advised": begun.is_advised,
            "liars": begun.liars,
        }
        if timing.is_lost:
            return []
        ready = sorted(self._places[silo_id] for silo_id in timing.ready)
        aggregation, _ = self._sums(self.adapter, round_number, len(ready))
        return [
            LocalRound(
                indices=self.members[place],
                round_number=round_number,
                adapter=self.adapter,
                trainable=aggregation.trainable(round_number),
            )
            for place in ready
        ]

    def take(self, round_number: int, evolutions: Sequence[Evolution]) -> None:
        """Sum what those who were ready learned; nothing where the round was lost.

        Raises:
            ExperimentError: The round was not begun.
        """
        begun = self._begun
        if begun is None or begun.number != round_number:
            raise ExperimentError(f"round {round_number} was not begun")
        ready = () if begun.timing.is_lost else begun.timing.ready
        places = sorted(self._places[silo_id] for silo_id in ready)
        uploaded = downloaded = 0
        if places:
            aggregation, mean = self._sums(self.adapter, round_number, len(places))
            shared = aggregation.trainable(round_number)
            each = COORDINATE_BYTES * sum(self.adapter[name].size for name in shared)
            uploaded = each * len(places)
            self.adapter = aggregation.combine(
                self.adapter,
                [update_of(one, at) for one, at in zip(evolutions, places, strict=True)],
                round_number=round_number,
                mean=mean.among(places),
            )
            whole = sum(tensor.size for tensor in self.adapter.values())
            downloaded = COORDINATE_BYTES * whole * len(self.members)
        names = {place: name for name, place in self._places.items()}
        tries = {
            names[place]: Tries(episodes=one.episodes, successes=one.successes)
            for place, one in zip(places, evolutions, strict=True)
        }
        self._orchestrator.end(begun, tries, upload_bytes=uploaded)
        self._told |= {"upload_bytes": uploaded, "download_bytes": downloaded}

    def simulated(self) -> dict[str, Any]:
        """What the last round came to."""
        return dict(self._told)

    def decisions(self) -> str:
        """A line for each round."""
        return self._orchestrator.decisions

    def state(self) -> CircleState:
        """The adapter, and everything that goes from round to round."""
        return CircleState(adapter=self.adapter, record=self._orchestrator.record())

    def take_up(self, state: CircleState) -> None:
        """Go on with both."""
        super().take_up(state)
        self._orchestrator.take_up(state.record)
