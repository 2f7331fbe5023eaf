"""The one federation of this coordinator: its name, and what its rosters and runs may not pass.

A coordinator has one federation: its CA, audit log and roster are not shared with another one.

Covered: creating it once, reading it back. Not covered: changing its terms; silos agreed to them.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select

from server.errors import FederationExistsError
from server.store.database import Database
from server.store.remembered import Remembered
from server.store.schema import federation

__all__ = ["FederationRow", "Federations"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FederationRow:
    """The terms."""

    name: str
    """Also the SPIFFE trust domain of its silos."""
    min_silos: int = 3
    """Fewest silos of a roster, and the least n_min of a run."""
    colluding: int = 1
    """Least c of a roster: silos that may work with the coordinator."""
    epsilon_cap: float | None = None
    """Largest epsilon_cap that a run's plan may state; None leaves it to plans and silos."""
    delta: float = 1e-5
    """Largest delta that a run's plan may state."""
    created_unix_s: int = 0


class Federations:
    """The table, of one row at most."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._row = Remembered(database, _read)

    def create(self, row: FederationRow) -> None:
        """Create the federation; creating it again with the same terms changes nothing.

        Raises:
            FederationExistsError: There is one already, of another name or other terms.
        """
        with self._database.transaction() as connection:
            known = self.current()
            if known is not None:
                if _terms(known) == _terms(row):
                    return
                raise FederationExistsError(
                    f"this coordinator has the federation {known.name!r} with its own terms: "
                    "a coordinator has one; make another with chorale init"
                )
            connection.execute(
                insert(federation).values(
                    name=row.name,
                    min_silos=row.min_silos,
                    colluding=row.colluding,
                    epsilon_cap=row.epsilon_cap,
                    delta=row.delta,
                    created_unix_s=row.created_unix_s,
                )
            )

    def current(self) -> FederationRow | None:
        """Return the federation."""
        return self._row.get(None)


def _read(connection: Connection, _key: None) -> FederationRow | None:
    row = connection.execute(select(federation)).first()
    if row is None:
        return None
    return FederationRow(
        name=row.name,
        min_silos=row.min_silos,
        colluding=row.colluding,
        epsilon_cap=row.epsilon_cap,
        delta=row.delta,
        created_unix_s=row.created_unix_s,
    )


def _terms(row: FederationRow) -> tuple[object, ...]:
    return row.name, row.min_silos, row.colluding, row.epsilon_cap, row.delta
