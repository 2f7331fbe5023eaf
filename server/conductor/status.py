"""What `chorale run watch` shows: public facts about a run, as a stream of messages.

Invariants:

1. Whatever its state, a run's status says who or what is waited for, since when, and until when if
   there is an end: silos in a phase, the run before it in the queue, an admin while it is paused.
2. Since when is counted from the first time: neither a restart of the coordinator nor a deadline
   that passed without a quorum sets it back.

Covered: phase, who is waited for and since when, deadlines, figures of the sum, ε. Not covered:
anything of a single silo beyond whether it was heard of.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from chorale.v1 import admin_pb2 as pb
from federation.chain.record import AdapterRecord
from federation.plan.charges import own_unit
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from server.conductor.queue import places_behind
from server.context import RunContext
from server.figures import STEPS, HalfSum, Phase, RoundFigures
from server.run.budget import shown_epsilon
from server.run.driver import RunDriver
from server.states import ACTIVE, OVER, RunState
from server.store.runs import RunRow

__all__ = [
    "half_sum",
    "run_summary",
    "since_unix_s",
    "stalled_since_unix_s",
    "watch_response",
    "watch_run",
]

STATUS_EVERY_S: Final = 2.0
CLOSING_S: Final = 60.0
"""How long after its deadline a phase may close what came, or a sum be computed."""
FINISHED_PER_STATUS = 64
"""With a cohort and survivors of 200 silos, all in 4 MiB."""


async def watch_run(
    context: RunContext, run_id: str, shown: Callable[[], RunDriver | None]
) -> AsyncIterator[pb.WatchRunResponse]:
    """Report a run at every change, and every few seconds; ends with the run.

    What finished before the stream began comes in several statuses, without a pause.

    Raises:
        UnknownRunError: There is no such run.
    """
    sent = 0
    while True:
        row = context.store.runs.get(run_id)
        driver = shown()
        if driver is not None and driver.row.run_id == run_id:
            finished = driver.finished
        else:
            driver = None
            finished = [
                RoundFigures.from_json(done.figures_json)
                for done in context.store.rounds.finished(run_id)
            ]
        # The driver's list may grow while the caller holds this response.
        unsent = tuple(finished[sent : sent + FINISHED_PER_STATUS])
        sent += len(unsent)
        yield watch_response(row=row, driver=driver, finished=unsent, context=context)
        if sent < len(finished):
            continue
        if row.state in OVER:
            return
        await context.changed.wait(STATUS_EVERY_S)


def run_summary(
    row: RunRow, plan: Plan, *, head: AdapterRecord | None, behind: str = ""
) -> pb.RunSummary:
    """One line of `chorale run list`; ``behind`` is the run that a queued one waits behind."""
    return pb.RunSummary(
        run_id=row.run_id,
        name=row.name,
        state=row.state.value,
        round=0 if head is None else head.round,
        rounds=plan.rounds.count,
        adapter_sha256=b"" if head is None else head.adapter_sha256,
        step=0 if head is None else head.step,
        steps=plan.sums_per_round,
        behind=behind,
        state_since_unix_s=int(row.state_since_unix_s),
        suite=row.suite,
    )


def watch_response(
    *,
    row: RunRow,
    driver: RunDriver | None,
    finished: Sequence[RoundFigures],
    context: RunContext,
) -> pb.WatchRunResponse:
    """The state of a run now, with the finished rounds this stream has not sent before."""
    plan = read_plan(row.plan)
    records = context.store.records.list(row.run_id)
    spec = plan.spec
    response = pb.WatchRunResponse(
        run=run_summary(
            row,
            plan,
            head=records[-1],
            behind=places_behind(context.store).get(row.run_id, ""),
        ),
        finished=_finished(context, row.run_id, plan, finished),
        epsilon_spent=shown_epsilon(plan, context.store.rounds.charged(row.run_id)),
        epsilon_unit=own_unit(spec),
        epsilon_cap=spec.epsilon_cap,
        delta=spec.delta,
        error=row.error,
    )
    waits = context.store.rollbacks.waiting(row.run_id)
    if waits is not None and row.state not in OVER:
        response.rollback_to_round = waits.to_round
    # A run that waits for its turn or for the admin waits for no silo.
    if driver is not None and row.state in ACTIVE:
        response.kept_out.extend(driver.cohorts.kept_out)
    if driver is not None and row.state in ACTIVE | OVER:
        current = _round_status(driver.current)
        _tell_choices(context, row.run_id, plan, (current,))
        if row.state in ACTIVE:
            since = since_unix_s(driver.current, row, context)
            current.phase_since_unix_s = int(since)
            if current.phase == Phase.TRAINING.value:
                current.stalled_since_unix_s = int(stalled_since_unix_s(driver, row, context))
            for silo_id in driver.waiting_for:
                current.waiting_for.add(
                    silo_id=silo_id,
                    since_unix_s=int(since),
                    last_byte_unix_s=int(context.liveness.last_seen(silo_id)),
                )
        response.current.CopyFrom(current)
    return response


def _finished(
    context: RunContext, run_id: str, plan: Plan, finished: Sequence[RoundFigures]
) -> list[pb.RoundStatus]:
    """Steps that are over, each with the sums whose R4 closed: the coordinator has seen those."""
    told = {(each.round, each.step): _round_status(each) for each in finished}
    for row in context.store.aggregations.list(run_id) if told else ():
        identity = row.identity
        status = told.get((identity.round, identity.step))
        if status is not None and row.phases_closed == len(STEPS):
            status.opened.add(part=identity.part, attempt=identity.attempt, survivors=row.survivors)
    _tell_choices(context, run_id, plan, tuple(told.values()))
    return list(told.values())


def _tell_choices(
    context: RunContext, run_id: str, plan: Plan, told: Sequence[pb.RoundStatus]
) -> None:
    """Say in each status whom its round asks; nothing of a rollback, which asked nobody."""
    if plan.selection.policy == "all" or not told:
        return
    numbers = sorted({status.round for status in told})
    made = {row.round: row for row in context.store.choices.of_rounds(run_id, numbers)}
    for status in told:
        choice = made.get(status.round)
        if choice is not None and not status.HasField("restored_round"):
            status.chosen[:] = choice.silos
            status.chosen_why = choice.why


def since_unix_s(figures: RoundFigures, row: RunRow, context: RunContext) -> float:
    """When the phase was entered first, but not before the run was last taken up."""
    first = [
        time.at_unix_s
        for attempt in context.store.rounds.newest(row.run_id, 1)
        if (attempt.round, attempt.step, attempt.attempt)
        == (figures.round, figures.step, figures.attempt)
        for time in attempt.phases
        if time.phase == figures.phase.value
    ]
    since = first[0] if first else figures.phase_since_unix_s
    return max(since, row.state_since_unix_s) if row.state is RunState.RUNNING else since


def stalled_since_unix_s(driver: RunDriver, row: RunRow, context: RunContext) -> float:
    """When the phase under way missed its first deadline; 0 while it has not.

    In training the silos did, and the task went out again; in any other phase the coordinator.
    """
    figures = driver.current
    if not figures.phase_since_unix_s or figures.phase is Phase.FINISHED:
        return 0.0
    if figures.phase is Phase.TRAINING:
        missed = since_unix_s(figures, row, context) + driver.cohorts.ready_deadline_s
    else:
        missed = figures.deadline_unix_s + CLOSING_S
    return missed if context.clock() >= missed else 0.0


def _round_status(figures: RoundFigures) -> pb.RoundStatus:
    return pb.RoundStatus(
        round=figures.round,
        step=figures.step,
        attempt=figures.attempt,
        phase=figures.phase.value,
        phase_since_unix_s=int(figures.phase_since_unix_s),
        deadline_unix_s=int(figures.deadline_unix_s),
        cohort=figures.cohort,
        survivors=figures.survivors,
        timings=[
            pb.PhaseTiming(phase=phase, duration_s=duration)
            for phase, duration in figures.timings_s.items()
        ],
        success=[
            pb.FamilySuccess(family=family, success_ratio=ratio, standard_error=error)
            for family, (ratio, error) in sorted(figures.success.items())
        ],
        upload_bytes=figures.upload_bytes,
        update_norm=figures.update_norm,
        agreement=figures.agreement,
        outcome=figures.outcome,
        adapter_sha256=figures.adapter_sha256,
        update_norm_standard_error=figures.update_norm_error,
        agreement_standard_error=figures.agreement_error,
        heterogeneity=figures.heterogeneity,
        heterogeneity_standard_error=figures.heterogeneity_error,
        silo_norm_sq=figures.silo_norm_sq,
        silo_norm_sq_standard_error=figures.silo_norm_sq_error,
        vetoes=figures.vetoes,
        vetoes_standard_error=figures.vetoes_error,
        restored_round=figures.restored_round,
        halves=[half_sum(half) for half in figures.halves],
    )


def half_sum(half: HalfSum) -> pb.HalfSum:
    """A half of a bisected round as it is told."""
    return pb.HalfSum(
        part=half.part,
        verdict=half.verdict.value,
        survivors=half.survivors,
        suspects=half.suspects,
    )
