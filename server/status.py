"""What `chorale run watch` shows: public facts about a run, as one message.

Covered: phase, who is waited for and since when, deadlines, figures of the sum, ε. Not covered:
anything of a single silo beyond whether it was heard of.
"""

from __future__ import annotations

from collections.abc import Sequence

from chorale.v1 import admin_pb2 as pb
from federation.plan import Plan
from federation.record import AdapterRecord
from server.budget import own_unit, shown_epsilon
from server.context import RunContext
from server.figures import RoundFigures
from server.run import RunDriver
from server.store.runs import RunRow

__all__ = ["run_summary", "watch_response"]


def run_summary(row: RunRow, plan: Plan, *, head: AdapterRecord | None) -> pb.RunSummary:
    """One line of `chorale run list`.

    Args:
        row: The run.
        plan: Its plan.
        head: Its newest record; None if it has none.
    """
    return pb.RunSummary(
        run_id=row.run_id,
        name=row.name,
        state=row.state.value,
        round=0 if head is None else head.round,
        rounds=plan.rounds.count,
        adapter_sha256=b"" if head is None else head.adapter_sha256,
        step=0 if head is None else head.step,
        steps=plan.sums_per_round,
    )


def watch_response(
    *,
    row: RunRow,
    driver: RunDriver | None,
    finished: Sequence[RoundFigures],
    context: RunContext,
) -> pb.WatchRunResponse:
    """The state of a run now, with the finished rounds this stream has not sent before."""
    plan = Plan.parse(row.plan)
    records = context.store.records.list(row.run_id)
    spec = plan.privacy_spec()
    response = pb.WatchRunResponse(
        run=run_summary(row, plan, head=records[-1]),
        finished=[_round_status(figures) for figures in finished],
        epsilon_spent=shown_epsilon(plan, context.store.rounds.charged(row.run_id)),
        epsilon_unit=own_unit(plan),
        epsilon_cap=spec.epsilon_cap,
        delta=spec.delta,
        error=row.error,
    )
    if driver is not None:
        current = _round_status(driver.current)
        for silo_id in driver.waiting_for:
            current.waiting_for.add(
                silo_id=silo_id,
                since_unix_s=int(driver.current.phase_since_unix_s),
                last_byte_unix_s=int(context.liveness.last_seen(silo_id)),
            )
        response.current.CopyFrom(current)
    return response


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
    )
