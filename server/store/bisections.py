"""Bisections that admins asked for: each takes one round, and is remembered by its submit token.

Invariants:

1. A token names one bisection of one run.
2. At most one bisection of a run waits for its round, and a round is that of at most one. The round
   is noted before anything of it is opened and never changes, so that a coordinator that restarts
   draws the same halves.

Covered: the requests. Not covered: which of them may be made (``server/conductor/bisection.py``);
what the halves' sums were, which the figures of the round say (``server/figures.py``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, insert, select, update

from server.errors import StoreError
from server.store.database import Database
from server.store.schema import bisections

__all__ = ["BisectionRow", "Bisections"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BisectionRow:
    """One request."""

    submit_token: str
    run_id: str
    named: tuple[str, ...]
    """Whom the admin named, in ascending order; empty where the coordinator was to choose."""
    suspects: tuple[str, ...]
    """The silos of which each half has every second one, in ascending order."""
    asked_unix_s: float
    round: int | None
    """The round that it takes; None while that has not begun."""


class Bisections:
    """The table of bisections."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def ask(
        self,
        *,
        submit_token: str,
        run_id: str,
        named: tuple[str, ...],
        suspects: tuple[str, ...],
        at_unix_s: float,
    ) -> None:
        """Note a request to split these silos.

        Raises:
            StoreError: Another one of this run waits, or the token is known.
        """
        with self._database.transaction() as connection:
            if self.waiting(run_id) is not None or self.by_submit_token(submit_token) is not None:
                raise StoreError(f"a bisection of run {run_id} is known under this token or waits")
            connection.execute(
                insert(bisections).values(
                    submit_token=submit_token,
                    run_id=run_id,
                    named=json.dumps(named),
                    suspects=json.dumps(suspects),
                    asked_unix_s=at_unix_s,
                    round=None,
                )
            )

    def by_submit_token(self, submit_token: str) -> BisectionRow | None:
        """Find a request by its token."""
        return self._first(bisections.c.submit_token == submit_token)

    def waiting(self, run_id: str) -> BisectionRow | None:
        """Find the request of a run whose round has not begun."""
        return self._first(and_(bisections.c.run_id == run_id, bisections.c.round.is_(None)))

    def of_round(self, run_id: str, round_number: int) -> BisectionRow | None:
        """Find the request that took a round."""
        return self._first(and_(bisections.c.run_id == run_id, bisections.c.round == round_number))

    def newest(self, run_id: str) -> BisectionRow | None:
        """Find the request of a run that took the latest round."""
        return self._first(and_(bisections.c.run_id == run_id, bisections.c.round.is_not(None)))

    def begin(self, run_id: str, round_number: int) -> BisectionRow | None:
        """Give the request that waits a round, and return it; None where none waits."""
        with self._database.transaction() as connection:
            waits = self.waiting(run_id)
            if waits is None:
                return None
            connection.execute(
                update(bisections)
                .where(bisections.c.submit_token == waits.submit_token)
                .values(round=round_number)
            )
            return self.by_submit_token(waits.submit_token)

    def _first(self, condition: ColumnElement[bool]) -> BisectionRow | None:
        with self._database.transaction() as connection:
            row: Any = connection.execute(
                select(bisections).where(condition).order_by(bisections.c.round.desc()).limit(1)
            ).first()
        if row is None:
            return None
        return BisectionRow(
            submit_token=row.submit_token,
            run_id=row.run_id,
            named=tuple(json.loads(row.named)),
            suspects=tuple(json.loads(row.suspects)),
            asked_unix_s=row.asked_unix_s,
            round=row.round,
        )
