"""What pauses a run after a round that has closed, and what its admin is told then.

Three things do: a bisection, whose round adopts nothing (``server/conductor/bisection.py``); as
many vetoes as the plan says (``server/run/vetoes.py``); and a proposal of the advisor that the plan
allowed to stop the run (``federation/selection/decide.py``).

Invariant: whether a round pauses its run follows from its closed figures, its stored choice and the
plan, so that a restart finds the same. Nothing rests after the last round.

Covered: the above. Not covered: a pause that an admin asked for, which needs no reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from federation.chain.record import AdapterRecord
from federation.plan.plan import Plan
from server.figures import BISECTED, RoundFigures
from server.run import vetoes
from server.store import Store

__all__ = ["reason", "rests_after"]


def rests_after(closed: RoundFigures, plan: Plan, store: Store, run_id: str) -> bool:
    """Whether a release that has closed pauses its run."""
    if closed.outcome == BISECTED or vetoes.stops(closed, plan):
        return True
    return _is_stopped(closed, plan, store, run_id)


def reason(
    run_id: str,
    records: Sequence[AdapterRecord],
    finished: Sequence[RoundFigures],
    plan: Plan,
    store: Store,
) -> str:
    """For the admin: what paused the run and what to do; empty where the newest round did not.

    Records and closed releases are the run's, oldest first.
    """
    vetoed = vetoes.reason(run_id, records, finished, plan)
    if vetoed or not finished or not _is_stopped(finished[-1], plan, store, run_id):
        return vetoed
    number = finished[-1].round
    return (
        f"the advisor proposed to stop after round {number}. What it saw and said: chorale audit "
        f"explain {run_id} {number}. To go on: chorale run resume {run_id}; to end it: chorale run "
        f"abort {run_id}"
    )


def _is_stopped(closed: RoundFigures, plan: Plan, store: Store, run_id: str) -> bool:
    if closed.round >= plan.rounds.count or not plan.is_last_step(closed.step):
        return False
    choice = store.choices.of_round(run_id, closed.round)
    return choice is not None and choice.stop
