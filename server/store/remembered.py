"""Rows that nearly every call needs, read once until this process writes anything.

Invariants:

1. What is answered is what a transaction of this instant would read: a row is remembered with the
   number of changes before it was read (``Database.changes``), and used while that is the same.
2. Inside a transaction nothing is remembered or taken from memory: it sees what is not committed.
3. At most ``MOST`` rows are kept, whatever callers ask for.

Covered: threads; commits whose answer was lost. Not covered: another process that writes, which
``server/site/claim.py`` refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from sqlalchemy import Connection

from server.store.database import Database

__all__ = ["Remembered"]

MOST: Final = 1024

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Rows of one table by key."""

    def __init__(self, database: Database, read: Callable[[Connection, K], V]) -> None:
        """``read`` looks a key up on a connection."""
        self._database = database
        self._read = read
        self._known: dict[K, tuple[int, V]] = {}

    def get(self, key: K) -> V:
        """The row of a key, as ``read`` says it.

        Raises:
            StoreError: It is not known and the database failed.
        """
        if self._database.joined:
            with self._database.reading() as connection:
                return self._read(connection, key)
        # Before the look: a change that ends meanwhile makes what is read one of the past.
        changes = self._database.changes
        known = self._known.get(key)
        if known is not None and known[0] == changes:
            return known[1]
        with self._database.reading() as connection:
            value = self._read(connection, key)
        if len(self._known) >= MOST:
            self._known = {}
        self._known[key] = changes, value
        return value
