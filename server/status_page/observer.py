"""Takes the picture that the status page shows, from the store and from what is in memory.

Invariants:

1. Nothing is awaited and nothing changes: a look never holds up a round, and answers while one is
   busy. Each read is a transaction of its own, so the picture is of about one instant.
2. Of a silo only what a relay knows is looked at (``picture.py``, invariant 1).
3. A part that cannot be had is shown as missing; only a database that fails ends the look.

Covered: which run is shown, who comes first. Not covered: one run's rounds (``run_observer.py``).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from federation.errors import AuditChainError
from federation.version import this_version
from server.conductor.queue import places_behind
from server.context import RunContext
from server.pki.trust import Trust
from server.run.driver import RunDriver
from server.run.dropouts import dropouts_of_now
from server.status_page.picture import (
    AuditHead,
    Counted,
    Invitation,
    Picture,
    RunLine,
    RunView,
    SiloView,
)
from server.status_page.run_observer import RunObserver
from server.store.runs import ACTIVE, RunRow, RunState
from server.store.silos import SiloRow, SiloState, state_of

__all__ = ["Observer"]

SHOWN_RUNS: Final = 12
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
        """Look through what the coordinator works with.

        Args:
            context: Its parts.
            trust: Its CAs.
            data_dir: Where its files are.
            shown: The run that silos are told of now.
        """
        self._context = context
        self._trust = trust
        self._data_dir = data_dir
        self._shown = shown
        self._runs = RunObserver(context, shown)

    def look(self, run_id: str = "", *, releases: int) -> Picture:
        """Take a picture of now.

        Args:
            run_id: The run that is shown in full; empty for the one that matters now.
            releases: How many of its newest releases are looked at.

        Returns:
            The picture.

        Raises:
            UnknownRunError: There is no such run.
            StoreError: The database failed.
        """
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
