"""One run as the status page shows it: where it is, what it cost, how its releases went.

Invariants:

1. The cost of a look is bounded by ``releases``; of a long run only its count of charges is asked.
2. Nothing is awaited and nothing changes; who is driven and waited for is read while the event loop
   goes on, so the look is of about one instant.

Covered: runs in every state, several steps in a round, attempts that were aborted, rollbacks. Not
covered: why an attempt was aborted; the audit log says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final

from dp.noise.metrics_block import Estimate
from federation.chain.record import AdapterRecord
from federation.errors import PlanError
from federation.noisy_figures import readable_ratio
from federation.plan.plan import Plan
from server.conductor.queue import places_behind
from server.conductor.status import since_unix_s
from server.context import RunContext
from server.figures import Phase, RoundFigures
from server.run.budget import own_unit, shown_epsilon
from server.run.driver import RunDriver
from server.status_page.picture import (
    Adapter,
    Current,
    Figure,
    Release,
    RunLine,
    RunView,
    Span,
    Waited,
)
from server.store.rounds import RoundRow
from server.store.runs import ACTIVE, OVER, RunRow

__all__ = ["RunObserver"]

ADAPTERS: Final = 60
_ATTEMPTS_PER_RELEASE: Final = 2
"""Rows that are read for each release; more aborted attempts than that leave fewer releases."""


class RunObserver:
    """Looks at runs."""

    def __init__(self, context: RunContext, shown: Callable[[], RunDriver | None]) -> None:
        """Look through what the coordinator works with.

        Args:
            context: Its parts.
            shown: The run that silos are told of now.
        """
        self._context = context
        self._shown = shown

    def line(self, row: RunRow, *, behind: str) -> RunLine:
        """A run in a few words.

        Args:
            row: The run.
            behind: Of a queued run: the one that it waits behind.
        """
        heads = self._context.store.records.newest(row.run_id, 1)
        try:
            plan = Plan.parse(row.plan)
        except PlanError:
            # One run of an earlier version, whose plan would be refused now, hides no other.
            plan = None
        return _line(row, plan, heads[-1] if heads else None, behind)

    def view(self, row: RunRow, *, releases: int) -> RunView:
        """A run in full.

        Args:
            row: The run.
            releases: How many of the newest are looked at.
        """
        store, plan = self._context.store, Plan.parse(row.plan)
        spec, charged = plan.privacy_spec(), store.rounds.charged(row.run_id)
        records = store.records.newest(row.run_id, ADAPTERS)
        limit = releases * _ATTEMPTS_PER_RELEASE
        rows = store.rounds.newest(row.run_id, limit + 1)
        seen, older = self._releases(row, rows[-limit:], releases)
        asked = store.rollbacks.waiting(row.run_id)
        behind = places_behind(store).get(row.run_id, "")
        return RunView(
            line=_line(row, plan, records[-1] if records else None, behind),
            steps=plan.sums_per_round,
            mode=spec.mode.value,
            unit=own_unit(plan),
            epsilon_spent=shown_epsilon(plan, charged),
            epsilon_cap=spec.epsilon_cap,
            delta=spec.delta,
            charged=charged.releases,
            charged_most=plan.charged_releases,
            least=plan.rounds.ready_quorum(plan.secure_aggregation.n_min),
            current=self._current(row, plan),
            rollback_to=None if asked is None or row.state in OVER else asked.to_round,
            releases=seen,
            older=older or len(rows) > limit,
            adapters=tuple(_adapter(record) for record in records),
        )

    def _driver(self, row: RunRow) -> RunDriver | None:
        driver = self._shown()
        driven = driver is not None and driver.row.run_id == row.run_id and row.state in ACTIVE
        return driver if driven else None

    def _current(self, row: RunRow, plan: Plan) -> Current | None:
        driver = self._driver(row)
        if driver is None:
            return None
        figures, liveness = driver.current, self._context.liveness
        since = since_unix_s(figures, row, self._context)
        stalled = since + plan.rounds.ready_deadline_s
        late = figures.phase is Phase.TRAINING and self._context.clock() >= stalled
        return Current(
            round=figures.round,
            step=figures.step,
            attempt=figures.attempt,
            phase=figures.phase.value,
            since_unix_s=since,
            deadline_unix_s=figures.deadline_unix_s,
            stalled_since_unix_s=stalled if late else 0.0,
            waited=tuple(
                Waited(
                    silo_id=silo_id,
                    last_seen_unix_s=liveness.last_seen(silo_id),
                    alive=liveness.alive(silo_id),
                )
                for silo_id in driver.waiting_for
            ),
            cohort=len(figures.cohort),
        )

    def _releases(
        self, row: RunRow, rows: Sequence[RoundRow], limit: int
    ) -> tuple[tuple[Release, ...], bool]:
        """The newest releases, oldest first, and whether there were others."""
        driver = self._driver(row)
        # What was open when a run stopped did not go on after that.
        until = self._context.clock() if driver is not None else row.state_since_unix_s
        grouped = [
            list(attempts) for _, attempts in groupby(rows, key=lambda one: (one.round, one.step))
        ]
        seen = tuple(_release(attempts, until) for attempts in grouped[-limit:])
        return seen, len(grouped) > limit


def _line(row: RunRow, plan: Plan | None, head: AdapterRecord | None, behind: str) -> RunLine:
    return RunLine(
        run_id=row.run_id,
        name=row.name,
        state=row.state,
        round=0 if head is None else head.round,
        rounds=0 if plan is None else plan.rounds.count,
        since_unix_s=row.state_since_unix_s,
        behind=behind,
        error=row.error,
    )


def _release(attempts: Sequence[RoundRow], until_unix_s: float) -> Release:
    last = attempts[-1]
    figures = (
        RoundFigures.from_json(last.figures_json)
        if last.outcome
        else RoundFigures(round=last.round, step=last.step)
    )
    begins = [sorted(one.phases, key=lambda time: time.at_unix_s) for one in attempts]
    spans: list[Span] = []
    for index, (attempt, times) in enumerate(zip(attempts, begins, strict=True)):
        if not times:
            continue
        following = next((later[0].at_unix_s for later in begins[index + 1 :] if later), None)
        if following is None and last.outcome:
            following = times[-1].at_unix_s + figures.timings_s.get(times[-1].phase, 0.0)
        ends = [
            *(time.at_unix_s for time in times[1:]),
            max(until_unix_s, times[-1].at_unix_s) if following is None else following,
        ]
        spans += [
            Span(
                phase=time.phase,
                attempt=attempt.attempt,
                # A clock that was set back must not draw one attempt over the next.
                begin_unix_s=min(time.at_unix_s, ends[-1]),
                end_unix_s=min(end, ends[-1]),
            )
            for time, end in zip(times, ends, strict=True)
        ]
    return Release(
        round=last.round,
        step=last.step,
        attempts=len(attempts),
        outcome=last.outcome,
        spans=tuple(spans),
        cohort=len(figures.cohort),
        survivors=len(figures.survivors),
        # A skipped release has no survivors, and says nothing of who was lost.
        lost=tuple(sorted(set(figures.cohort) - set(figures.survivors)))
        if figures.survivors
        else (),
        success={
            family: Figure(value=readable_ratio(ratio), error=ratio.standard_error)
            for family, ratio in figures.estimates.items()
        },
        agreement=Figure(
            value=readable_ratio(Estimate(figures.agreement, figures.agreement_error)),
            error=figures.agreement_error,
        ),
        heterogeneity=Figure(value=figures.heterogeneity, error=figures.heterogeneity_error),
        restored_round=figures.restored_round,
    )


def _adapter(record: AdapterRecord) -> Adapter:
    return Adapter(
        round=record.round,
        step=record.step,
        kind=record.kind,
        sha256=record.adapter_sha256.hex(),
        survivors=len(record.survivors),
        restored_round=record.restored_round,
    )
