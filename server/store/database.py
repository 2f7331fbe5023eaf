"""The engine, its durability, its migrations, and what a transaction is.

Invariants:

1. A transaction is durable when its ``with`` block ends: SQLite runs in WAL mode with
   ``synchronous=FULL``, PostgreSQL with its default.
2. A transaction is alone: what it read still holds when it writes. SQLite's write lock is taken at
   the start (``BEGIN IMMEDIATE``), on PostgreSQL one advisory lock, so that no code above needs to
   know which of the two it runs on.
3. A transaction inside another joins it; there is no partial commit.
4. Deleted content is overwritten in SQLite's file (``secure_delete``); ``scrub`` empties the log.
   PostgreSQL keeps it until it vacuums.
5. A database that is away or slow is a ``StoreUnavailableError`` after a bounded wait, which tells
   callers to come again; a connection that was lost is made anew by the next transaction.

Covered: SQLite and PostgreSQL by URL, threads, several processes that migrate at once. Not covered:
``await`` inside a transaction, two coordinators that serve one database.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError

from server.errors import StoreError, StoreUnavailableError

__all__ = ["Database", "engine_for"]

WRITER_LOCK: Final = 0x63686F72
"""PostgreSQL advisory lock that every transaction holds."""
BUSY_TIMEOUT_S: Final = 10
MIGRATION_TIMEOUT_S: Final = 300
"""How long a process waits for another one that migrates."""
POSTGRESQL: Final = "postgresql+psycopg"
_DIALECTS: Final = {"postgres": POSTGRESQL, "postgresql": POSTGRESQL, POSTGRESQL: POSTGRESQL}
_LIBPQ: Final = {
    "connect_timeout": "5",
    # Without these a host that vanished would hold a thread for as long as TCP retries.
    "tcp_user_timeout": "10000",
    "keepalives_idle": "15",
    "application_name": "chorale-coordinator",
}
"""Unless the URL says otherwise."""
_LOCK_TIMEOUT: Final = "chorale_lock_timeout_s"
_SNAPSHOT: Final = "chorale_snapshot"


def engine_for(url: str) -> Engine:
    """Make an engine; nothing is connected yet.

    Args:
        url: SQLAlchemy's or libpq's form.

    Returns:
        The engine.

    Raises:
        StoreError: The URL is no database's, or its driver is not installed.
    """
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite":
            return _sqlite(parsed)
        if parsed.drivername not in _DIALECTS:
            raise StoreError("the database URL begins with sqlite:/// or postgresql://")
        return _postgresql(parsed.set(drivername=POSTGRESQL))
    except ImportError as error:
        raise StoreError("PostgreSQL needs its driver: pip install 'chorale[postgres]'") from error
    except (SQLAlchemyError, ValueError) as error:
        # The URL may hold a password; its text stays out of the message.
        raise StoreError("the database URL cannot be used") from error


class Database:
    """One engine; :meth:`transaction` is the only way in."""

    def __init__(self, url: str) -> None:
        self._engine = engine_for(url)
        self._local = threading.local()

    def migrate(self) -> None:
        """Bring the schema up to date; of several processes one does, and the others wait.

        Raises:
            StoreError: The database cannot be opened or changed, or is of a newer version.
        """
        from alembic import command
        from alembic.util import CommandError

        with self._alone(MIGRATION_TIMEOUT_S) as connection:
            try:
                command.upgrade(_migrations(connection), "head")
            except CommandError as error:
                raise StoreError(
                    "the database is of a newer version of chorale than this one"
                ) from error

    def revision(self) -> str:
        """Return the schema's revision; empty before the first migration.

        Raises:
            StoreError: The database failed.
        """
        from alembic.migration import MigrationContext

        with self.transaction() as connection:
            return MigrationContext.configure(connection).get_current_revision() or ""

    @staticmethod
    def newest_revision() -> str:
        """Return the revision that :meth:`migrate` leads to."""
        from alembic.script import ScriptDirectory

        return ScriptDirectory.from_config(_migrations(None)).get_current_head() or ""

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
        with self._alone(BUSY_TIMEOUT_S) as connection:
            self._local.connection = connection
            try:
                yield connection
            finally:
                self._local.connection = None

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Read the state of this instant, for as long as it takes; writers go on meanwhile.

        Yields:
            A connection on which nothing may be written.

        Raises:
            StoreError: The database failed.
        """
        options: dict[str, Any] = {_SNAPSHOT: True}
        if self._engine.dialect.name == "postgresql":
            options["isolation_level"] = "REPEATABLE READ"
        try:
            with self._engine.connect().execution_options(**options) as connection:
                # The first statement fixes what is seen.
                connection.execute(text("SELECT count(*) FROM alembic_version"))
                yield connection
                connection.rollback()
        except SQLAlchemyError as error:
            raise _failed(error) from error

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
            raise _failed(error) from error
        if busy:
            raise StoreError("the write-ahead log is in use and was not emptied")

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextmanager
    def _alone(self, timeout_s: int) -> Iterator[Connection]:
        options = {_LOCK_TIMEOUT: timeout_s}
        try:
            with (
                self._engine.connect().execution_options(**options) as connection,
                connection.begin(),
            ):
                yield connection
        except (SQLAlchemyError, OverflowError) as error:
            # The latter is what SQLite's driver says of a number that no column can hold.
            raise _failed(error) from error


def _failed(error: Exception) -> StoreError:
    away = isinstance(error, OperationalError | InterfaceError | sqlite3.OperationalError)
    kind = StoreUnavailableError if away else StoreError
    return kind(f"the database failed: {type(error).__name__}")


def _migrations(connection: Connection | None) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config


def _sqlite(url: URL) -> Engine:
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
    event.listen(engine, "connect", _sqlite_connect)
    event.listen(engine, "begin", _sqlite_begin)
    return engine


def _sqlite_connect(connection: Any, _: object) -> None:
    # The driver's own implicit BEGIN would come too late for invariant 2.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _sqlite_begin(connection: Connection) -> None:
    reads = connection.get_execution_options().get(_SNAPSHOT)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _postgresql(url: URL) -> Engine:
    engine = create_engine(
        url,
        connect_args={name: value for name, value in _LIBPQ.items() if name not in url.query},
        # A connection may be dead since the server was restarted: it is asked before it is used.
        pool_pre_ping=True,
    )
    event.listen(engine, "connect", _postgresql_connect)
    event.listen(engine, "begin", _postgresql_begin)
    return engine


def _postgresql_connect(connection: Any, _: object) -> None:
    from server.store.postgresql import adapt

    adapt(connection)


def _postgresql_begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get(_SNAPSHOT):
        return
    timeout_s = options.get(_LOCK_TIMEOUT, BUSY_TIMEOUT_S)
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{int(timeout_s)}s'")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITER_LOCK})")
