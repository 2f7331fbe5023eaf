"""What an advisor is told of a round, and within what it may propose.

Invariant: the state follows from a decision's inputs and the plan's limits alone, so that whoever
decides again asks the same (``federation/advice``). Not covered: what is answered.
"""

from __future__ import annotations

from typing import Final

from federation.advice.proposal import Limits
from federation.advice.state import (
    PublishedFacts,
    RoundOutcome,
    RoundState,
    RoundSummary,
    SiloState,
)
from federation.plan.tables import SelectionAdviceSection
from federation.selection.decide import Inputs
from federation.selection.policies import PastRound, PublicFacts, PublicHistory

__all__ = ["limits_of", "state_of"]

OUTCOMES: Final = {
    "": RoundOutcome.OPEN,
    "aggregated": RoundOutcome.AGGREGATED,
    "skipped": RoundOutcome.SKIPPED,
    "quarantined": RoundOutcome.QUARANTINED,
    "bisected": RoundOutcome.BISECTED,
    "rollback": RoundOutcome.ROLLBACK,
}
MAX_WAIT_S: Final = 10_000_000


def limits_of(inputs: Inputs, least: int) -> Limits:
    """What the plan lets a proposal say; ``least`` silos and no fewer can have the round's sums."""
    section = inputs.section
    advice, ranges = section.advice or SelectionAdviceSection(), section.ranges
    return Limits(
        may_choose=section.varies and least < len(inputs.live),
        names_silos=advice.style == "silos",
        least=min(least, len(inputs.live)),
        alive=tuple(sorted(inputs.live)),
        ready_deadline_s=None if ranges is None else ranges.ready_deadline_s,
        local_epochs=None if ranges is None else ranges.local_epochs,
        may_stop=advice.may_stop,
        may_diagnose=advice.may_diagnose,
    )


def state_of(inputs: Inputs, limits: Limits) -> RoundState:
    """The round as an advisor sees it."""
    past = inputs.past
    asked = past.last_asked()
    everybody = len(inputs.live)
    return RoundState(
        round=past.number,
        rounds=max(past.planned, past.number),
        limits=limits,
        silos=tuple(
            _silo(silo_id, inputs.live[silo_id], past, asked.get(silo_id))
            for silo_id in limits.alive
        ),
        history=tuple(
            _summary(each, everybody) for each in past.rounds if each.round < past.number
        ),
    )


def _silo(
    silo_id: str, facts: PublicFacts, past: PublicHistory, last_asked: int | None
) -> SiloState:
    said = facts.published
    start = said.earliest_start_unix_s
    waits = None if start is None else min(max(start - int(past.now_unix_s), 0), MAX_WAIT_S)
    return SiloState(
        id=silo_id,
        facts=PublishedFacts(
            availability=said.availability,
            queue=said.queue,
            free_gpu=said.free_gpu,
            budget_left=said.budget_left,
            earliest_start_in_s=waits,
        ),
        families=len(facts.families),
        lost_in_a_row=facts.lost_in_a_row,
        rounds_since_asked=None if last_asked is None else past.number - last_asked,
    )


def _summary(past: PastRound, everybody: int) -> RoundSummary:
    known = past.success is not None and past.success_error is not None
    return RoundSummary(
        round=past.round,
        asked=everybody if past.asked is None else len(past.asked),
        survivors=len(past.survivors),
        outcome=OUTCOMES.get(past.outcome, RoundOutcome.SKIPPED),
        seconds=min(round(past.seconds), MAX_WAIT_S),
        upload_bytes=past.upload_bytes,
        success=past.success if known else None,
        success_error=past.success_error if known else None,
    )
