"""What the choices of a run followed from, one row a round, where a plan has rounds chosen for.

Invariants:

1. A row is here, with the inputs, before anybody is asked for advice, and each of an advisor's
   answers before it is acted on; a coordinator that restarts goes on with them.
2. The inputs never change. The advice only grows, and is empty where nobody was asked.

Covered: the rows, as bytes. Not covered: what they say (``federation/selection/decide.py``,
``federation/advice/record.py``), the choice itself (``server/store/choices.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import and_, insert, select, update

from server.store.database import Database
from server.store.schema import decisions

__all__ = ["DecisionRow", "Decisions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionRow:
    """One round's."""

    run_id: str
    round: int
    inputs: bytes
    advice: bytes = b""


class Decisions:
    """The table of decisions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, row: DecisionRow) -> None:
        """Note what a decision follows from.

        Raises:
            StoreError: The round has one.
        """
        with self._database.transaction() as connection:
            connection.execute(
                insert(decisions).values(
                    run_id=row.run_id, round=row.round, inputs=row.inputs, advice=row.advice
                )
            )

    def advise(self, run_id: str, round_number: int, advice: bytes) -> None:
        """Note the advice so far."""
        with self._database.transaction() as connection:
            connection.execute(
                update(decisions)
                .where(and_(decisions.c.run_id == run_id, decisions.c.round == round_number))
                .values(advice=advice)
            )

    def of_round(self, run_id: str, round_number: int) -> DecisionRow | None:
        """Return what a round's choice follows from; None where none was begun."""
        with self._database.transaction() as connection:
            row = connection.execute(
                select(decisions).where(
                    and_(decisions.c.run_id == run_id, decisions.c.round == round_number)
                )
            ).first()
        if row is None:
            return None
        return DecisionRow(run_id=row.run_id, round=row.round, inputs=row.inputs, advice=row.advice)

    def rounds(self, run_id: str) -> tuple[int, ...]:
        """Return the rounds of a run that have a row, in order."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                select(decisions.c.round)
                .where(decisions.c.run_id == run_id)
                .order_by(decisions.c.round)
            ).all()
        return tuple(row.round for row in rows)
