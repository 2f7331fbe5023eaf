"""The engine, its durability, its migrations, and what a transaction is.

Invariants:

1. A transaction is durable when its ``with`` block ends: SQLite runs in WAL mode with
   ``synchronous=FULL``, PostgreSQL with its default.
2. A transaction is alone: what it read still holds when it writes. Whoever only looks
   (``reading``) waits for no writer, and sees one instant. SQLite's write lock is taken at
   the start (``BEGIN IMMEDIATE``), on PostgreSQL one advisory lock, so that no code above needs to
   know which of the two it runs on.
3. A transaction inside another joins it; there is no partial commit.
4. Deleted content is overwritten in SQLite's file (``secure_delete``); ``scrub`` empties the log.
   PostgreSQL keeps it until it vacuums.
5. A database that is away or slow is a ``StoreUnavailableError`` after a bounded wait, which tells
   callers to come again; a connection that was lost is made anew by the next transaction. One that
   takes no writes, because its disk is full, fails or is read-only, is a ``StoreUnwritableError``.
6. What was read outlives its transaction for as long as ``changes`` stays the same: this process
   alone writes, and each of its commits counts.
7. A SQLite file that is not there is an error, and made only where the caller says so: an empty
   database in the place of one that was lost would pass for a coordinator's.

Covered: SQLite and PostgreSQL by URL, threads, several processes that migrate at once. Not covered:
``await`` inside a transaction; two coordinators that serve one database
(``server/site/claim.py`` refuses the second).
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError

from ops.files import private_file
from server.errors import (
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
    StoreUnwritableError,
)

__all__ = ["POSTGRESQL", "Database", "engine_for", "is_sqlite", "spoken"]

WRITER_LOCK: Final = 0x63686F72
"""PostgreSQL advisory lock that every transaction holds."""
BUSY_TIMEOUT_S: Final = 10
MIGRATION_TIMEOUT_S: Final = 300
"""How long a process waits for another one that migrates."""
_ALEMBIC: Final = threading.Lock()
"""Alembic keeps what it migrates in globals of its process."""
PROBE_TIMEOUT_S: Final = 3
"""How long a probe waits for whoever writes."""
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
_UNWRITABLE: Final = MappingProxyType(
    {
        sqlite3.SQLITE_FULL: "its disk is full",
        sqlite3.SQLITE_IOERR: "its disk fails",
        sqlite3.SQLITE_READONLY: "it is read-only",
        "53100": "its disk is full",
        "58030": "its disk fails",
        "25006": "it is read-only",
    }
)
"""SQLite's primary codes; PostgreSQL's disk_full, io_error and read_only_sql_transaction."""
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, "55P03"})
"""PostgreSQL's lock_not_available."""
_PRIMARY: Final = 0xFF
"""SQLite's extended codes say more in the bits above."""


def engine_for(url: str, *, create: bool = False) -> Engine:
    """Make an engine from a URL in SQLAlchemy's or libpq's form; nothing is connected yet.

    With ``create`` a SQLite file that is not there is made.

    Raises:
        StoreError: The URL is no database's, or its driver is not installed.
    """
    try:
        parsed = make_url(url)
        if is_sqlite(parsed):
            return _sqlite(parsed, create=create)
        if parsed.drivername not in _DIALECTS:
            raise StoreError("the database URL begins with sqlite:/// or postgresql://")
        return _postgresql(parsed.set(drivername=POSTGRESQL))
    except ImportError as error:
        raise StoreError("PostgreSQL needs its driver: pip install 'chorale[postgres]'") from error
    except (SQLAlchemyError, ValueError) as error:
        # The URL may hold a password; its text stays out of the message.
        raise StoreError("the database URL cannot be used") from error


def is_sqlite(url: URL) -> bool:
    """Whether a URL names a file of SQLite's."""
    return url.get_backend_name() == "sqlite"


def spoken(url: URL) -> str:
    """Name a database for people: never its password, and nothing of its other settings."""
    if is_sqlite(url):
        return f"SQLite database {url.database}"
    host = url.host or url.query.get("host", "the default host")
    return f"PostgreSQL database {url.database!r} at {host}"


class Database:
    """One engine; :meth:`transaction` is the only way in."""

    timed: Callable[[bool, float, float], None]
    """Told of each transaction that ended: whether it may write, and how many seconds it waited for
    its connection and its lock, and took in all. On the thread that had it open."""

    def __init__(self, url: str, *, create: bool = False) -> None:
        self.timed = _untold
        self._changes = 0
        self._counting = threading.Lock()
        self._engine = engine_for(url, create=create)
        named = make_url(url)
        self._what = spoken(named)
        self._file = _file(named)
        self._create = create
        self._local = threading.local()

    def migrate(self) -> None:
        """Bring the schema up to date; of several processes one does, and the others wait.

        Raises:
            StoreError: The database cannot be opened or changed, or is of a newer version.
        """
        from alembic import command
        from alembic.util import CommandError

        if self._file is not None:
            try:
                private_file(self._file, create=self._create)
            except OSError as error:
                raise StoreUnavailableError(f"the database failed: {error.strerror}") from error
        with self._alone(MIGRATION_TIMEOUT_S) as connection:
            try:
                with _ALEMBIC:
                    command.upgrade(_migrations(connection), "head")
            except CommandError as error:
                raise StoreError(
                    "the database is of a newer version of chorale than this one"
                ) from error

    @property
    def changes(self) -> int:
        """How many transactions that may have changed something ended so far, however they did."""
        return self._changes

    @property
    def joined(self) -> bool:
        """Whether this thread is inside a transaction, which sees what is not committed yet."""
        return getattr(self._local, "connection", None) is not None

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

        Raises:
            StoreError: The database failed; nothing of the transaction is kept.
        """
        outer: Connection | None = getattr(self._local, "connection", None)
        if outer is not None:
            yield outer
            return
        try:
            with self._alone(BUSY_TIMEOUT_S) as connection:
                self._local.connection = connection
                try:
                    yield connection
                finally:
                    self._local.connection = None
        finally:
            # Also where it failed: a commit may have been made and only its answer lost.
            with self._counting:
                self._changes += 1

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Read the state of this instant, for as long as it takes; writers go on meanwhile.

        Nothing can be written on the connection.

        Raises:
            StoreError: The database failed.
        """
        options: dict[str, Any] = {_SNAPSHOT: True}
        if self._engine.dialect.name == "postgresql":
            options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        began = time.perf_counter()
        waited_s = None
        try:
            with self._engine.connect().execution_options(**options) as connection:
                # The first statement fixes what is seen.
                connection.execute(text("SELECT count(*) FROM alembic_version"))
                waited_s = time.perf_counter() - began
                yield connection
                connection.rollback()
        except SQLAlchemyError as error:
            raise _failed(error, self._what) from error
        finally:
            self._tell(began, waited_s, writes=False)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read one instant, whoever writes; transactions of this thread inside join it.

        Inside a transaction it joins that. Nothing can be written in it.

        Raises:
            StoreError: The database failed, or something was to be written.
        """
        outer: Connection | None = getattr(self._local, "connection", None)
        if outer is not None:
            yield outer
            return
        with self.snapshot() as connection:
            self._local.connection = connection
            try:
                yield connection
            finally:
                self._local.connection = None

    def check_writable(self) -> None:
        """Prove that a transaction can write, by one that does; for the readiness probe.

        Raises:
            StoreError: It cannot, or somebody else writes for longer than a probe waits.
        """
        with self._alone(PROBE_TIMEOUT_S) as connection:
            # The same value: what counts is that the row's page is written again and synced.
            connection.execute(text("UPDATE alembic_version SET version_num = version_num"))

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
            raise _failed(error, self._what) from error
        if busy:
            raise StoreError("the write-ahead log is in use and was not emptied")

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextmanager
    def _alone(self, timeout_s: int) -> Iterator[Connection]:
        options = {_LOCK_TIMEOUT: timeout_s}
        began = time.perf_counter()
        waited_s = None
        try:
            with (
                self._engine.connect().execution_options(**options) as connection,
                connection.begin(),
            ):
                waited_s = time.perf_counter() - began
                yield connection
        except (SQLAlchemyError, OverflowError) as error:
            # The latter is what SQLite's driver says of a number that no column can hold.
            raise _failed(error, self._what) from error
        finally:
            self._tell(began, waited_s, writes=True)

    def _tell(self, began: float, waited_s: float | None, *, writes: bool) -> None:
        """Tell of a transaction that ended; one that never began waited all the time."""
        took_s = time.perf_counter() - began
        self.timed(writes, took_s if waited_s is None else waited_s, took_s)


def _untold(_writes: bool, _waited_s: float, _took_s: float) -> None:  # noqa: FBT001 - a callback
    """Nobody asks."""


def _failed(error: Exception, what: str) -> StoreError:
    original = getattr(error, "orig", None) or error
    code = getattr(original, "sqlite_errorcode", None)
    cause = getattr(original, "sqlstate", None) if code is None else code & _PRIMARY
    if cause in _BUSY:
        return StoreBusyError(f"the database is busy: another transaction holds it ({what})")
    why = _UNWRITABLE.get(cause)
    if why is not None:
        return StoreUnwritableError(f"the database cannot be written: {why} ({what})")
    away = isinstance(error, OperationalError | InterfaceError | sqlite3.OperationalError)
    kind = StoreUnavailableError if away else StoreError
    return kind(f"the database failed: {type(error).__name__} ({what})")


def _migrations(connection: Connection | None) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config


def _file(url: URL) -> Path | None:
    """SQLite's own file; None for a database that is somewhere else."""
    if url.get_backend_name() != "sqlite" or url.database in {None, "", ":memory:"}:
        return None
    return Path(str(url.database))


def _sqlite(url: URL, *, create: bool) -> Engine:
    path = Path(url.database or "").absolute()
    if not create and not path.exists():
        raise StoreError(f"the {spoken(url)} is absent")
    # Also a file that goes while it is in use is not made anew by the next connection.
    named = url.set(database=path.as_uri()).update_query_dict(
        {"mode": "rwc" if create else "rw", "uri": "true"}
    )
    engine = create_engine(named, connect_args={"timeout": BUSY_TIMEOUT_S})
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
    options = connection.get_execution_options()
    timeout_s = options.get(_LOCK_TIMEOUT, BUSY_TIMEOUT_S)
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {1000 * int(timeout_s)}")
    reads = bool(options.get(_SNAPSHOT))
    connection.exec_driver_sql(f"PRAGMA query_only = {int(reads)}")
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
