"""One coordinator at a time: who serves a data directory and a database holds a claim on both.

Two that serve one directory, on two machines or by other ports, would sign two chains of records
with one key, and each would tell silos what the other knows nothing of.

Ordered invariants:

1. The directory is claimed first, by ``flock`` on a file in it, which the kernel releases with the
   process, however it ends. The file names the process, for people; it decides nothing.
2. A PostgreSQL database is claimed by a session's advisory lock on a connection that does nothing
   else. It keeps apart coordinators of different directories, as of a copy that was started too.
   SQLite's file is in the directory, or is used by one directory (``server/store/served.py``).
3. Nothing is read, migrated or bound before both are held.
4. A session that was lost is made anew; where another has the lock by then, this process ends.

Covered: two processes of one machine; two directories on one PostgreSQL database. Not covered:
machines that share the directory, which hangs on their file system's ``flock``; what is written in
the seconds between a lost session and its loss being seen, where two directories share a database;
connection poolers that give a session to others (name the server itself in the URL).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sqlalchemy import Connection, Engine, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from ops.logs.logger import get_logger
from server.errors import AlreadyServedError, StoreUnavailableError
from server.store.database import engine_for, is_sqlite, spoken

__all__ = ["LOCK", "Claim", "claimed"]

log = get_logger(__name__)

LOCK: Final = "coordinator.lock"
SESSION_LOCK: Final = 0x63686F73
"""PostgreSQL advisory lock of the session that serves; ``WRITER_LOCK`` is each transaction's."""
LOOK_S: Final = 0.5
"""How often a standby looks whether it may serve."""
HOLD_S: Final = 5.0
"""How often whoever serves looks whether its session is still there."""
_NAMED_BYTES: Final = 256


class Claim:
    """See the module; held from when it is made until ``release``."""

    def __init__(self, data_dir: Path, database_url: str) -> None:
        """Claim both.

        Raises:
            AlreadyServedError: Another process holds one of them.
            StoreUnavailableError: The database does not answer.
            OSError: The directory takes no file.
        """
        self._session: _Session | None = None
        self._file = _locked(data_dir)
        try:
            if not _in_a_file(database_url):
                self._session = _Session(database_url)
        except BaseException:
            self.release()
            raise

    def __enter__(self) -> Self:
        """Hold it for a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let go."""
        self.release()

    def release(self) -> None:
        """Let others serve; without effect the second time."""
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    async def until_lost(self) -> None:
        """Return when another process holds what this one held; otherwise never."""
        while True:
            await asyncio.sleep(HOLD_S)
            if self._session is None:
                continue
            try:
                await asyncio.to_thread(self._session.hold)
            except AlreadyServedError:
                return
            except StoreUnavailableError as error:
                # Nobody can write then; the storage's faults say so.
                log.warning("claim_unseen", reason=error)


async def claimed(
    data_dir: Path,
    database_url: str,
    *,
    standby: bool,
    stop: asyncio.Event,
    standing_by: Callable[[], None] = lambda: None,
) -> Claim | None:
    """Claim both, at once or, as a standby, when whoever has them ends; None if stopped before.

    ``standing_by`` is called once, when it has to wait.

    Raises:
        AlreadyServedError: Another process serves, and this one is no standby.
        StoreUnavailableError: The database does not answer, and this one is no standby.
        OSError: The directory takes no file.
    """
    waited = False
    while not stop.is_set():
        try:
            claim = await asyncio.to_thread(Claim, data_dir, database_url)
        except (AlreadyServedError, StoreUnavailableError) as error:
            if not standby:
                raise
            if not waited:
                log.info("standing_by", reason=error)
                standing_by()
            waited = True
        else:
            if waited:
                log.warning("standby_takes_over")
            return claim
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), LOOK_S)
    return None


class _Session:
    """A connection to PostgreSQL that has the lock for as long as it lasts."""

    def __init__(self, url: str) -> None:
        self._what = spoken(make_url(url))
        self._engine: Engine = engine_for(url)
        try:
            self._connection = self._locked()
        except BaseException:
            self._engine.dispose()
            raise

    def hold(self) -> None:
        """Have the lock, by another connection if need be.

        Raises:
            AlreadyServedError: Another session has it.
            StoreUnavailableError: The database does not answer.
        """
        try:
            self._connection.execute(text("SELECT 1"))
        except SQLAlchemyError:
            self._drop()
            self._connection = self._locked()
            log.warning("claim_renewed")

    def close(self) -> None:
        """Release it."""
        self._drop()
        self._engine.dispose()

    def _drop(self) -> None:
        with contextlib.suppress(SQLAlchemyError):
            self._connection.invalidate()
        with contextlib.suppress(SQLAlchemyError):
            self._connection.close()

    def _locked(self) -> Connection:
        try:
            # Without a transaction, which the server would end for being idle.
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            try:
                held = connection.execute(
                    text("SELECT pg_try_advisory_lock(:key)"), {"key": SESSION_LOCK}
                ).scalar_one()
            except BaseException:
                connection.invalidate()
                connection.close()
                raise
        except SQLAlchemyError as error:
            raise StoreUnavailableError(
                f"the database failed: {type(error).__name__} ({self._what})"
            ) from error
        if not held:
            connection.close()
            raise AlreadyServedError(
                f"another coordinator serves the {self._what}, from another data directory: stop "
                "one of the two, or give each a database of its own"
            )
        return connection


def _in_a_file(database_url: str) -> bool:
    try:
        return is_sqlite(make_url(database_url))
    except (ArgumentError, ValueError):
        # Whoever opens it says so, without repeating it.
        return True


def _locked(data_dir: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(data_dir / LOCK, flags, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.pread(descriptor, _NAMED_BYTES, 0).decode("ascii", "replace").strip()
            raise AlreadyServedError(
                f"another coordinator serves {data_dir} ({who or 'a process just started'}): stop "
                "it first, or start this one with --standby to take over when it ends"
            ) from None
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        named = f"pid {os.getpid()} on {socket.gethostname()} since {since}\n"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, named.encode("ascii", "replace")[:_NAMED_BYTES], 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
