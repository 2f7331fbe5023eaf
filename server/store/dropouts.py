"""Drop-outs: how often each silo was lost from a run in a row, and until which round it sits out.

A silo that was never lost has no row. Every change is one durable transaction, and joins the one
that ends the attempt it is about.

Covered: the counts. Not covered: what counts, and who may sit out (``server/run/dropouts.py``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, insert, select, update

from server.store.database import Database
from server.store.schema import dropouts

__all__ = ["DropoutRow", "Dropouts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DropoutRow:
    """One silo in one run."""

    run_id: str
    silo_id: str
    in_a_row: int
    """Attempts it was lost from since the last round that it took part in to its end."""
    last_round: int
    """The last round in which it was lost."""
    out_until_round: int
    """It is not asked up to this round; 0 if it is."""


class Dropouts:
    """The table of drop-outs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(self, run_id: str) -> tuple[DropoutRow, ...]:
        """Return who was ever lost from a run, by silo."""
        with self._database.transaction() as connection:
            rows: Any = connection.execute(
                select(dropouts).where(dropouts.c.run_id == run_id).order_by(dropouts.c.silo_id)
            ).all()
        return tuple(
            DropoutRow(
                run_id=row.run_id,
                silo_id=row.silo_id,
                in_a_row=row.in_a_row,
                last_round=row.last_round,
                out_until_round=row.out_until_round,
            )
            for row in rows
        )

    def add(self, run_id: str, silo_id: str, round_number: int) -> int:
        """Count one more, and return how many it is in a row."""
        is_it = and_(dropouts.c.run_id == run_id, dropouts.c.silo_id == silo_id)
        with self._database.transaction() as connection:
            known = connection.execute(select(dropouts.c.in_a_row).where(is_it)).scalar()
            in_a_row = 1 + int(known or 0)
            if known is None:
                connection.execute(
                    insert(dropouts).values(
                        run_id=run_id,
                        silo_id=silo_id,
                        in_a_row=in_a_row,
                        last_round=round_number,
                        out_until_round=0,
                    )
                )
            else:
                connection.execute(
                    update(dropouts).where(is_it).values(in_a_row=in_a_row, last_round=round_number)
                )
        return in_a_row

    def took_part(self, run_id: str, silo_ids: Collection[str], round_number: int) -> None:
        """Begin to count anew for those who were in a round to its end and never lost in it."""
        with self._database.transaction() as connection:
            connection.execute(
                update(dropouts)
                .where(
                    dropouts.c.run_id == run_id,
                    dropouts.c.silo_id.in_(silo_ids),
                    dropouts.c.last_round != round_number,
                )
                .values(in_a_row=0)
            )

    def sit_out(self, run_id: str, silo_id: str, *, until_round: int) -> None:
        """Ask a silo that was lost no more; ``until_round`` is the last round without it."""
        with self._database.transaction() as connection:
            connection.execute(
                update(dropouts)
                .where(dropouts.c.run_id == run_id, dropouts.c.silo_id == silo_id)
                .values(out_until_round=until_round)
            )

    def call_back(self, run_id: str, *, before_round: int | None = None) -> None:
        """Ask silos again that sat out; what was counted stays.

        With ``before_round`` only those whose last round without it was an earlier one.
        """
        which = dropouts.c.out_until_round > 0
        if before_round is not None:
            which = and_(which, dropouts.c.out_until_round < before_round)
        with self._database.transaction() as connection:
            connection.execute(
                update(dropouts).where(dropouts.c.run_id == run_id, which).values(out_until_round=0)
            )

    def sitting_out(self, run_id: str) -> frozenset[str]:
        """Return who is not asked."""
        return frozenset(row.silo_id for row in self.list(run_id) if row.out_until_round)

    def forget(self, silo_id: str) -> None:
        """Let a silo take part in every run as if it had never been lost."""
        with self._database.transaction() as connection:
            connection.execute(
                update(dropouts)
                .where(dropouts.c.silo_id == silo_id)
                .values(in_a_row=0, out_until_round=0)
            )
