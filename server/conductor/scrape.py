"""What is looked up when Prometheus asks, beside what was counted as it happened.

Invariants: nothing here waits for the event loop or for whoever writes, or changes anything, so a
scrape answers while a round is busy and while the database takes no writes; a figure that cannot be
had now keeps its last value, and the others are shown.

Covered: silos, runs, who is waited for, how many can be spared, whether the agent has collapsed,
the audit log's head, the CA's end, the newest backup, free space. Not covered: figures of rounds,
which ``server/run/progress.py`` and ``server/run/driver.py`` set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ops.logs.logger import get_logger
from server.conductor.status import since_unix_s, stalled_since_unix_s
from server.context import RunContext
from server.errors import CoordinatorError
from server.figures import Phase
from server.members.roster_approvals import RosterApprovals
from server.pki.trust import Trust
from server.run.collapse import collapse
from server.run.driver import RunDriver
from server.run.dropouts import dropouts_of_now
from server.run.strength import strength
from server.run.vetoes import is_paused_by_vetoes
from server.states import ACTIVE, RunState

__all__ = ["Scrape"]

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scrape:
    """One coordinator, looked at."""

    context: RunContext
    trust: Trust
    data_dir: Path
    shown: Callable[[], RunDriver | None]
    """The run that silos are told of now."""
    driving: Callable[[], bool] = lambda: True
    """Whether somebody drives what is to be driven."""
    last_backup_unix_s: Callable[[], float] = lambda: 0.0
    """When the newest backup was whole, 0 if none was."""

    def refresh(self) -> None:
        """Bring the metrics up to date. Called from threads of the probe port."""
        for look in (
            self._round,
            self._silos,
            self._runs,
            self._roster,
            self._certificates,
            self._machine,
        ):
            try:
                with self.context.store.reading():
                    look()
            except (CoordinatorError, OSError) as error:
                # What is wrong shows elsewhere: in /readyz and in the storage's faults.
                log.warning("scrape_incomplete", part=look.__name__, reason=error)

    def _silos(self) -> None:
        store, seen = self.context.store, self.context.liveness.last_seen
        roster = store.rosters.current()
        rostered = frozenset(roster.roster.silo_ids) if roster is not None else frozenset()
        silos = [
            replace(silo, last_seen_unix_s=max(silo.last_seen_unix_s, seen(silo.silo_id)))
            for silo in store.silos.list()
        ]
        self.context.metrics.observe_silos(
            invited=len(store.invites.open()),
            silos=silos,
            rostered=rostered,
            dropouts=dropouts_of_now(store),
        )

    def _runs(self) -> None:
        # Before the runs: one that begins in between has somebody who drives it.
        driving = self.driving()
        rows = self.context.store.runs.list()
        queued = [row.state_since_unix_s for row in rows if row.state is RunState.QUEUED]
        self.context.metrics.observe_runs(
            [row.state for row in rows],
            driving=driving,
            queued_since_unix_s=min(queued, default=0.0),
            vetoed=sum(is_paused_by_vetoes(self.context.store, row) for row in rows),
        )

    def _roster(self) -> None:
        desk = RosterApprovals(store=self.context.store, audit=self.context.audit)
        proposal = desk.current()
        missing = 0 if proposal is None else proposal.needed - len(proposal.approvals)
        self.context.metrics.roster_approvals_waiting.set(max(0, missing))

    def _round(self) -> None:
        driver, metrics = self.shown(), self.context.metrics
        row = None if driver is None else self.context.store.runs.get(driver.row.run_id)
        if driver is None or row is None or row.state not in ACTIVE:
            metrics.set_phase(Phase.FINISHED.value)
            metrics.observe_waiting(())
            metrics.observe_strength()
            metrics.observe_collapse(collapsed=False)
            return
        figures = driver.current
        metrics.observe_waiting(
            driver.waiting_for,
            since_unix_s=since_unix_s(figures, row, self.context),
            deadline_unix_s=figures.deadline_unix_s,
            stalled_since_unix_s=stalled_since_unix_s(driver, row, self.context),
        )
        counted = strength(driver, self.context.liveness.alive)
        metrics.observe_strength(
            planned=driver.plan.rounds.count, live=counted.live, needed=counted.needed
        )
        # A copy: the driver's list may grow meanwhile.
        metrics.observe_collapse(collapsed=collapse(tuple(driver.finished)) is not None)

    def _certificates(self) -> None:
        ca = self.trust.issuing.certificate
        self.context.metrics.ca_certificate_expiry.set(ca.not_valid_after_utc.timestamp())

    def _machine(self) -> None:
        self.context.metrics.audit_head.set(self.context.audit.head_index)
        self.context.metrics.process.look(self.data_dir)
        self.context.metrics.backup_success.set(self.last_backup_unix_s())
