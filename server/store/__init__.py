"""Everything the coordinator remembers, one file a noun.

Each noun's methods are transactions of their own, and join the one opened by
:meth:`Store.transaction`, so that several changes become durable together.

Covered: SQLite (the default) and PostgreSQL by URL, migrations at the start. Not covered: blobs and
the audit log, which are files (``server/store/blobs/directory.py``, ``server/audit.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from sqlalchemy import Connection

from server.errors import StoreError
from server.store.aggregations import Aggregations
from server.store.bisections import Bisections
from server.store.choices import Choices
from server.store.database import Database
from server.store.decisions import Decisions
from server.store.dropouts import Dropouts
from server.store.federation import Federations
from server.store.heads import AuditHeads, DebitHeads, Heads
from server.store.invites import Invites
from server.store.messages import Messages
from server.store.records import Records
from server.store.rollbacks import Rollbacks
from server.store.rosters import Proposals, Rosters
from server.store.rounds import Rounds
from server.store.runs import Runs
from server.store.silos import Silos
from server.store.tasks import Tasks

__all__ = ["Store"]


class Store:
    """The coordinator's database."""

    def __init__(self, database_url: str, *, create: bool = False) -> None:
        """Open it, in SQLAlchemy's or libpq's form, and bring its schema up to date.

        With ``create`` a SQLite file that is not there is made.

        Raises:
            StoreError: It is absent, cannot be opened, or is of a newer version.
        """
        self._database = Database(database_url, create=create)
        try:
            self._database.migrate()
        except StoreError:
            self._database.close()
            raise
        self.federation = Federations(self._database)
        self.invites = Invites(self._database)
        self.silos = Silos(self._database)
        self.rosters = Rosters(self._database)
        self.runs = Runs(self._database)
        self.rounds = Rounds(self._database)
        self.records = Records(self._database)
        self.dropouts = Dropouts(self._database)
        self.bisections = Bisections(self._database)
        self.choices = Choices(self._database)
        self.decisions = Decisions(self._database)
        self.rollbacks = Rollbacks(self._database)
        self.aggregations = Aggregations(self._database)
        self.messages = Messages(self._database)
        self.heads = Heads(self._database)
        self.debit_heads = DebitHeads(self._database)
        self.tasks = Tasks(self._database)
        self.audit_heads = AuditHeads(self._database)
        self.proposals = Proposals(self._database)

    def transaction(self) -> AbstractContextManager[Connection]:
        """Make everything inside the ``with`` block one durable change."""
        return self._database.transaction()

    def snapshot(self) -> AbstractContextManager[Connection]:
        """Read the state of this instant while writers go on; the connection writes nothing."""
        return self._database.snapshot()

    def reading(self) -> AbstractContextManager[Connection]:
        """Make everything inside the block a look at one instant, which waits for no writer."""
        return self._database.reading()

    def tell_times(self, timed: Callable[[bool, float, float], None]) -> None:
        """Tell this of each transaction (``Database.timed``)."""
        self._database.timed = timed

    def check_writable(self) -> None:
        """Prove that the database takes a write; raises StoreError if not."""
        self._database.check_writable()

    def scrub(self) -> None:
        """Overwrite what was deleted: the write-ahead log may still hold it."""
        self._database.scrub()

    def close(self) -> None:
        """Close every connection."""
        self._database.close()
