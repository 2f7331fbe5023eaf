"""What only a database server can do: go away, hold a lock, refuse a password."""

import time
from contextlib import closing, contextmanager

import pytest

from server.errors import StoreError, StoreUnavailableError
from server.store import Store, database
from server.store.database import WRITER_LOCK, Database
from tests.kit.server.store_samples import make_run, silo_row


@pytest.fixture
def url(postgresql, migrated):
    with closing(postgresql.connect(migrated)) as connection:
        connection.execute("TRUNCATE silos, runs CASCADE")
    return postgresql.url(migrated)


def whole(error):
    """All that a log could show of it."""
    texts = []
    while error is not None:
        texts += [str(error), repr(error), *map(str, getattr(error, "__notes__", ()))]
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


def test_a_server_that_restarts_costs_an_error_and_nothing_else(postgresql, url):
    with closing(Store(url)) as store:
        store.silos.enrol(silo_row())

        def cut():
            with store.transaction():
                make_run(store)
                postgresql.stop()
                make_run(store, token="u", run_id="run-2")

        with pytest.raises(StoreUnavailableError) as caught:
            cut()
        assert postgresql.password not in whole(caught.value)
        for call in (store.check_writable, store.runs.list, lambda: store.silos.touch({"x": 1.0})):
            with pytest.raises(StoreUnavailableError):
                call()
        postgresql.start()
        # The first call after it works, on a connection of its own; nothing was half done.
        assert store.runs.list() == ()
        assert store.silos.list() == (silo_row(),)
        store.check_writable()


def test_a_connection_that_died_between_two_transactions_is_not_noticed(postgresql, url):
    with closing(Store(url)) as store:
        store.silos.enrol(silo_row())
        postgresql.stop()
        postgresql.start()
        assert store.silos.list() == (silo_row(),)


@contextmanager
def held(postgresql, name):
    """Another process that does not let go of the lock."""
    with closing(postgresql.connect(name)) as connection:
        connection.execute(f"SELECT pg_advisory_lock({WRITER_LOCK})")
        yield


def test_a_lock_that_is_not_let_go_is_a_typed_error(postgresql, url, migrated, monkeypatch):
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 1)
    with closing(Store(url)) as store:
        store.silos.enrol(silo_row())
        with held(postgresql, migrated):
            began = time.monotonic()
            with pytest.raises(StoreUnavailableError, match="the database is busy"):
                store.silos.list()
            assert time.monotonic() - began < 8
            monkeypatch.setattr(database, "MIGRATION_TIMEOUT_S", 1)
            with pytest.raises(StoreUnavailableError):
                Store(url)
        assert store.silos.list() == (silo_row(),)


def test_the_password_comes_from_a_file_and_is_in_no_error(postgresql, migrated, tmp_path):
    address = f"127.0.0.1:{postgresql.port}"
    passfile = tmp_path / "pgpass"
    passfile.write_text(f"{address}:*:chorale:{postgresql.password}\n")
    passfile.chmod(0o600)
    plain = f"postgresql://chorale@{address}/{migrated}"
    for form in (plain, plain.replace("postgresql://", "postgres://")):
        with closing(Store(f"{form}?passfile={passfile}")) as store:
            store.check_writable()
    passfile.write_text(f"{address}:*:chorale:wrong-{postgresql.password}\n")
    for refused in (f"{plain}?passfile={passfile}", plain.replace("@", ":wrong-secret@")):
        with pytest.raises(StoreUnavailableError) as caught:
            Store(refused)
        said = whole(caught.value)
        assert postgresql.password not in said
        assert "wrong-secret" not in said


def test_a_missing_driver_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"chorale\[postgres\]"):
        Database("postgresql://h/d")


@pytest.mark.parametrize(
    "url", ["mysql://user:secret@h/d", "postgresql+asyncpg://u:secret@h/d", "", "secret"]
)
def test_other_databases_are_refused_without_repeating_the_url(url):
    with pytest.raises(StoreError) as caught:
        Database(url)
    assert "secret" not in str(caught.value)


def test_the_session_is_bounded_and_named(postgresql, url):
    with closing(Store(url)) as store, store.transaction() as connection:
        shown = [
            connection.exec_driver_sql(f"SHOW {name}").scalar()
            for name in ("idle_in_transaction_session_timeout", "lock_timeout", "application_name")
        ]
    assert shown == ["1min", "10s", "chorale-coordinator"]
