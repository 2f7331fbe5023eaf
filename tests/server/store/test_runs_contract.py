"""The states of runs and their queue, on SQLite and on a real PostgreSQL."""

from contextlib import suppress
from dataclasses import replace

import pytest

from server.errors import RunError, StoreError
from server.states import OVER, RunState
from server.store.choices import ChoiceRow
from tests.kit.server.store_samples import make_run


def add(store, run_id, state=RunState.QUEUED, at=10.0):
    return store.runs.create(
        run_id=run_id,
        name="demo",
        plan=b"plan",
        plan_sha256=b"\x05" * 32,
        submit_token=run_id,
        state=state,
        at_unix_s=at,
    )


def queue(store):
    return [row.run_id for row in store.runs.queued()]


def test_the_queue_is_in_the_order_of_its_making(store):
    add(store, "active", RunState.RUNNING)
    for name in ("b", "a", "c"):
        assert add(store, name).state is RunState.QUEUED
    assert queue(store) == ["b", "a", "c"]
    assert store.runs.active().run_id == "active"


def test_a_run_comes_back_before_the_others_and_a_new_one_behind_them(store):
    for name in ("a", "b", "c"):
        add(store, name)
    store.runs.set_state("b", RunState.PAUSED)
    assert queue(store) == ["a", "c"]
    store.runs.set_state("b", RunState.QUEUED, first=True)
    assert queue(store) == ["b", "a", "c"]
    store.runs.set_state("c", RunState.PAUSED)
    store.runs.set_state("c", RunState.QUEUED, first=True)
    assert queue(store) == ["c", "b", "a"]
    add(store, "d")
    assert queue(store) == ["c", "b", "a", "d"]
    for name in ("c", "b", "a", "d"):
        store.runs.set_state(name, RunState.RUNNING)
        assert store.runs.active().run_id == name
        store.runs.set_state(name, RunState.FINISHED)
    assert queue(store) == []
    assert store.runs.active() is None
    # An empty queue has both ends.
    add(store, "e")
    store.runs.set_state("e", RunState.PAUSED)
    store.runs.set_state("e", RunState.QUEUED, first=True)
    assert queue(store) == ["e"]


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.PAUSING])
def test_a_run_that_is_pausing_is_active_still(store, state):
    add(store, "a", RunState.PAUSED)
    assert store.runs.active() is None
    store.runs.set_state("a", state)
    assert store.runs.active().run_id == "a"


def test_since_when_a_run_is_in_its_state(store):
    assert add(store, "a", at=10.0).state_since_unix_s == 10.0
    store.runs.set_state("a", RunState.RUNNING, at_unix_s=20.0)
    assert store.runs.get("a").state_since_unix_s == 20.0
    # Said again it is the same state still.
    store.runs.set_state("a", RunState.RUNNING, at_unix_s=30.0)
    assert store.runs.get("a").state_since_unix_s == 20.0
    # Times of our day keep their fractions.
    store.runs.set_state("a", RunState.PAUSED, at_unix_s=1_800_000_000.25)
    assert store.runs.get("a").state_since_unix_s == 1_800_000_000.25


@pytest.mark.parametrize("over", sorted(OVER))
def test_what_is_over_stays_over(store, over):
    make_run(store)
    store.runs.set_state("run-1", over, "why")
    for state in set(RunState) - {over}:
        with pytest.raises(RunError, match="is over"):
            store.runs.set_state("run-1", state)
    store.runs.set_state("run-1", over, "why")
    row = store.runs.get("run-1")
    assert (row.state, row.error) == (over, "why")
    assert queue(store) == []


# Rollbacks ---------------------------------------------------------------------------------------


def test_a_rollback_waits_until_it_is_done_once(store):
    for name in ("a", "b"):
        add(store, name, RunState.PAUSED)
    assert store.rollbacks.waiting("a") is None
    wide = 2**32 - 1
    store.rollbacks.ask(submit_token="t", run_id="a", to_round=wide, at_unix_s=1.5)
    store.rollbacks.ask(submit_token="u", run_id="b", to_round=0, at_unix_s=2.0)
    waits = store.rollbacks.waiting("a")
    assert (waits.submit_token, waits.to_round, waits.asked_unix_s, waits.round) == (
        "t", wide, 1.5, None,
    )  # fmt: skip
    # One at a time, and a token once, whatever the run.
    for token, run_id in (("v", "a"), ("t", "b")):
        with pytest.raises(StoreError, match="waits"):
            store.rollbacks.ask(submit_token=token, run_id=run_id, to_round=1, at_unix_s=3.0)
    store.rollbacks.done("a", wide)
    with pytest.raises(StoreError, match="no rollback"):
        store.rollbacks.done("a", 4)
    assert store.rollbacks.by_submit_token("t").round == wide
    assert store.rollbacks.waiting("a") is None
    assert store.rollbacks.waiting("b").submit_token == "u"
    # The next one of the same run.
    store.rollbacks.ask(submit_token="w", run_id="a", to_round=2, at_unix_s=4.0)
    assert store.rollbacks.waiting("a").submit_token == "w"
    assert store.rollbacks.by_submit_token("nobody's") is None


def test_a_rollback_is_noted_with_what_is_noted_beside_it_or_not_at_all(store):
    add(store, "a", RunState.RUNNING)
    with suppress(RuntimeError), store.transaction():
        store.rollbacks.ask(submit_token="t", run_id="a", to_round=1, at_unix_s=1.0)
        raise RuntimeError
    assert store.rollbacks.by_submit_token("t") is None


def test_a_bisection_waits_for_its_round_and_keeps_it(store):
    for name in ("a", "b"):
        add(store, name, RunState.PAUSED)
    table, silos = store.bisections, ("cat", "dog", "eel")
    assert (table.waiting("a"), table.newest("a"), table.begin("a", 1)) == (None, None, None)
    table.ask(submit_token="t", run_id="a", named=(), suspects=silos, at_unix_s=1.5)
    table.ask(submit_token="u", run_id="b", named=silos[:2], suspects=silos[:2], at_unix_s=2.0)
    for token, run_id in (("v", "a"), ("t", "b")):
        with pytest.raises(StoreError, match="waits"):
            table.ask(submit_token=token, run_id=run_id, named=(), suspects=silos, at_unix_s=3.0)
    begun = table.begin("a", 2**32 - 1)
    assert (begun.submit_token, begun.suspects, begun.round) == ("t", silos, 2**32 - 1)
    assert table.of_round("a", 2**32 - 1) == table.newest("a") == begun
    assert (table.begin("a", 4), table.of_round("a", 4), table.waiting("a")) == (None, None, None)
    waits = table.waiting("b")
    assert (waits.named, waits.suspects, waits.round) == (silos[:2], silos[:2], None)


def test_the_choice_of_a_round_is_kept_as_it_was_made(store):
    for name in ("a", "b"):
        add(store, name, RunState.RUNNING)
    table, wide = store.choices, 2**32 - 1
    first = ChoiceRow(run_id="a", round=1, silos=("ant", "bee"), why="because – it rains")
    last = ChoiceRow(run_id="a", round=wide, silos=("cat",), why="", ready_deadline_s=wide)
    assert table.of_round("a", 1) is None
    for row in (last, first, replace(first, run_id="b", silos=("dog",))):
        table.put(row)
    assert (table.of_round("a", 1), table.of_round("a", wide)) == (first, last)
    assert table.of_round("b", 1).silos == ("dog",)
    assert table.newest("a", 9) == (first, last)
    assert table.newest("a", 1) == (last,)
    assert table.of_rounds("a", [1, 2, wide]) == (first, last)
    assert table.of_rounds("a", []) == table.newest("c", 9) == ()
    # It never changes.
    with pytest.raises(StoreError):
        table.put(replace(first, silos=("eel",)))
    assert table.of_round("a", 1) == first


def test_dropouts_are_counted_in_a_row_by_run_and_silo(store):
    make_run(store)
    make_run(store, token="other", run_id="run-2")
    table = store.dropouts
    assert [table.add("run-1", "a", number) for number in (1, 2)] == [1, 2]
    assert table.add("run-1", "b", 2) == 1
    assert table.add("run-2", "a", 7) == 1
    # Of round 2 neither is excused, of round 3 only who was in it.
    table.took_part("run-1", ("a", "b"), 2)
    table.took_part("run-1", ("b", "c"), 3)
    assert [(row.silo_id, row.in_a_row) for row in table.list("run-1")] == [("a", 2), ("b", 0)]
    table.sit_out("run-1", "a", until_round=4)
    table.call_back("run-1", before_round=4)
    assert table.sitting_out("run-1") == {"a"}
    assert table.sitting_out("run-2") == frozenset()
    table.call_back("run-1", before_round=5)
    assert table.sitting_out("run-1") == frozenset()
    # Asked again, it has not been forgiven.
    assert table.add("run-1", "a", 5) == 3
    table.sit_out("run-1", "a", until_round=9)
    table.forget("a")
    assert [row.in_a_row for run in ("run-1", "run-2") for row in table.list(run)] == [0, 0, 0]
    assert table.sitting_out("run-1") == frozenset()
