"""A disk or database that fails at a chosen place."""

from contextlib import contextmanager

from server.errors import StoreError
from server.store.database import Database


class Fault:
    """Fails one commit: before it is made, or after it, with the answer lost."""

    def __init__(self, monkeypatch, world, at, *, committed):
        self.count = 0
        real = Database.transaction

        @contextmanager
        def transaction(database):
            outermost = getattr(database._local, "connection", None) is None
            hit = False
            with real(database) as connection:
                raw = connection.connection.dbapi_connection
                before = raw.total_changes
                yield connection
                if outermost and world.started and raw.total_changes > before:
                    self.count += 1
                    hit = self.count == at
                    if hit and not committed:
                        raise StoreError("the database failed")
            if hit:
                raise StoreError("the database failed")

        monkeypatch.setattr(Database, "transaction", transaction)
