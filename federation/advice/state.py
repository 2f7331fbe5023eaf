"""What a model may see of a round: numbers, words of closed lists and public ids, nothing else.

Invariants:

1. No field holds text that a silo, a plan or a file chose: a string is a silo's id
   (``[a-z0-9][a-z0-9-]{0,62}``, admitted by the consortium) or a word of an enumeration below. So
   nothing that a silo publishes can read as an instruction.
2. No field is one silo's result: there are no losses, rewards, norms or vetoes of a silo; what is
   said of a round is who was asked, who was in its sums, what it cost, and the mean that the masked
   sum gave with its standard error.
3. Everything is bounded: silos, rounds and every number.

Covered: the above by type. Not covered: whether what a silo publishes is true; a lying silo can
have itself asked or left out, as it can by being there or not.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from federation.advice.proposal import Closed, Limits, SiloId
from federation.membership.facts import MAX_QUEUE, Availability, BudgetLeft, FreeGpu
from secagg import bounds

__all__ = [
    "MAX_HISTORY",
    "PublishedFacts",
    "RoundOutcome",
    "RoundState",
    "RoundSummary",
    "SiloState",
]

MAX_HISTORY: Final = 256
"""Rounds that a state tells of: the newest."""
MAX_ROUNDS: Final = 1_000_000
MAX_SECONDS: Final = 10_000_000
MAX_BYTES: Final = 1 << 53
MAX_FIGURE: Final = 1e6
"""A figure under noise may lie far outside of what it estimates."""

RoundNumber = Annotated[int, Field(ge=1, le=MAX_ROUNDS)]
Count = Annotated[int, Field(ge=0, le=bounds.MAX_ROSTER)]


class PublishedFacts(Closed):
    """What a silo chose to publish; None for what it did not."""

    availability: Availability | None = None
    queue: Annotated[int, Field(ge=0, le=MAX_QUEUE)] | None = None
    """Jobs before this federation's."""
    free_gpu: FreeGpu | None = None
    budget_left: BudgetLeft | None = None
    """Of its privacy budget."""
    earliest_start_in_s: Annotated[int, Field(ge=0, le=MAX_SECONDS)] | None = None


class SiloState(Closed):
    """What everybody knows of one silo."""

    id: SiloId
    facts: PublishedFacts = PublishedFacts()
    families: Annotated[int, Field(ge=0, le=bounds.MAX_FAMILIES)]
    """How many environment families it declared."""
    lost_in_a_row: Annotated[int, Field(ge=0, le=MAX_ROUNDS)]
    """Attempts that it was lost from since it was last in a sum."""
    rounds_since_asked: Annotated[int, Field(ge=0, le=MAX_ROUNDS)] | None = None
    """None for one that was never asked."""


class RoundOutcome(StrEnum):
    """What became of a round."""

    OPEN = "open"
    AGGREGATED = "aggregated"
    SKIPPED = "skipped"
    QUARANTINED = "quarantined"
    BISECTED = "bisected"
    ROLLBACK = "rollback"


class RoundSummary(Closed):
    """What everybody knows of one round that is over."""

    round: RoundNumber
    asked: Count
    survivors: Count
    """How many are in its sums."""
    outcome: RoundOutcome
    seconds: Annotated[int, Field(ge=0, le=MAX_SECONDS)]
    upload_bytes: Annotated[int, Field(ge=0, le=MAX_BYTES)]
    success: Annotated[float, Field(ge=-MAX_FIGURE, le=MAX_FIGURE)] | None = None
    """Mean over the silos in the sum, as summed; None where the plan has no such figure."""
    success_error: Annotated[float, Field(ge=0, le=MAX_FIGURE)] | None = None
    """Its standard error."""

    @model_validator(mode="after")
    def _with_its_error(self) -> Self:
        if (self.success is None) != (self.success_error is None):
            raise ValueError("a mean stands with its standard error")
        return self


class RoundState(Closed):
    """One round that is about to be asked."""

    round: RoundNumber
    rounds: RoundNumber
    """In the run."""
    limits: Limits
    silos: Annotated[tuple[SiloState, ...], Field(min_length=1, max_length=bounds.MAX_COHORT)]
    """In ascending order of their ids; everyone who is there, and no one else."""
    history: Annotated[tuple[RoundSummary, ...], Field(max_length=MAX_HISTORY)] = ()
    """In ascending order of the rounds."""

    @model_validator(mode="after")
    def _of_one_round(self) -> Self:
        if self.round > self.rounds:
            raise ValueError("the round is beyond the run")
        if tuple(silo.id for silo in self.silos) != self.limits.alive:
            raise ValueError("the silos are not those who are there, in ascending order")
        rounds = [*(summary.round for summary in self.history), self.round]
        if any(left >= right for left, right in pairwise(rounds)):
            raise ValueError("the history is not in ascending order, before this round")
        return self
