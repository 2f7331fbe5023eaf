"""Rounds, one row an attempt at one of their steps: its phases with their times, its outcome.

Every change is one durable transaction. A row appears with an attempt's first phase.

Covered: phases entered again after a restart (the first time stands). Not covered: the figures'
meaning; ``server/figures.py`` has it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, and_, insert, select, update
from sqlalchemy.engine import Connection

from server.store.database import Database
from server.store.schema import rounds

__all__ = ["AttemptPlace", "Charged", "PhaseTime", "RoundRow", "Rounds"]

RELEASE_PHASE: Final = "masked_input"
"""From this phase on an attempt is charged in the silos' ledgers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptPlace:
    """Which attempt of which step of which round."""

    run_id: str
    round: int
    step: int
    attempt: int


class Charged(NamedTuple):
    """What one run asked the silos' ledgers to be charged for."""

    releases: int
    """Attempts in which uploads were invited."""
    first_steps: int
    """How many of them were of a round's step 0."""
    rounds: int
    """Rounds whose task went out; under ``record_local`` each was trained for before its upload."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseTime:
    """When a phase began."""

    phase: str
    at_unix_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRow:
    """One attempt at one step of a round."""

    run_id: str
    round: int
    step: int
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

    def set_phase(self, place: AttemptPlace, phase: str, at_unix_s: float) -> None:
        """Note that an attempt entered a phase."""
        with self._database.transaction() as connection:
            row = self._row(connection, place)
            times = {time.phase: time.at_unix_s for time in row.phases}
            times.setdefault(phase, at_unix_s)
            self._update(connection, row, phase=phase, phases_unix_s=json.dumps(times))

    def finish(self, place: AttemptPlace, outcome: str, figures_json: str) -> None:
        """Close a step with this attempt."""
        with self._database.transaction() as connection:
            row = self._row(connection, place)
            self._update(
                connection, row, phase="finished", outcome=outcome, figures_json=figures_json
            )

    def list(self, run_id: str) -> tuple[RoundRow, ...]:
        """Return every attempt of a run, by round, step and attempt."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                select(rounds)
                .where(rounds.c.run_id == run_id)
                .order_by(rounds.c.round, rounds.c.step, rounds.c.attempt)
            ).all()
        return tuple(_round(row) for row in rows)

    def newest(self, run_id: str, limit: int) -> tuple[RoundRow, ...]:
        """Return a run's last attempts, however many there were before.

        They are ordered by round, step and attempt; the last of them is the run's newest.
        """
        with self._database.transaction() as connection:
            rows = connection.execute(
                select(rounds)
                .where(rounds.c.run_id == run_id)
                .order_by(rounds.c.round.desc(), rounds.c.step.desc(), rounds.c.attempt.desc())
                .limit(limit)
            ).all()
        return tuple(_round(row) for row in reversed(rows))

    def finished(self, run_id: str) -> tuple[RoundRow, ...]:
        """Return the attempts that closed a step of a round, by round and step."""
        return tuple(row for row in self.list(run_id) if row.outcome)

    def charged(self, run_id: str) -> Charged:
        """Count the attempts in which uploads were invited, and the rounds that were begun."""
        # Without the figures, which are most of a long run's rows: whoever shows ε asks often.
        with self._database.transaction() as connection:
            found = connection.execute(
                select(rounds.c.round, rounds.c.step, rounds.c.phases_unix_s).where(
                    rounds.c.run_id == run_id
                )
            ).all()
        rows = [(row.round, row.step, json.loads(row.phases_unix_s)) for row in found]
        steps = [step for _, step, phases in rows if RELEASE_PHASE in phases]
        # Its first phase is that of the task; a step that is skipped without one has none.
        rounds_begun = len({number for number, _, phases in rows if phases})
        return Charged(releases=len(steps), first_steps=steps.count(0), rounds=rounds_begun)

    @staticmethod
    def _row(connection: Connection, place: AttemptPlace) -> RoundRow:
        query = select(rounds).where(_is(place))
        row = connection.execute(query).first()
        if row is None:
            connection.execute(
                insert(rounds).values(
                    run_id=place.run_id,
                    round=place.round,
                    step=place.step,
                    attempt=place.attempt,
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
                _is(
                    AttemptPlace(
                        run_id=row.run_id, round=row.round, step=row.step, attempt=row.attempt
                    )
                )
            )
            .values(**values)
        )


def _is(place: AttemptPlace) -> ColumnElement[bool]:
    return and_(
        rounds.c.run_id == place.run_id,
        rounds.c.round == place.round,
        rounds.c.step == place.step,
        rounds.c.attempt == place.attempt,
    )


def _round(row: Any) -> RoundRow:
    return RoundRow(
        run_id=row.run_id,
        round=row.round,
        step=row.step,
        attempt=row.attempt,
        phase=row.phase,
        phases=tuple(
            PhaseTime(phase=phase, at_unix_s=at)
            for phase, at in json.loads(row.phases_unix_s).items()
        ),
        outcome=row.outcome,
        figures_json=row.figures_json,
    )
