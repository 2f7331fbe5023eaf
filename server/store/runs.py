"""Runs: a plan, a state, the token that started it, and the queue of those that wait.

Invariants:

1. A token starts one run.
2. A queued run has a place, and no other run has one; places are compared, never counted.
3. A run that is over stays over.

Covered: starting once a token, the order of the queue. Not covered: which adapter a run is at; its
newest record says so. Who may begin (``server/conductor/queue.py``).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, insert, select, update
from sqlalchemy.engine import Connection

from secagg import hybrid
from server.errors import RunError, UnknownRunError
from server.states import ACTIVE, OVER, RunState
from server.store.database import Database
from server.store.schema import runs

__all__ = ["RunRow", "Runs"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRow:
    """One run."""

    run_id: str
    name: str
    plan: bytes
    """The TOML document, byte for byte."""
    plan_sha256: bytes
    submit_token: str
    state: RunState
    error: str
    """Why it failed, was aborted or could not go on; empty otherwise."""
    created_unix_s: float
    state_since_unix_s: float
    """When it came into its state; 0 for a run of an earlier version."""
    suite: int
    """Of its sums; 1 for a run of an earlier version."""

    @property
    def is_hybrid(self) -> bool:
        """Whether its masks and boxes hold against a quantum computer (suite v2)."""
        return self.suite == hybrid.SUITE


class Runs:
    """The table of runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self,
        *,
        run_id: str,
        name: str,
        plan: bytes,
        plan_sha256: bytes,
        submit_token: str,
        state: RunState,
        at_unix_s: float | None = None,
        suite: int = hybrid.SUITE,
    ) -> RunRow:
        """Add a run, once a token; a queued one goes to the end of the queue.

        A known token gives the run it named first, and ``run_id`` is not used. Without
        ``at_unix_s`` the run is created now.
        """
        now = time.time() if at_unix_s is None else at_unix_s
        with self._database.transaction() as connection:
            known = self.by_submit_token(submit_token)
            if known is not None:
                return known
            connection.execute(
                insert(runs).values(
                    run_id=run_id,
                    name=name,
                    plan=plan,
                    plan_sha256=plan_sha256,
                    submit_token=submit_token,
                    state=state.value,
                    error="",
                    created_unix_s=time.time(),
                    queue_place=_place(connection, state, first=False),
                    state_since_unix_s=now,
                    suite=suite,
                )
            )
            return self.get(run_id)

    def get(self, run_id: str) -> RunRow:
        """Find a run.

        Raises:
            UnknownRunError: There is none.
        """
        row = self._first(runs.c.run_id == run_id)
        if row is None:
            raise UnknownRunError(f"no run {run_id[:128]!r}")
        return row

    def by_submit_token(self, submit_token: str) -> RunRow | None:
        """Find the run that a token started."""
        return self._first(runs.c.submit_token == submit_token)

    def by_plan(self, plan_sha256: bytes) -> RunRow | None:
        """Find the newest run by the digest of its plan."""
        return self._first(runs.c.plan_sha256 == plan_sha256)

    def active(self) -> RunRow | None:
        """Find the run that is driven."""
        return self._first(runs.c.state.in_([state.value for state in ACTIVE]))

    def queued(self) -> tuple[RunRow, ...]:
        """Return the runs that wait, in the order in which they are to begin."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                select(runs)
                .where(runs.c.state == RunState.QUEUED.value)
                .order_by(runs.c.queue_place)
            ).all()
        return tuple(_run(row) for row in rows)

    def newest_over(self, most: int) -> tuple[str, ...]:
        """Return the ids of at most so many runs that are over, the last one to end first."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                select(runs.c.run_id)
                .where(runs.c.state.in_([state.value for state in OVER]))
                .order_by(runs.c.state_since_unix_s.desc(), runs.c.created_unix_s.desc())
                .limit(most)
            ).all()
        return tuple(row.run_id for row in rows)

    def list(self) -> tuple[RunRow, ...]:
        """Return every run, oldest first."""
        with self._database.transaction() as connection:
            rows = connection.execute(select(runs).order_by(runs.c.created_unix_s)).all()
        return tuple(_run(row) for row in rows)

    def set_state(
        self,
        run_id: str,
        state: RunState,
        error: str = "",
        *,
        first: bool = False,
        at_unix_s: float | None = None,
    ) -> None:
        """Change a run's state.

        ``error`` says why it failed, was aborted or could not go on. ``first`` puts a queued run
        before all others, not behind them. Without ``at_unix_s`` it happens now.

        Raises:
            UnknownRunError: There is no such run.
            RunError: It is over, in another state.
        """
        now = time.time() if at_unix_s is None else at_unix_s
        with self._database.transaction() as connection:
            known = self.get(run_id)
            if known.state in OVER and known.state is not state:
                raise RunError(f"run {run_id} is over: {known.state}")
            since = known.state_since_unix_s if known.state is state else now
            connection.execute(
                update(runs)
                .where(runs.c.run_id == run_id)
                .values(
                    state=state.value,
                    error=error,
                    queue_place=_place(connection, state, first=first),
                    state_since_unix_s=since,
                )
            )

    def _first(self, condition: ColumnElement[bool]) -> RunRow | None:
        with self._database.transaction() as connection:
            row = connection.execute(
                select(runs).where(condition).order_by(runs.c.created_unix_s.desc()).limit(1)
            ).first()
        return None if row is None else _run(row)


def _place(connection: Connection, state: RunState, *, first: bool) -> int | None:
    """A place before or behind all others in the queue; None for a run that is not queued."""
    if state is not RunState.QUEUED:
        return None
    edge = (func.min if first else func.max)(runs.c.queue_place)
    taken = connection.execute(select(edge)).scalar()
    if taken is None:
        return 0
    return int(taken) - 1 if first else int(taken) + 1


def _run(row: Any) -> RunRow:
    return RunRow(
        run_id=row.run_id,
        name=row.name,
        plan=row.plan,
        plan_sha256=row.plan_sha256,
        submit_token=row.submit_token,
        state=RunState(row.state),
        error=row.error,
        created_unix_s=row.created_unix_s,
        state_since_unix_s=row.state_since_unix_s,
        suite=row.suite,
    )
