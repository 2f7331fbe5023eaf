"""Asking a run to go back to the adapter of an earlier round, once a submit token.

A rollback takes the place of the next round that has not begun: of a run that is driven, of the
round after the one under way; of one that is paused between two rounds, of the one that would have
followed. The driver makes its record (``server/run/driver.py``).

Ordered invariants:

1. A token names one request: again with the same run and round it finds the same answer, whatever
   became of the run meanwhile; with others it is refused.
2. What has no place is refused when it is asked, with what to do instead: the run is over or waits
   for its turn, the round is not released, the run is at its adapter, no round is left, or another
   rollback waits.
3. A request and its line in the audit log are one durable change.

Covered: runs in every state. Not covered: whether the sites allow it; each silo's policy says so
when it sees the record.
"""

from __future__ import annotations

from collections.abc import Callable

from federation.chain.record import Place, last_position_of, place_at
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from server.audit import AuditEvent, AuditLog
from server.conductor.submit_token import require_submit_token
from server.errors import RollbackError, SubmitTokenError
from server.states import ACTIVE, OVER, RunState
from server.store import Store
from server.store.rollbacks import RollbackRow
from server.store.runs import RunRow

__all__ = ["request_rollback"]


def request_rollback(
    store: Store,
    audit: AuditLog,
    *,
    run_id: str,
    to_round: int,
    submit_token: str,
    admin: str,
    clock: Callable[[], float],
) -> RollbackRow:
    """Note a rollback; again with the same token changes nothing.

    Round 0 stands for the initial adapter. The request that is returned names the round whose place
    it took if it is done.

    Raises:
        UnknownRunError: There is no such run.
        SubmitTokenError: The token is malformed, or names another request.
        RollbackError: There is no place for it; the text says what to do instead.
    """
    require_submit_token(submit_token)
    with store.transaction():
        known = store.rollbacks.by_submit_token(submit_token)
        if known is not None:
            if (known.run_id, known.to_round) != (run_id, to_round):
                raise SubmitTokenError(
                    f"this submit token asked run {known.run_id} back to round {known.to_round}: "
                    "use a new token for a new rollback"
                )
            return known
        row = store.runs.get(run_id)
        _require_place(row, to_round, store)
        store.rollbacks.ask(
            submit_token=submit_token, run_id=run_id, to_round=to_round, at_unix_s=clock()
        )
        audit.append(AuditEvent.ROLLBACK_ASKED, run=run_id, to_round=to_round, admin=admin)
        asked = store.rollbacks.by_submit_token(submit_token)
    if asked is None:
        raise RollbackError(f"the rollback of run {run_id} was not stored: ask again")
    return asked


def _require_place(row: RunRow, to_round: int, store: Store) -> None:
    run_id, plan = row.run_id, read_plan(row.plan)
    if row.state in OVER:
        raise RollbackError(
            f"run {run_id} is {row.state}, and nothing follows its last record. Start a new run "
            f"from that adapter: chorale adapter export {run_id} --round {to_round} -o DIRECTORY, "
            "then chorale run start PLAN --adapter DIRECTORY/adapter_model.safetensors"
        )
    if row.state is RunState.QUEUED:
        raise RollbackError(
            f"run {run_id} waits for its turn: chorale run pause {run_id}, then ask again; it goes "
            "back when it is resumed"
        )
    waits = store.rollbacks.waiting(run_id)
    if waits is not None:
        raise RollbackError(
            f"run {run_id} is to go back to round {waits.to_round} already: chorale run watch "
            f"{run_id} shows when it did"
        )
    if store.bisections.waiting(run_id) is not None:
        raise RollbackError(f"run {run_id} is bisected first: ask again when it was")
    sums = plan.sums_per_round
    records = store.records.list(run_id)
    following = place_at(len(records), sums)
    if to_round >= following.round or len(records) <= last_position_of(to_round, sums):
        raise RollbackError(
            f"run {run_id} has released no round {to_round}: chorale adapter list {run_id} shows "
            "the rounds to go back to"
        )
    _require_use(row, to_round, following, plan)


def _require_use(row: RunRow, to_round: int, following: Place, plan: Plan) -> None:
    """There is a round to take, and another adapter to begin the next one with."""
    between = row.state is RunState.PAUSED and following.step == 0
    if between and to_round == following.round - 1:
        raise RollbackError(f"run {row.run_id} is at the adapter of round {to_round}: resume it")
    taken = following.round if between else following.round + 1
    if taken > plan.rounds.count:
        pause = row.state in ACTIVE and following.step == 0
        raise RollbackError(
            f"the last round of run {row.run_id} has begun, so a rollback has no round to take. "
            + (
                f"To take the place of that round: chorale run pause {row.run_id}, ask again, and "
                f"chorale run resume {row.run_id}"
                if pause
                else f"Let it finish; chorale adapter export {row.run_id} --round {to_round} "
                "writes the adapter"
            )
        )
