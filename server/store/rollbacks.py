"""Rollbacks that admins asked for: each is done once, and remembered by its submit token.

Invariants:

1. A token names one rollback of one run.
2. At most one rollback of a run waits; one that is done stays done.

Covered: the requests. Not covered: which of them may be made (``server/conductor/rollback.py``),
the signed records (``server/store/records.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, insert, select, update

from server.errors import StoreError
from server.store.database import Database
from server.store.schema import rollbacks

__all__ = ["RollbackRow", "Rollbacks"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RollbackRow:
    """One request."""

    submit_token: str
    run_id: str
    to_round: int
    """The round whose adapter is to come back; 0 for the initial one."""
    asked_unix_s: float
    round: int | None
    """The round whose place it took; None while it waits."""


class Rollbacks:
    """The table of rollbacks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def ask(self, *, submit_token: str, run_id: str, to_round: int, at_unix_s: float) -> None:
        """Note a request to go back to a round.

        Raises:
            StoreError: Another one of this run waits, or the token is known.
        """
        with self._database.transaction() as connection:
            if self.waiting(run_id) is not None or self.by_submit_token(submit_token) is not None:
                raise StoreError(f"a rollback of run {run_id} is known under this token or waits")
            connection.execute(
                insert(rollbacks).values(
                    submit_token=submit_token,
                    run_id=run_id,
                    to_round=to_round,
                    asked_unix_s=at_unix_s,
                    round=None,
                )
            )

    def by_submit_token(self, submit_token: str) -> RollbackRow | None:
        """Find a request by its token."""
        return self._first(rollbacks.c.submit_token == submit_token)

    def waiting(self, run_id: str) -> RollbackRow | None:
        """Find the request of a run that is not done."""
        return self._first(and_(rollbacks.c.run_id == run_id, rollbacks.c.round.is_(None)))

    def done(self, run_id: str, round_number: int) -> None:
        """Note that the request that waits has its record, in the place of round ``round_number``.

        Raises:
            StoreError: None waits.
        """
        with self._database.transaction() as connection:
            changed = connection.execute(
                update(rollbacks)
                .where(rollbacks.c.run_id == run_id, rollbacks.c.round.is_(None))
                .values(round=round_number)
            )
            if changed.rowcount != 1:
                raise StoreError(f"no rollback of run {run_id} waits")

    def _first(self, condition: ColumnElement[bool]) -> RollbackRow | None:
        with self._database.transaction() as connection:
            row: Any = connection.execute(select(rollbacks).where(condition).limit(1)).first()
        if row is None:
            return None
        return RollbackRow(
            submit_token=row.submit_token,
            run_id=row.run_id,
            to_round=row.to_round,
            asked_unix_s=row.asked_unix_s,
            round=row.round,
        )
