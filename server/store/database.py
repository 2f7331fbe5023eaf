"""The engine, its durability, its migrations, and what a transaction is.

Invariants:

1. A transaction is durable when its ``with`` block ends: SQLite runs in WAL mode with
   ``synchronous=FULL``, PostgreSQL with its default.
2. A writer takes SQLite's write lock at the start (``BEGIN IMMEDIATE``), so that what it read still
   holds when it writes.
3. A transaction inside another joins it; there is no partial commit.
4. Deleted content is overwritten in SQLite's file (``secure_delete``); ``scrub`` empties the log.

Covered: SQLite and PostgreSQL by URL, threads. Not covered: ``await`` inside a transaction, several
coordinators migrating one SQLite file at once.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError

from server.errors import StoreError

__all__ = ["Database"]

MIGRATION_LOCK: Final = 0x63686F72
"""PostgreSQL advisory lock held while migrating."""
BUSY_TIMEOUT_S: Final = 10


class Database:
    """One engine; :meth:`transaction` is the only way in."""

    def __init__(self, url: str) -> None:
        sqlite = url.startswith("sqlite")
        try:
            self._engine: Engine = create_engine(
                url, connect_args={"timeout": BUSY_TIMEOUT_S} if sqlite else {}
            )
        except (SQLAlchemyError, ImportError) as error:
            # The URL may hold a password; its text stays out of the message.
            raise StoreError("the database URL cannot be used") from error
        if sqlite:
            event.listen(self._engine, "connect", _sqlite_connect)
            event.listen(self._engine, "begin", _sqlite_begin)
        self._local = threading.local()

    def migrate(self) -> None:
        """Bring the schema up to date.

        Raises:
            StoreError: The database cannot be opened or changed.
        """
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        with self.transaction() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(
                    text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK}
                )
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction, or join the one this thread is in.

        Yields:
            The connection.

        Raises:
            StoreError: The database failed; nothing of the transaction is kept.
        """
        outer: Connection | None = getattr(self._local, "connection", None)
        if outer is not None:
            yield outer
            return
        try:
            with self._engine.begin() as connection:
                self._local.connection = connection
                try:
                    yield connection
                finally:
                    self._local.connection = None
        except SQLAlchemyError as error:
            raise StoreError(f"the database failed: {type(error).__name__}") from error

    def check_writable(self) -> None:
        """Prove that a transaction can write; for the readiness probe.

        Raises:
            StoreError: It cannot.
        """
        with self.transaction() as connection:
            connection.execute(text("UPDATE invites SET silo_id = silo_id WHERE 1 = 0"))

    def scrub(self) -> None:
        """Move SQLite's write-ahead log into the file and empty it; PostgreSQL has its own ways.

        Raises:
            StoreError: The database failed, or a reader keeps the log from being emptied.
        """
        if self._engine.dialect.name != "sqlite":
            return
        try:
            connection = self._engine.raw_connection()
            try:
                cursor = connection.cursor()
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                # SQLite does not fail here: the first column says whether it was blocked.
                row = cursor.fetchone()
                busy = row is None or row[0] != 0
                cursor.close()
            finally:
                connection.close()
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise StoreError(f"the database failed: {type(error).__name__}") from error
        if busy:
            raise StoreError("the write-ahead log is in use and was not emptied")

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()


def _sqlite_connect(connection: Any, _: object) -> None:
    # The driver's own implicit BEGIN would come too late for invariant 2.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _sqlite_begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
