"""A round of several releases: each link is checked, also by a silo that restarts in its middle."""

import numpy as np
import pytest

from federation.chain.record import position_of
from federation.errors import ChainError, UpdateError
from silo_agent.books.local_store import LocalStore
from silo_agent.errors import ChainMismatchError
from silo_agent.follow.chain import ChainFollower
from tests.kit.federation.adapters import lora, plan_of, record_plan
from tests.kit.silo_agent.published import KEY, RUN, Published, kept_in, sync

STEPS = 3


@pytest.fixture
def published():
    return Published(record_plan("record_distributed", method="fedavg"))


def follower_of(published, store):
    made = ChainFollower(coordinator=published, store=store)
    return lambda: made.sync(RUN, lambda _sha256: published.plan, KEY)


@pytest.mark.parametrize("method", ["fedavg", "rolora"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_one_silo_follows_every_step(store, tmp_path, method, optimiser):
    plan = record_plan("record_distributed", method=method, optimiser=optimiser)
    published = Published(plan)
    follow = follower_of(published, store)
    follow()
    for seed in range(2 * STEPS):
        published.round(seed)
        head = follow()
        assert head.record is published.chain[-1]
        for name, tensor in published.tensors.items():
            np.testing.assert_array_equal(head.tensors[name], tensor)
    known = LocalStore(tmp_path).chain_head(RUN)
    assert (known.round, known.step, known.position) == (2, STEPS - 1, 2 * STEPS)
    # Each time from the adopted record on: it is shown again, and what follows it.
    assert published.asked == [0, *range(2 * STEPS)]
    assert kept_in(tmp_path) == {known.adapter_sha256.hex()}


@pytest.mark.parametrize("skipped", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("adopted", [1, 2, 3, 4, 5])
def test_a_restart_in_the_middle_of_a_round_rebuilds_the_optimiser(
    published, store, adopted, skipped
):
    for position in range(adopted):
        if position % STEPS in skipped:
            published.skip()
        else:
            published.round(position)
    sync(published, store)
    for position in range(adopted, 2 * STEPS):
        published.round(position)
    published.asked.clear()
    # A new follower has no state of its own.
    head = sync(published, store)
    assert head.record is published.chain[-1]
    first_step = position_of(1 + (adopted - 1) // STEPS, 0, STEPS)
    middle = adopted % STEPS != 0
    assert published.asked == ([adopted, first_step] if middle else [adopted])


@pytest.mark.parametrize("optimiser", ["fedavgm", "fedadagrad", "fedyogi", "fedadam"])
@pytest.mark.parametrize("method", ["fedavg", "ffa", "fedsa"])
def test_a_restart_rebuilds_moments_that_cross_rounds(store, optimiser, method):
    published = Published(plan_of(method, optimiser=optimiser, server_step=0.01))
    published.round(1)
    published.skip()
    sync(published, store)
    published.round(3)
    published.asked.clear()
    # A new follower has no state of its own: it asks for the run's records from the first release.
    head = sync(published, store)
    assert head.record is published.chain[-1]
    assert published.asked == [2, 1]
    for name, tensor in published.tensors.items():
        np.testing.assert_array_equal(head.tensors[name], tensor)


def test_moments_that_cross_rounds_are_kept_while_the_silo_lives(store):
    published = Published(plan_of("fedavg", optimiser="fedadam"))
    follow = follower_of(published, store)
    follow()
    for seed in range(3):
        published.round(seed)
        assert follow().record is published.chain[-1]
    assert published.asked == [0, 0, 1, 2]


def test_an_update_without_the_runs_moments_is_refused(store):
    """Also by a silo that restarted, and it takes the right one after it."""
    published = Published(plan_of("fedavg", optimiser="fedavgm"))
    published.round(1)
    published.round(2)
    sync(published, store)
    kept, published.optimiser = published.optimiser, published.plan.optimiser()
    published.optimiser.skip(round_number=1, step=0)
    published.optimiser.skip(round_number=2, step=0)
    total, wrong = published.after(3)
    before = published.tensors
    published.add("aggregated", wrong, total)
    follow = follower_of(published, store)
    for _ in range(2):
        with pytest.raises(UpdateError, match="byte for byte"):
            follow()
    assert store.chain_head(RUN).position == 2
    published.chain.pop()
    published.tensors, published.optimiser = before, kept
    published.round(3)
    assert follow().record is published.chain[-1]


def test_a_replay_over_forged_earlier_sums_leaves_nothing_behind(store):
    """A sum that is not the record's stops the replay; the next try begins from zero."""
    published = Published(plan_of("fedavg", optimiser="fedadam"))
    for seed in range(2):
        published.round(seed)
    sync(published, store)
    published.round(2)
    follow = follower_of(published, store)
    second = published.chain[2].sum_sha256
    true = published.blobs[second]
    published.blobs[second] = bytes(len(true))
    with pytest.raises(UpdateError, match="not the one that the record names"):
        follow()
    published.blobs[second] = true
    assert follow().record is published.chain[-1]


def test_an_optimiser_without_state_needs_no_earlier_sums(store):
    published = Published(record_plan("record_distributed", method="fedavg", optimiser="sgd"))
    published.round(1)
    published.round(2)
    sync(published, store)
    published.round(3)
    published.asked.clear()
    sync(published, store)
    assert published.asked == [2]


def test_a_wrong_step_is_refused_and_the_right_one_taken_after_it(published, store):
    follow = follower_of(published, store)
    published.round(1)
    published.round(2)
    follow()
    total, right = published.after(3)
    published.add("aggregated", lora(9), total)
    with pytest.raises(UpdateError):
        follow()
    assert store.chain_head(RUN).position == 2
    published.chain.pop()
    # The refused check has moved the optimiser; the same step from the state before it is exact.
    published.add("aggregated", right, total)
    assert follow().record.step == 2
    published.round(4)
    assert follow().record.place == (2, 0)


def test_the_optimisers_state_belongs_to_the_round(published, store):
    """A sum that is applied without the round's earlier moments is another update."""
    published.round(1)
    fresh = published.plan.optimiser()
    published.optimiser, kept = fresh, published.optimiser
    published.optimiser.skip(round_number=1, step=0)
    total, wrong = published.after(2)
    published.optimiser = kept
    published.add("aggregated", wrong, total)
    with pytest.raises(UpdateError, match="byte for byte"):
        sync(published, store)


def test_earlier_steps_that_do_not_lead_to_the_adopted_one_are_refused(published, store):
    for seed in range(2):
        published.round(seed)
    sync(published, store)
    other = Published(published.plan)
    other.round(8)
    other.round(9)
    published.round(2)
    true = published.records
    published.records = lambda run, position: (other if position == 1 else published).chain[
        position:
    ]
    with pytest.raises((ChainMismatchError, ChainError)):
        sync(published, store)
    published.records = lambda run, position: true(run, position)[: 1 if position == 1 else None]
    with pytest.raises(ChainMismatchError, match="do not lead"):
        sync(published, store)
    published.records = true
    assert sync(published, store).record.step == 2


def test_a_fork_is_seen_without_the_records_before_the_adopted_one(published, store):
    """A chain that differs anywhere before differs in the adopted record's digest."""
    for seed in range(4):
        published.round(seed)
    sync(published, store)
    forked = Published(published.plan)
    forked.round(7)
    for seed in range(1, 5):
        forked.round(seed)
    forked.blobs |= published.blobs
    with pytest.raises(ChainMismatchError, match="fork"):
        sync(forked, store)
    assert store.chain_head(RUN).position == 4


def test_a_step_that_is_left_out_is_refused(published, store):
    published.round(1)
    published.round(2)
    published.round(3)
    del published.chain[2]
    with pytest.raises(ChainError, match="follows one of"):
        sync(published, store)


def test_a_chain_of_another_number_of_steps_is_refused(published, store):
    """The plan says how many releases a round has; the coordinator cannot end one early."""
    published.round(1)
    published.round(2)
    total, tensors = published.after(2)
    published.add("aggregated", tensors, total, round=2, step=0)
    with pytest.raises(ChainError, match="follows one of"):
        sync(published, store)
