"""A federation whose honest silos have guards: vetoes, stops, and the way back.

Each honest silo judges the adapter that a round begins with before it works with it. Whoever
refuses it explores and learns nothing with it, uploads zeros under full noise and vetoes; an
attacker never does. The vetoes are summed under noise (``vetoes.py``), and the run stops by the
rule of a plan's ``[vetoes]`` (``federation/chain/vetoes.py``): the same code as real silos and a
real coordinator run.

Ordered invariants:

1. A run that stopped in round r goes back in round r + 1, whose place the rollback takes: nobody
   works in it and nothing is summed. **The admin's signature is automatic here, and given at
   once**, to the adapter that a coordinator would propose; every silo follows.
2. Where what is refused is the run's initial adapter there is none to go back to, and the run goes
   on with it, as an admin may resume one.
3. After the last round nothing stops. What each silo serves then is judged by itself
   (``single_run.py``): a refused adapter is not served, whatever the chain ends with.

Covered: one circle of all silos, with one sum or with groups. Not covered: silos that are away, a
policy that refuses rollbacks, the state of server optimisers (``vetoes.unguarded``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evolution.methods.evolver import Evolution
from federation.chain.vetoes import origin_of, stops
from lab.aggregation.aggregation import LabAggregation
from lab.experiment.engines.local_round import LocalRound
from lab.experiment.federation_round import CircleState, Guarding, Indices, SharingCircle
from lab.experiment.guards.silo import Head
from lab.experiment.guards.vetoes import VetoSum
from lab.experiment.member import VETOED, Adapter
from lab.experiment.sums import RoundMean
from lab.experiment.tables import GuardTable

__all__ = ["GuardedCircle", "Vetoing"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Vetoing:
    """What vetoes come to in a run."""

    table: GuardTable
    """The setting's."""
    sums: VetoSum
    """Of each round."""
    rounds: int
    """Of the run."""


class GuardedCircle(SharingCircle):
    """See the module."""

    def __init__(
        self,
        members: Sequence[Indices],
        adapter: Adapter,
        *,
        aggregation: LabAggregation,
        mean: RoundMean,
        vetoing: Vetoing,
    ) -> None:
        super().__init__(members, adapter, aggregation=aggregation, mean=mean)
        self._vetoing = vetoing
        self._ended: list[dict[str, np.ndarray]] = [self.adapter]
        self._restored: dict[int, int] = {}
        self._back_to: int | None = None

    def adapter_of(self, round_number: int) -> dict[str, np.ndarray]:
        """What a round ended with; 0 is the initial one."""
        return self._ended[round_number]

    def last_look(self, round_number: int) -> list[LocalRound]:
        """What members are to do after a run's last round: judge what it ended with."""
        return [replace(one, learns=False) for one in self._beginning(round_number + 1)]

    def work(self, round_number: int) -> list[LocalRound]:
        """Judge and, unless that vetoes, evolve; nothing where a rollback takes the round."""
        return [] if self._back_to is not None else self._beginning(round_number)

    def take(self, round_number: int, evolutions: Sequence[Evolution]) -> None:
        """Combine the deltas and count the vetoes, or go back."""
        if self._back_to is not None:
            self.adapter = dict(self._ended[self._back_to])
            self._restored[round_number] = self._back_to
            self.guarding = Guarding(restored_round=self._back_to)
            self._back_to = None
        else:
            super().take(round_number, evolutions)
            self._count(round_number, evolutions)
        self._ended.append(self.adapter)

    def state(self) -> CircleState:
        """As of a sharing circle, with what each round ended with."""
        return replace(
            super().state(),
            ended=tuple(self._ended),
            restored=dict(self._restored),
            back_to=self._back_to,
        )

    def take_up(self, state: CircleState) -> None:
        """Go on with all of it."""
        super().take_up(state)
        named = {*state.restored.values(), *((state.back_to,) if state.back_to is not None else ())}
        if not state.ended or any(number >= len(state.ended) for number in named):
            raise ValueError("the state lacks an adapter that a rollback brings back")
        self._ended = [dict(adapter) for adapter in state.ended]
        self._restored = dict(state.restored)
        self._back_to = state.back_to

    def _beginning(self, round_number: int) -> list[LocalRound]:
        work = super().work(round_number)
        before = round_number - 1
        if before == 0:
            return work
        head = Head(round=before, restored_round=self._restored.get(before))
        return [replace(one, judged=head) for one in work]

    def _count(self, round_number: int, evolutions: Sequence[Evolution]) -> None:
        found = [VETOED in evolution.metrics for evolution in evolutions]
        vetoes = self._vetoing.sums.of_round(round_number, found)
        self.guarding = Guarding(vetoes=vetoes)
        if stops(
            self._vetoing.table.asked,
            vetoes,
            round_number=round_number,
            rounds=self._vetoing.rounds,
        ):
            refused = origin_of(self._restored, round_number - 1)
            self._back_to = refused - 1 if refused else None
