"""Takes the picture that the status page shows, from the store and from what is in memory.

Invariants:

1. Nothing is awaited and nothing changes: a look never holds up a round, and answers while one is
   busy or somebody writes. The store is read as it is at one instant; who is driven and waited for
   is read while the event loop goes on, so the picture is of about that instant.
2. Of a silo only what a relay knows is looked at (``picture.py``, invariant 1).
3. A part that cannot be had is shown as missing; only a database that fails ends the look.
4. The cost of a look at a run is bounded by ``releases``; of a long run only its count of charges
   is asked, and figures of success that are in memory are compared.

Covered: which run is shown, who comes first; runs in every state, several steps in a round,
attempts that were aborted, rollbacks. Not covered: why an attempt was aborted; the audit log says
so.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from dp.noise.estimate import Estimate
from dp.noise.figures import readable_ratio
from federation.chain.record import AdapterRecord
from federation.errors import AuditChainError, PlanError
from federation.plan.charges import own_unit
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from federation.version import this_version
from server.conductor.queue import places_behind
from server.conductor.status import since_unix_s
from server.context import RunContext
from server.figures import Phase, RoundFigures
from server.pki.trust import Trust
from server.run.budget import shown_epsilon
from server.run.collapse import Collapse, collapse
from server.run.driver import RunDriver
from server.run.dropouts import dropouts_of_now
from server.run.strength import strength
from server.states import ACTIVE, OVER, RunState, SiloState
from server.status_page.picture import (
    Adapter,
    AuditHead,
    Counted,
    Current,
    Figure,
    Invitation,
    Picture,
    Release,
    RunLine,
    RunView,
    SiloView,
    Span,
    Waited,
)
from server.store.rounds import RoundRow
from server.store.runs import RunRow
from server.store.silos import SiloRow, state_of

__all__ = ["Observer"]

SHOWN_RUNS: Final = 12
ADAPTERS: Final = 60
_ATTEMPTS_PER_RELEASE: Final = 2
"""Rows that are read for each release; more aborted attempts than that leave fewer releases."""
_ORDER: Final = {
    **dict.fromkeys(ACTIVE, 0),
    RunState.QUEUED: 1,
    RunState.PAUSED: 2,
}
"""Runs that are over come last."""


class Observer:
    """Looks at one coordinator. Called from threads of the probe port."""

    def __init__(
        self,
        *,
        context: RunContext,
        trust: Trust,
        data_dir: Path,
        shown: Callable[[], RunDriver | None],
    ) -> None:
        """Look through what the coordinator works with; ``shown`` is the run silos are told of."""
        self._context = context
        self._trust = trust
        self._data_dir = data_dir
        self._runs = _RunObserver(context, shown)

    def look(self, run_id: str = "", *, releases: int) -> Picture:
        """Take a picture of now, with the newest ``releases`` of the run that is shown in full.

        An empty ``run_id`` stands for the run that matters now.

        Raises:
            UnknownRunError: There is no such run.
            StoreError: The database failed.
        """
        with self._context.store.reading():
            return self._look(run_id, releases=releases)

    def _look(self, run_id: str, *, releases: int) -> Picture:
        store, context = self._context.store, self._context
        rows = store.runs.list()
        chosen = store.runs.get(run_id) if run_id else self._newest(rows)
        run = None if chosen is None else self._runs.view(chosen, releases=releases)
        lines = self._lines(rows)
        roster = store.rosters.current()
        members = () if roster is None else roster.roster.silo_ids
        free, size = self._disk()
        return Picture(
            at_unix_s=context.clock(),
            version=str(this_version()),
            federation=store.federation.current(),
            roster_epoch=0 if roster is None else roster.roster.epoch,
            roster_silos=len(members),
            roster_colluding=0 if roster is None else roster.roster.colluding,
            silos=self._silos(store.silos.list(), frozenset(members), run),
            invitations=self._invitations(),
            run=run,
            runs=lines,
            older_runs=len(rows) - len(lines),
            audit=self._audit(),
            counted=Counted(
                audit_failures=self._count("chorale_audit_verify_failures_total"),
                audit_head_conflicts=self._count("chorale_audit_head_conflicts_total"),
                ledger_rollbacks=self._count("chorale_ledger_rollbacks_total"),
                storage_faults=self._count("chorale_storage_faults_total"),
            ),
            ca_end_unix_s=self._trust.issuing.certificate.not_valid_after_utc.timestamp(),
            server_certificate_end_unix_s=self._count(
                "chorale_server_certificate_expiry_timestamp_seconds"
            ),
            disk_free_bytes=free,
            disk_bytes=size,
        )

    def _newest(self, rows: Sequence[RunRow]) -> RunRow | None:
        """The run that is driven; else the one that something happened to last."""
        driven = [row for row in rows if row.state in ACTIVE]
        if driven:
            return driven[-1]
        begun = [row for row in rows if row.state is not RunState.QUEUED]
        if begun:
            return max(begun, key=lambda row: (row.state_since_unix_s, row.created_unix_s))
        queued = self._context.store.runs.queued()
        return queued[0] if queued else None

    def _lines(self, rows: Sequence[RunRow]) -> tuple[RunLine, ...]:
        behind = places_behind(self._context.store)
        queue = list(behind)
        newest_first = sorted(rows, key=lambda row: row.created_unix_s, reverse=True)

        def place(row: RunRow) -> tuple[int, int]:
            waits = queue.index(row.run_id) if row.run_id in behind else 0
            return _ORDER.get(row.state, 3), waits

        shown = sorted(newest_first, key=place)[:SHOWN_RUNS]
        return tuple(self._runs.line(row, behind=behind.get(row.run_id, "")) for row in shown)

    def _silos(
        self, rows: Sequence[SiloRow], rostered: frozenset[str], run: RunView | None
    ) -> tuple[SiloView, ...]:
        liveness = self._context.liveness
        current = None if run is None else run.current
        waited = frozenset() if current is None else {one.silo_id for one in current.waited}
        lost = dropouts_of_now(self._context.store)
        out = {silo_id for silo_id, row in lost.items() if row.out_until_round}
        silos = [
            SiloView(
                silo_id=row.silo_id,
                state=state_of(row, rostered, out),
                alive=liveness.alive(row.silo_id),
                last_seen_unix_s=max(row.last_seen_unix_s, liveness.last_seen(row.silo_id)),
                certificate_end_unix_s=row.certificate_expiry_unix_s,
                waited=row.silo_id in waited,
                dropouts_in_a_row=lost[row.silo_id].in_a_row if row.silo_id in lost else 0,
            )
            for row in rows
        ]
        order = [
            SiloState.ROSTERED,
            SiloState.SITTING_OUT,
            SiloState.ENROLLED,
            SiloState.SUSPENDED,
            SiloState.LEFT,
        ]

        def place(silo: SiloView) -> tuple[bool, bool, int, str]:
            rank = order.index(silo.state) if silo.state in order else len(order)
            silent = silo.state is SiloState.ROSTERED and not silo.alive
            return not silent, not silo.waited, rank, silo.silo_id

        return tuple(sorted(silos, key=place))

    def _invitations(self) -> tuple[Invitation, ...]:
        return tuple(
            Invitation(silo_id=row.silo_id, end_unix_s=row.expires_unix_s)
            for row in self._context.store.invites.open()
        )

    def _audit(self) -> AuditHead | None:
        try:
            head = self._context.audit.head()
        except (AuditChainError, OSError):
            return None
        return AuditHead(index=head.index, sha256=head.sha256)

    def _count(self, name: str) -> int:
        return int(self._context.metrics.registry.get_sample_value(name) or 0)

    def _disk(self) -> tuple[int, int]:
        try:
            usage = shutil.disk_usage(self._data_dir)
        except OSError:
            return 0, 0
        return usage.free, usage.total


class _RunObserver:
    """Looks at runs."""

    def __init__(self, context: RunContext, shown: Callable[[], RunDriver | None]) -> None:
        self._context = context
        self._shown = shown

    def line(self, row: RunRow, *, behind: str) -> RunLine:
        """A run in a few words; a queued one with the run that it waits behind."""
        heads = self._context.store.records.newest(row.run_id, 1)
        try:
            plan = read_plan(row.plan)
        except PlanError:
            # One run of an earlier version, whose plan would be refused now, hides no other.
            plan = None
        return _line(row, plan, heads[-1] if heads else None, behind)

    def _kept_out(self, row: RunRow) -> tuple[str, ...]:
        driver = self._shown()
        driven = driver is not None and driver.row.run_id == row.run_id and row.state in ACTIVE
        return driver.cohorts.kept_out if driver is not None and driven else ()

    def _collapse(self, row: RunRow) -> Collapse | None:
        driver = self._driver(row)
        # A copy: the driver's list may grow meanwhile.
        return None if driver is None else collapse(tuple(driver.finished))

    def view(self, row: RunRow, *, releases: int) -> RunView:
        """A run in full, with so many of its newest releases."""
        store, plan = self._context.store, read_plan(row.plan)
        spec, charged = plan.spec, store.rounds.charged(row.run_id)
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
            unit=own_unit(spec),
            epsilon_spent=shown_epsilon(plan, charged),
            epsilon_cap=spec.epsilon_cap,
            delta=spec.delta,
            charged=charged.releases,
            charged_most=plan.charged_releases,
            least=plan.rounds.ready_quorum(plan.secure_aggregation.n_min),
            current=self._current(row, plan),
            collapse=self._collapse(row),
            kept_out=self._kept_out(row),
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
            strength=strength(driver, liveness.alive),
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
        post_quantum=row.is_hybrid,
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
