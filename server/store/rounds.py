"""Rounds, one row an attempt: its phases with their times, its outcome.

Every change is one durable transaction. A row appears with an attempt's first phase.

Covered: phases entered again after a restart (the first time stands). Not covered: the figures'
meaning; ``server/figures.py`` has it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import insert, select, update
from sqlalchemy.engine import Connection

from server.store.database import Database
from server.store.schema import rounds

__all__ = ["PhaseTime", "RoundRow", "Rounds"]

RELEASE_PHASE: Final = "masked_input"
"""From this phase on an attempt is charged in the silos' ledgers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseTime:
    """When a phase began."""

    phase: str
    at_unix_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRow:
    """One attempt of one round."""

    run_id: str
    round: int
    attempt: int
    phase: str
    phases: tuple[PhaseTime, ...]
    """In the order they were entered."""
    outcome: str
    """Empty while the attempt is open, or was abandoned for another."""
    figures_json: str
    """Public figures; empty while there is no outcome."""


class Rounds:
    """The table of rounds."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, run_id: str, round_number: int, attempt: int) -> None:
        """Make sure an attempt has a row.

        Args:
            run_id: The run.
            round_number: The round.
            attempt: The attempt.
        """
        with self._database.transaction() as connection:
            self._row(connection, run_id, round_number, attempt)

    def set_phase(
        self, run_id: str, round_number: int, attempt: int, phase: str, at_unix_s: float
    ) -> None:
        """Note that an attempt entered a phase.

        Args:
            run_id: The run.
            round_number: The round.
            attempt: The attempt.
            phase: The phase.
            at_unix_s: When.
        """
        with self._database.transaction() as connection:
            row = self._row(connection, run_id, round_number, attempt)
            times = {time.phase: time.at_unix_s for time in row.phases}
            times.setdefault(phase, at_unix_s)
            self._update(connection, row, phase=phase, phases_unix_s=json.dumps(times))

    def finish(
        self, run_id: str, round_number: int, attempt: int, outcome: str, figures_json: str
    ) -> None:
        """Close a round with this attempt.

        Args:
            run_id: The run.
            round_number: The round.
            attempt: The attempt.
            outcome: How it ended.
            figures_json: Its public figures.
        """
        with self._database.transaction() as connection:
            row = self._row(connection, run_id, round_number, attempt)
            self._update(
                connection, row, phase="finished", outcome=outcome, figures_json=figures_json
            )

    def list(self, run_id: str) -> tuple[RoundRow, ...]:
        """Return every attempt of a run.

        Args:
            run_id: The run.

        Returns:
            By round and attempt.
        """
        with self._database.transaction() as connection:
            rows = connection.execute(
                select(rounds)
                .where(rounds.c.run_id == run_id)
                .order_by(rounds.c.round, rounds.c.attempt)
            ).all()
        return tuple(_round(row) for row in rows)

    def finished(self, run_id: str) -> tuple[RoundRow, ...]:
        """Return the attempts that closed a round.

        Args:
            run_id: The run.

        Returns:
            By round.
        """
        return tuple(row for row in self.list(run_id) if row.outcome)

    def releases(self, run_id: str) -> int:
        """Count the attempts in which uploads were invited, each charged in the silos' ledgers.

        Args:
            run_id: The run.

        Returns:
            How many.
        """
        return sum(
            any(time.phase == RELEASE_PHASE for time in row.phases) for row in self.list(run_id)
        )

    @staticmethod
    def _row(connection: Connection, run_id: str, round_number: int, attempt: int) -> RoundRow:
        query = select(rounds).where(
            rounds.c.run_id == run_id, rounds.c.round == round_number, rounds.c.attempt == attempt
        )
        row = connection.execute(query).first()
        if row is None:
            connection.execute(
                insert(rounds).values(
                    run_id=run_id,
                    round=round_number,
                    attempt=attempt,
                    phase="",
                    phases_unix_s="{}",
                    outcome="",
                    figures_json="",
                )
            )
            row = connection.execute(query).one()
        return _round(row)

    @staticmethod
    def _update(connection: Connection, row: RoundRow, **values: Any) -> None:
        connection.execute(
            update(rounds)
            .where(
                rounds.c.run_id == row.run_id,
                rounds.c.round == row.round,
                rounds.c.attempt == row.attempt,
            )
            .values(**values)
        )


def _round(row: Any) -> RoundRow:
    return RoundRow(
        run_id=row.run_id,
        round=row.round,
        attempt=row.attempt,
        phase=row.phase,
        phases=tuple(
            PhaseTime(phase=phase, at_unix_s=at)
            for phase, at in json.loads(row.phases_unix_s).items()
        ),
        outcome=row.outcome,
        figures_json=row.figures_json,
    )
