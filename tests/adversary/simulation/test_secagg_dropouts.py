"""Whole aggregations with silos dropping at every step.

A failure: a sum that is not exactly the integer sum of the survivors' vectors, a round that stops
although at most n - t silos dropped, or one that goes on although more did. Not a failure: a round
that stops with a named check once more than n - t silos are gone.
"""

import itertools

import numpy as np
import pytest

from secagg import client
from secagg.errors import Check, VerificationError
from secagg.parameters import threshold
from tests.kit.simulation.secagg_cohort import STEPS, Cohort

pytestmark = pytest.mark.parametrize("suite", [1, 2])
_KEPT_IN_SUM = ("consistency_check", "unmask")


def _check(cohort, outcome, drops):
    lost = {name for step in STEPS if step not in _KEPT_IN_SUM for name in drops.get(step, ())}
    survivors = tuple(name for name in cohort.names if name not in lost)
    expected = cohort.expected(survivors)
    assert outcome.survivors == survivors
    assert np.array_equal(np.concatenate([outcome.delta, outcome.metrics]), expected)
    assert not outcome.unmasking.rejected_senders
    assert not outcome.unmasking.inconsistent_dealers
    assert not outcome.unmasking.bad_pair_dealers


def _every_assignment(n, most):
    """Every way in which up to `most` of n silos drop, each at any step."""
    names = Cohort(n).names
    for count in range(most + 1):
        for chosen in itertools.combinations(names, count):
            for steps in itertools.product(STEPS, repeat=count):
                drops = {}
                for name, step in zip(chosen, steps, strict=True):
                    drops.setdefault(step, []).append(name)
                yield drops


@pytest.mark.parametrize("n", [3, 4, 5, pytest.param(6, marks=pytest.mark.long)])
def test_masks_cancel_for_every_survivor_set(n, suite):
    """None of three may drop, one of four and of five, two of six."""
    for drops in _every_assignment(n, n - threshold(n, 1)):
        cohort = Cohort(n, suite=suite)
        _check(cohort, cohort.run(drops), drops)


@pytest.mark.parametrize(
    "drops",
    [
        {},
        {"advertise_keys": ["silo-000"], "share_keys": ["silo-004"], "masked_input": ["silo-009"]},
        {"masked_input": ["silo-000", "silo-001", "silo-009"]},
        {"masked_input": ["silo-003"], "consistency_check": ["silo-004"], "unmask": ["silo-005"]},
        {"unmask": ["silo-000", "silo-005", "silo-006"]},
    ],
)
def test_ten_silos_lose_three(drops, suite):
    cohort = Cohort(10, 3, dimension=1000, suite=suite)
    _check(cohort, cohort.run(drops), drops)


@pytest.mark.parametrize("step", STEPS)
def test_twenty_silos_lose_six_at_one_step(step, suite):
    cohort = Cohort(20, 6, dimension=100, suite=suite)
    drops = {step: cohort.names[3:9]}
    _check(cohort, cohort.run(drops), drops)


@pytest.mark.parametrize(
    ("step", "check"),
    [
        ("advertise_keys", Check.BUNDLES_SIZE),
        ("share_keys", Check.SHARES_SIZE),
        ("masked_input", Check.SURVIVORS_SIZE),
        ("consistency_check", Check.AGREEMENT_SIZE),
        ("unmask", Check.SHARE_COUNT),
    ],
)
def test_one_drop_too_many_stops_at_that_step(step, check, suite):
    cohort = Cohort(5, suite=suite)
    with pytest.raises(VerificationError) as caught:
        cohort.run({step: cohort.names[:2]})
    assert caught.value.check is check


def test_n_min_above_t_is_kept(suite):
    drops = {"masked_input": ["silo-001"]}
    cohort = Cohort(5, n_min=5, suite=suite)
    with pytest.raises(VerificationError) as caught:
        cohort.run(drops)
    assert caught.value.check is Check.SURVIVORS_SIZE
    # A silo that drops after its upload stays in the sum, so n_min does not mind.
    late = Cohort(5, n_min=5, suite=suite)
    _check(late, late.run({"unmask": ["silo-001"]}), {})


def test_nothing_but_the_survivors_sum_is_left_of_a_dropped_silo(suite):
    # The bit of the dropped silo is absent from every coordinate.
    cohort = Cohort(5, suite=suite)
    outcome = cohort.run({"masked_input": ["silo-002"]})
    assert not (np.abs(outcome.delta) & 0b00100).any()
    assert (np.abs(outcome.delta) == 0b11011).all()


def test_a_vector_longer_than_a_tile(suite):
    cohort = Cohort(4, dimension=70_001, suite=suite)
    drops = {"masked_input": ["silo-003"]}
    _check(cohort, cohort.run(drops), drops)


def test_masked_vectors_are_uniform_and_share_nothing_with_the_input(suite):
    cohort = Cohort(4, dimension=40_000, suite=suite)
    cohort.run()
    for name in cohort.names:
        counts = np.bincount(cohort.vectors[name].view(np.uint8), minlength=256)
        expected = cohort.vectors[name].nbytes / 256
        # χ² with 255 degrees of freedom: 400 is beyond six deviations.
        assert ((counts - expected) ** 2 / expected).sum() < 400
        masked = cohort.vectors[name].astype(np.int64) - 2**31
        correlation = np.corrcoef(masked, cohort.plain(name))[0, 1]
        assert abs(correlation) < 5 / np.sqrt(masked.size)


def test_no_mask_key_repeats_between_aggregations_or_silos(suite):
    # The same entropy on purpose: ctx alone must keep the keys of two aggregations apart.
    keys = []
    for number in range(3):
        identity = {"run_id": "run-1", "round": number, "step": 0, "part": 0, "attempt": 0}
        cohort = Cohort(5, identity=identity, suite=suite)
        for name, delivery in cohort.until("masked_input").items():
            state, _ = cohort.states[name].handle(delivery)
            seed = bytes(state._vault.get("own_seed", name))
            keys += [
                (name, bytes(state._vault.get("mask", peer)))
                for peer in cohort.names
                if peer > name
            ]
            keys.append((name, seed + state.ctx))
    assert len({key for _, key in keys}) == len(keys) == 3 * (10 + 5)


def test_the_same_entropy_gives_the_same_transcript(suite):
    first, second = Cohort(4, suite=suite), Cohort(4, suite=suite)
    assert np.array_equal(first.run().delta, second.run().delta)
    for name in first.names:
        assert np.array_equal(first.vectors[name], second.vectors[name])
    assert first.sent == second.sent


def test_every_silo_ends_finished(suite):
    cohort = Cohort(4, suite=suite)
    cohort.run()
    assert all(isinstance(state, client.Finished) for state in cohort.states.values())
