"""Vetoes: how many silos' guards refuse the adapter that a round began with, and what follows.

A plan with ``[vetoes]`` sums one coordinate more (``federation/chain/sums.py``), and where the rule
of ``federation/chain/vetoes.py`` says so the run is paused after the round.

Ordered invariants:

1. What paused a run follows from the closed round's public figures and the plan. So a restart finds
   the same, and anyone who has both can check it.
2. The coordinator pauses and proposes; nothing goes back before an admin asks for it, and an admin
   may resume without.
3. Proposed is the adapter of the round before the one that the refused adapter came from: the
   newest that was not refused by as many.

Covered: releases of one sum and of groups, rollbacks and skipped rounds before. Not covered: who
vetoed and why, which stays in the sites; the adapter that a run ends with, for no sum follows it;
a drift that began rounds before it was refused, whose beginning the admin has to find.
"""

from __future__ import annotations

from collections.abc import Sequence

from dp.noise.estimate import Estimate
from federation.chain import vetoes
from federation.chain.record import AdapterRecord
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from server.figures import RoundFigures
from server.states import RunState
from server.store import Store
from server.store.runs import RunRow

__all__ = ["is_paused_by_vetoes", "reason", "stops"]


def stops(figures: RoundFigures, plan: Plan) -> bool:
    """Whether a closed round's vetoes pause the run; nothing is left to pause after its last."""
    return vetoes.stops(
        plan.vetoes,
        Estimate(mean=figures.vetoes, standard_error=figures.vetoes_error),
        round_number=figures.round,
        rounds=plan.rounds.count,
    )


def reason(
    run_id: str, records: Sequence[AdapterRecord], finished: Sequence[RoundFigures], plan: Plan
) -> str:
    """For the admin: what was refused and what to do; empty if the newest round stops nothing.

    Records and closed releases are the run's, oldest first.
    """
    if not finished or not stops(finished[-1], plan):
        return ""
    figures = finished[-1]
    refused = _origin(records, figures.round - 1)
    back = (
        f"chorale adapter rollback {run_id} --to-round {refused - 1}, then chorale run resume "
        f"{run_id}"
        if refused
        else f"chorale run abort {run_id}, for it is the one that the run began with"
    )
    share, error = min(figures.vetoes, 1.0), figures.vetoes_error
    return (
        f"{share:.0%} of the silos in round {figures.round}, ± {error:.0%}, veto the adapter of "
        f"round {refused}. To go back: {back}. To go on with it all the same: chorale run resume "
        f"{run_id}"
    )


def is_paused_by_vetoes(store: Store, row: RunRow) -> bool:
    """Whether a run rests because of the round that it closed last."""
    if row.state is not RunState.PAUSED or not row.error:
        return False
    newest = store.rounds.newest(row.run_id, 1)
    return bool(newest and newest[0].outcome) and stops(
        RoundFigures.from_json(newest[0].figures_json), read_plan(row.plan)
    )


def _origin(records: Sequence[AdapterRecord], round_number: int) -> int:
    """The round that released the adapter which a round ended with."""
    ended = {record.round: record for record in records}
    earlier = {
        number: number - 1 if record.restored_round is None else record.restored_round
        for number, record in ended.items()
        if number and record.kind != "aggregated"
    }
    return vetoes.origin_of(earlier, round_number)
