"""What only SQLite has: its durability, its write-ahead log, its file."""

import sqlite3
from contextlib import contextmanager

import pytest
from sqlalchemy import event, text

from server.errors import StoreError
from server.store import Store
from tests.kit.server.store_samples import FAMILIES, at, make_run, message, signed


@pytest.fixture
def store(tmp_path):
    opened = Store(f"sqlite:///{tmp_path / 'coordinator.db'}", create=True)
    yield opened
    opened.close()


def test_every_connection_is_durable_and_checks_its_references(store):
    with store.transaction() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2
        assert connection.execute(text("PRAGMA foreign_keys")).scalar() == 1
        assert connection.execute(text("PRAGMA secure_delete")).scalar() == 1


def test_database_failures_are_typed(store, tmp_path):
    with pytest.raises(StoreError):
        store.rounds.set_phase(at(1, 1, run_id="no-such-run"), "training", 1.0)
    with pytest.raises(StoreError):
        Store(f"sqlite:///{tmp_path / 'no' / 'such' / 'directory.db'}")
    with pytest.raises(StoreError) as caught:
        Store("nonsense://user:password@host/db")
    assert "password" not in str(caught.value)
    store.check_writable()


def test_secrets_are_forgotten_and_what_is_public_stays(store, tmp_path):
    make_run(store)
    opened = signed()
    store.aggregations.open(opened, FAMILIES)
    identity, secret = opened.descriptor.identity, b"a secret share" * 40
    store.messages.put(identity, message("share_keys", sealed=secret))
    store.messages.put(identity, message("unmask", body=b"", sealed=secret))
    assert secret.decode() not in repr(store.messages.with_secrets(identity))
    assert [row.sealed for row in store.messages.with_secrets(identity)] == [secret, secret]
    assert store.messages.list(identity) == (message("share_keys"),)
    store.messages.forget_secrets(identity)
    assert store.messages.with_secrets(identity) == (message("share_keys"),)
    store.scrub()
    files = list(tmp_path.glob("coordinator.db*"))
    assert files
    assert all(secret not in path.read_bytes() for path in files)


def test_a_log_that_is_in_use_is_reported_and_not_taken_for_emptied(store, tmp_path):
    make_run(store)
    reader = sqlite3.connect(tmp_path / "coordinator.db")
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM runs").fetchall()
    make_run(store, "u", "run-2")
    store._database._engine.dispose()
    with short_busy_timeout(store), pytest.raises(StoreError, match="not emptied"):
        store.scrub()
    reader.close()
    store.scrub()


@contextmanager
def short_busy_timeout(store):
    """A blocked checkpoint waits as long as a blocked writer does."""

    def soon(connection, _):
        connection.execute("PRAGMA busy_timeout = 1").close()

    engine = store._database._engine
    event.listen(engine, "connect", soon)
    yield
    event.remove(engine, "connect", soon)
    engine.dispose()
