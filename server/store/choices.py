"""Whom the rounds of a run ask, one row a round, where the plan has them chosen.

Invariant: a row is here before the first task of its round is signed and never changes, so that a
coordinator that restarts asks the same silos.

Covered: the choices. Not covered: who makes them (``server/run/selection.py``); rounds that ask
everybody by their plan, and bisected ones, which have no row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, insert, select

from server.store.database import Database
from server.store.schema import choices

__all__ = ["ChoiceRow", "Choices"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceRow:
    """One round's."""

    run_id: str
    round: int
    silos: tuple[str, ...]
    """In ascending order."""
    why: str
    """One public line."""
    ready_deadline_s: int | None = None
    """From its tasks to their deadlines; None for the plan's own."""
    local_epochs: int | None = None
    """Of its tasks; None for the plan's own."""
    stop: bool = False
    """Whether the run is paused after it."""
    diagnose: bool = False
    """Whether a diagnosis is asked for."""


class Choices:
    """The table of choices."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, row: ChoiceRow) -> None:
        """Note a choice.

        Raises:
            StoreError: The round has one.
        """
        with self._database.transaction() as connection:
            connection.execute(
                insert(choices).values(
                    run_id=row.run_id,
                    round=row.round,
                    silos=json.dumps(row.silos),
                    why=row.why,
                    ready_deadline_s=row.ready_deadline_s,
                    local_epochs=row.local_epochs,
                    stop=row.stop,
                    diagnose=row.diagnose,
                )
            )

    def of_round(self, run_id: str, round_number: int) -> ChoiceRow | None:
        """Return the choice of a round; None where none was made."""
        with self._database.transaction() as connection:
            row = connection.execute(
                select(choices).where(
                    and_(choices.c.run_id == run_id, choices.c.round == round_number)
                )
            ).first()
        return None if row is None else _choice(row)

    def of_rounds(self, run_id: str, numbers: Sequence[int]) -> tuple[ChoiceRow, ...]:
        """Return the choices of these rounds that have one, by round."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                select(choices)
                .where(choices.c.run_id == run_id, choices.c.round.in_(numbers))
                .order_by(choices.c.round)
            ).all()
        return tuple(_choice(row) for row in rows)

    def newest(self, run_id: str, limit: int) -> tuple[ChoiceRow, ...]:
        """Return a run's last choices by round, however many there were before."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                select(choices)
                .where(choices.c.run_id == run_id)
                .order_by(choices.c.round.desc())
                .limit(limit)
            ).all()
        return tuple(_choice(row) for row in reversed(rows))


def _choice(row: Any) -> ChoiceRow:
    return ChoiceRow(
        run_id=row.run_id,
        round=row.round,
        silos=tuple(json.loads(row.silos)),
        why=row.why,
        ready_deadline_s=row.ready_deadline_s,
        local_epochs=row.local_epochs,
        stop=row.stop,
        diagnose=row.diagnose,
    )
