"""The end of a run's rounds and records, on SQLite and on a real PostgreSQL."""

from tests.kit.server.store_samples import at, make_run, record


def test_the_newest_attempts_come_in_their_order_whatever_was_before(store):
    make_run(store)
    make_run(store, token="u", run_id="other")
    for number in range(1, 13):
        store.rounds.set_phase(at(number, 1), "training", number)
    store.rounds.set_phase(at(12, 2), "training", 20)
    store.rounds.set_phase(at(12, 1, step=1), "advertise_keys", 21)
    store.rounds.set_phase(at(99, 1, run_id="other"), "training", 22)
    found = [(row.round, row.step, row.attempt) for row in store.rounds.newest("run-1", 4)]
    assert found == [(11, 0, 1), (12, 0, 1), (12, 0, 2), (12, 1, 1)]
    assert store.rounds.newest("run-1", 100) == store.rounds.list("run-1")
    assert store.rounds.newest("none", 4) == ()


def test_the_newest_records_come_in_the_order_of_the_chain(store):
    make_run(store)
    for number in range(12):
        store.records.append(record(number))
    assert [one.round for one in store.records.newest("run-1", 3)] == [9, 10, 11]
    assert store.records.newest("run-1", 100) == store.records.list("run-1")
    assert store.records.newest("none", 3) == ()
