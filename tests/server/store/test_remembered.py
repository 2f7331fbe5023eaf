"""A row that is remembered is never older than the last change of this process."""

import threading

import pytest

from server.store import Store
from server.store.remembered import MOST
from tests.kit.server.store_samples import silo_row


@pytest.fixture
def store(tmp_path):
    made = Store(f"sqlite:///{tmp_path}/coordinator.db", create=True)
    made.silos.enrol(silo_row())
    yield made
    made.close()


@pytest.fixture
def looks(store):
    """How many reads reached the database."""
    seen = []
    store.tell_times(lambda writes, _waited, _took: None if writes else seen.append(1))
    return seen


def test_an_idle_silo_costs_one_look(store, looks):
    for _ in range(50):
        assert store.silos.get("hospital-a") == silo_row()
        assert store.silos.get("nobody") is None
        assert store.federation.current() is None
    assert len(looks) == 3


def test_every_change_is_seen_at_once(store):
    assert not store.silos.get("hospital-a").suspended
    store.silos.suspend("hospital-a", suspended=True)
    assert store.silos.get("hospital-a").suspended
    store.silos.revoke("hospital-a")
    assert store.silos.get("hospital-a").revoked


def test_inside_a_transaction_what_is_not_committed_is_seen_and_nothing_of_it_is_kept(store):
    assert not store.silos.get("hospital-a").revoked

    def revoke_and_give_up():
        with store.transaction():
            store.silos.revoke("hospital-a")
            assert store.silos.get("hospital-a").revoked
            raise RuntimeError("changed my mind")

    with pytest.raises(RuntimeError, match="changed my mind"):
        revoke_and_give_up()
    assert not store.silos.get("hospital-a").revoked


def test_what_was_read_while_a_change_was_committed_is_not_used_after_it(store):
    """The reader has its snapshot, the writer commits, and only then is the row remembered."""
    read, committed = threading.Event(), threading.Event()
    before = store.silos._rows._read

    def slow(connection, key):
        found = before(connection, key)
        read.set()
        assert committed.wait(10)
        return found

    store.silos._rows._read = slow
    reader = threading.Thread(target=store.silos.get, args=("hospital-a",))
    reader.start()
    assert read.wait(10)
    store.silos._rows._read = before
    store.silos.revoke("hospital-a")
    committed.set()
    reader.join(10)
    assert store.silos.get("hospital-a").revoked


def test_a_change_whose_answer_was_lost_counts(store):
    assert not store.silos.get("hospital-a").revoked

    def revoke_and_hear_nothing():
        with store.transaction() as connection:
            store.silos.revoke("hospital-a")
            connection.commit()
            raise RuntimeError("the answer was lost")

    with pytest.raises(RuntimeError, match="the answer was lost"):
        revoke_and_hear_nothing()
    assert store.silos.get("hospital-a").revoked


def test_callers_cannot_fill_the_memory(store):
    for number in range(MOST + 10):
        store.silos.get(f"silo-{number}")
    assert len(store.silos._rows._known) <= MOST


def test_times_of_transactions_are_told(store):
    told = []
    store.tell_times(lambda *each: told.append(each))
    store.silos.suspend("hospital-a", suspended=True)
    store.silos.get("hospital-a")
    assert [writes for writes, _, _ in told] == [True, False]
    assert all(0 < waited <= took for _, waited, took in told)
