"""Aggregations, their messages and their journal, on SQLite and on PostgreSQL."""

import pytest

from server.attempt.journal import StoreJournal
from server.errors import StoreError
from server.figures import Phase
from server.store.aggregations import AggregationOutcome
from tests.kit.server.store_samples import FAMILIES, NAMED, at, make_run, message, signed


@pytest.fixture
def opened(store):
    make_run(store)
    descriptor = signed()
    store.aggregations.open(descriptor, FAMILIES)
    return descriptor


def test_an_aggregation_keeps_its_descriptor_and_goes_one_way(store, opened):
    identity = opened.descriptor.identity
    (row,) = store.aggregations.unfinished()
    assert (row.descriptor, row.phases_closed, row.outcome) == (opened, 0, "")
    with pytest.raises(StoreError, match="before"):
        store.aggregations.open(opened, FAMILIES)
    store.aggregations.close_phase(identity, 1, NAMED)
    store.aggregations.close_phase(identity, 1, NAMED)
    for wrong in (0, 3):
        with pytest.raises(StoreError, match="1 phases"):
            store.aggregations.close_phase(identity, wrong, NAMED)
    store.aggregations.end(identity, AggregationOutcome.ABORTED)
    assert store.aggregations.unfinished() == ()
    for over in (
        lambda: store.aggregations.end(identity, AggregationOutcome.RELEASED),
        lambda: store.aggregations.close_phase(identity, 2, NAMED),
        lambda: store.aggregations.fold(identity, "silo-000", 1),
    ):
        with pytest.raises(StoreError, match="not open"):
            over()
    with pytest.raises(StoreError, match="not open"):
        store.aggregations.end(signed(attempt=2).descriptor.identity, AggregationOutcome.ABORTED)


def test_folds_follow_each_other_and_only_while_uploads_are_collected(store, opened):
    identity, aggregations = opened.descriptor.identity, store.aggregations
    with pytest.raises(StoreError, match="not collected"):
        aggregations.fold(identity, "silo-000", 1)
    aggregations.close_phase(identity, 1, NAMED)
    aggregations.close_phase(identity, 2, NAMED)
    aggregations.fold(identity, "silo-003", 1)
    aggregations.fold(identity, "silo-003", 1)
    for silo_id, generation in (("silo-003", 2), ("silo-001", 1), ("silo-001", 3)):
        with pytest.raises(StoreError, match="does not follow"):
            aggregations.fold(identity, silo_id, generation)
    aggregations.fold(identity, "silo-001", 2)
    (row,) = aggregations.list("run-1")
    assert row.folded == ("silo-003", "silo-001")
    assert row.survivors == ()
    aggregations.close_phase(identity, 3, NAMED)
    with pytest.raises(StoreError, match="not collected"):
        aggregations.fold(identity, "silo-002", 3)
    (row,) = aggregations.list("run-1")
    assert row.survivors_declared
    assert row.survivors == ("silo-001", "silo-003")


def test_aggregations_are_found_by_round_and_by_outcome(store):
    make_run(store)
    for round_number, attempt, outcome in (
        (1, 1, AggregationOutcome.ABORTED),
        (1, 2, AggregationOutcome.RELEASED),
        (2, 1, AggregationOutcome.SKIPPED),
    ):
        descriptor = signed(attempt, round_number)
        store.aggregations.open(descriptor, FAMILIES)
        store.aggregations.end(descriptor.descriptor.identity, outcome)
    (row,) = store.aggregations.released("run-1", 1)
    assert row.identity.attempt == 2
    assert store.aggregations.released("run-1", 2) == ()
    assert [store.aggregations.newest_attempt("run-1", n, 0) for n in (1, 2, 3)] == [2, 1, 0]
    assert [row.identity.round for row in store.aggregations.list("run-1")] == [1, 1, 2]
    assert store.aggregations.list("other") == ()


def test_a_message_is_kept_once_and_in_order(store, opened):
    identity = opened.descriptor.identity
    for name in ("silo-002", "silo-000", "silo-001"):
        store.messages.put(identity, message(silo_id=name))
        store.messages.put(identity, message(silo_id=name))
    with pytest.raises(StoreError, match="another message"):
        store.messages.put(identity, message(body=b"other"))
    assert [row.silo_id for row in store.messages.list(identity)] == [
        "silo-002",
        "silo-000",
        "silo-001",
    ]
    assert store.messages.list(signed(attempt=2).descriptor.identity) == ()


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


def test_the_newest_attempt_is_counted_for_each_step(store):
    make_run(store)
    for step, attempt, outcome in (
        (0, 1, AggregationOutcome.ABORTED),
        (0, 2, AggregationOutcome.RELEASED),
        (1, 1, AggregationOutcome.RELEASED),
    ):
        descriptor = signed(attempt, 1, step)
        store.aggregations.open(descriptor, FAMILIES)
        store.aggregations.end(descriptor.descriptor.identity, outcome)
    assert [store.aggregations.newest_attempt("run-1", 1, step) for step in range(3)] == [2, 1, 0]
    newest = [store.aggregations.newest("run-1", 1, step) for step in range(3)]
    assert [row and (row.identity.step, row.identity.attempt) for row in newest] == [
        (0, 2),
        (1, 1),
        None,
    ]
    assert [r.identity.step for r in store.aggregations.released("run-1", 1)] == [0, 1]
