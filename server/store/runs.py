"""Runs: a plan, a state, and the token that started it.

Covered: starting once a token. Not covered: which adapter a run is at; its newest record says so.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, insert, select, update

from server.errors import UnknownRunError
from server.store.database import Database
from server.store.schema import runs

__all__ = ["RunRow", "RunState", "Runs"]


class RunState(StrEnum):
    """Where a run is."""

    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


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
    """Why it failed or was aborted; empty otherwise."""
    created_unix_s: float


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
    ) -> RunRow:
        """Add a run, once a token.

        Args:
            run_id: Its id, used if the token is new.
            name: The plan's name.
            plan: The TOML document.
            plan_sha256: Its digest.
            submit_token: Names the request to start.
            state: Where it begins.

        Returns:
            The run of this token, new or known.
        """
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
                )
            )
            return self.get(run_id)

    def get(self, run_id: str) -> RunRow:
        """Find a run.

        Args:
            run_id: Its id.

        Returns:
            The run.

        Raises:
            UnknownRunError: There is none.
        """
        row = self._first(runs.c.run_id == run_id)
        if row is None:
            raise UnknownRunError(f"no run {run_id[:128]!r}")
        return row

    def by_submit_token(self, submit_token: str) -> RunRow | None:
        """Find the run that a token started.

        Args:
            submit_token: The token.

        Returns:
            The run, or None.
        """
        return self._first(runs.c.submit_token == submit_token)

    def by_plan(self, plan_sha256: bytes) -> RunRow | None:
        """Find a run by the digest of its plan.

        Args:
            plan_sha256: The digest.

        Returns:
            The newest such run, or None.
        """
        return self._first(runs.c.plan_sha256 == plan_sha256)

    def list(self) -> tuple[RunRow, ...]:
        """Return every run.

        Returns:
            Oldest first.
        """
        with self._database.transaction() as connection:
            rows = connection.execute(select(runs).order_by(runs.c.created_unix_s)).all()
        return tuple(_run(row) for row in rows)

    def set_state(self, run_id: str, state: RunState, error: str = "") -> None:
        """Change a run's state.

        Args:
            run_id: Its id.
            state: The new state.
            error: Why, if it failed or was aborted.

        Raises:
            UnknownRunError: There is no such run.
        """
        with self._database.transaction() as connection:
            changed = connection.execute(
                update(runs).where(runs.c.run_id == run_id).values(state=state.value, error=error)
            )
            if changed.rowcount != 1:
                raise UnknownRunError(f"no run {run_id[:128]!r}")

    def _first(self, condition: ColumnElement[bool]) -> RunRow | None:
        with self._database.transaction() as connection:
            row = connection.execute(
                select(runs).where(condition).order_by(runs.c.created_unix_s.desc()).limit(1)
            ).first()
        return None if row is None else _run(row)


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
    )
