"""What stands with an aggregation beside its descriptor, and a log that cannot be emptied."""

import sqlite3
from contextlib import contextmanager

import pytest
from sqlalchemy import event

from server.errors import StoreError
from server.journal import StoreJournal
from server.phase import Phase
from server.store import Store
from server.store.aggregations import AggregationOutcome
from tests.unit.test_server_store import FAMILIES, NAMED, at, make_run, message, signed


@pytest.fixture
def store(tmp_path):
    made = Store(f"sqlite:///{tmp_path / 'coordinator.db'}")
    yield made
    made.close()


@pytest.fixture
def opened(store):
    make_run(store)
    descriptor = signed(attempt=1)
    store.aggregations.open(descriptor, FAMILIES)
    return descriptor


def test_who_was_ready_and_who_answered_stand_with_an_aggregation(store, opened):
    identity = opened.descriptor.identity
    store.aggregations.close_phase(identity, 1, NAMED)
    with pytest.raises(StoreError, match="1 phases"):
        store.aggregations.close_phase(identity, 1, NAMED[:1])
    store.aggregations.close_phase(identity, 2, NAMED[:1])
    (row,) = store.aggregations.list("run-1")
    assert row.families == FAMILIES
    assert row.members == (NAMED, NAMED[:1])


def test_an_end_whose_answer_was_lost_may_be_noted_again(store, opened):
    for _ in range(2):
        store.aggregations.end(opened.descriptor.identity, AggregationOutcome.ABORTED)


def test_the_journal_closes_no_phase_with_members_it_does_not_hold(store, opened):
    journal = StoreJournal(store, opened.descriptor.identity, opened.descriptor.sha256)
    store.messages.put(opened.descriptor.identity, message("advertise_keys", silo_id=NAMED[0]))
    for wrong in (NAMED, ()):
        with pytest.raises(StoreError, match="other members"):
            journal.closed(Phase.ADVERTISE_KEYS, wrong)
    journal.closed(Phase.ADVERTISE_KEYS, NAMED[:1])
    (row,) = store.aggregations.list("run-1")
    assert (row.phases_closed, row.members) == (1, (NAMED[:1],))


def test_an_attempt_of_an_earlier_version_counts_once_it_was_opened(store):
    """It has no aggregation: its number must not be given to another."""
    make_run(store)
    for attempt in (1, 2):
        store.rounds.set_phase(at(1, attempt), "training", 1.0)
        assert store.aggregations.newest_attempt("run-1", 1, 0) == attempt - 1
        store.rounds.set_phase(at(1, attempt), "advertise_keys", 2.0)
        assert store.aggregations.newest_attempt("run-1", 1, 0) == attempt
    assert store.aggregations.newest_attempt("run-1", 1, 1) == 0


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
