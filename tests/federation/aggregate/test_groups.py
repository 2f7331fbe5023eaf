"""The robust mean of groups: same bits everywhere, ruined groups outvoted, its noise predicted."""

from __future__ import annotations

import itertools
import math
from statistics import median

import numpy as np
import pytest

from federation.aggregate.groups import MAX_GROUPS, RobustMean, variance_of_rule
from federation.aggregate.server_step import MeanOfSum
from federation.errors import LayoutError, UpdateError

MEANS = [np.array(values, dtype=float) for values in ([1, 9, -3], [2, 8, 5], [7, 7, 4], [4, 6, 0])]


@pytest.mark.parametrize("chosen", [MEANS[:3], MEANS])
def test_the_median_is_that_of_each_coordinate(chosen):
    found = RobustMean(chosen, rule="median", byzantine=1)
    assert found.shape == (3,)
    expected = [median(column) for column in zip(*(mean.tolist() for mean in chosen), strict=True)]
    assert found[:].tolist() == expected
    assert found[1:2].tolist() == expected[1:2]


def test_the_trimmed_mean_leaves_out_the_least_and_the_greatest():
    assert RobustMean(MEANS, rule="trimmed_mean", byzantine=1)[:].tolist() == [3.0, 7.5, 2.0]
    assert RobustMean(MEANS, rule="trimmed_mean", byzantine=0)[:].tolist() == [3.5, 7.5, 1.5]


@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
def test_the_order_of_the_groups_changes_no_bit(rule):
    draw = np.random.default_rng(5)
    means = [draw.normal(size=64) * 10.0 ** draw.integers(-8, 8, 64) for _ in range(5)]
    first = RobustMean(means, rule=rule, byzantine=1)[:]
    for order in itertools.permutations(means):
        found = RobustMean(order, rule=rule, byzantine=1)[:]
        np.testing.assert_array_equal(found.view(np.uint64), first.view(np.uint64))


@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
@pytest.mark.parametrize("value", [1e30, -1e30])
def test_ruined_groups_cannot_leave_what_the_sound_ones_span(rule, value):
    sound = [np.array([1.0, -2.0]), np.array([1.5, -1.0]), np.array([2.0, 0.0])]
    ruined = [np.full(2, value)] * 2
    found = RobustMean([*ruined, *sound], rule=rule, byzantine=2)[:]
    assert np.all(np.min(sound, axis=0) <= found)
    assert np.all(found <= np.max(sound, axis=0))


def test_sums_are_read_as_means_where_they_are_combined():
    sums = [
        MeanOfSum(np.array(total, np.int32), scale=2.0, count=count)
        for total, count in (([8, 16], 4), ([6, 60], 3), ([24, 24], 4))
    ]
    assert RobustMean(sums, rule="median", byzantine=1)[:].tolist() == [1.0, 3.0]


def test_too_few_groups_and_groups_of_other_lengths_are_refused():
    with pytest.raises(UpdateError, match="2 groups cannot outvote 1"):
        RobustMean(MEANS[:2], rule="median", byzantine=1)
    with pytest.raises(LayoutError):
        RobustMean([*MEANS[:2], np.zeros(4)], rule="median", byzantine=1)


def test_the_variance_of_a_rule_is_the_known_one():
    # Of three normal values (Jones, "Exact lower moments of order statistics in small samples from
    # a normal distribution", 1948) and of means.
    assert variance_of_rule(3, "median", 1) == pytest.approx(1 - math.sqrt(3) / math.pi, abs=1e-6)
    for groups in (1, 2, 7, MAX_GROUPS):
        assert variance_of_rule(groups, "trimmed_mean", 0) == pytest.approx(1 / groups, abs=1e-6)
    assert variance_of_rule(2, "median", 0) == pytest.approx(0.5, abs=1e-6)
    assert variance_of_rule(5, "trimmed_mean", 2) == variance_of_rule(5, "median", 2)
    assert variance_of_rule(5, "median", 2) == pytest.approx(0.286834, abs=1e-6)


def test_the_variance_of_a_trimmed_mean_is_that_of_drawn_ones():
    draw = np.sort(np.random.default_rng(1).normal(size=(200_000, 7)), axis=1)
    trimmed = draw[:, 2:5].mean(axis=1)
    assert variance_of_rule(7, "trimmed_mean", 2) == pytest.approx(float(trimmed.var()), rel=0.01)


def test_no_rule_is_for_more_groups_than_a_record_names():
    for groups, byzantine in ((2, 1), (MAX_GROUPS + 1, 1), (3, -1)):
        with pytest.raises(UpdateError):
            variance_of_rule(groups, "median", byzantine)


def test_one_silo_of_twelve_at_n_times_the_clip_ruins_one_group_and_not_the_mean():
    """Three groups of four; what one sum would be moved by, and what the median is."""
    draw = np.random.default_rng(2)
    common = draw.normal(size=500)
    honest = [common + 0.3 * draw.normal(size=500) for _ in range(12)]
    honest = [delta / np.linalg.norm(delta) for delta in honest]
    attack = -12.0 * common / np.linalg.norm(common)
    attacked = [attack, *honest[1:]]

    def one(deltas):
        return np.mean(deltas, axis=0)

    def grouped(deltas):
        groups = [np.mean(deltas[start : start + 4], axis=0) for start in (0, 4, 8)]
        return RobustMean(groups, rule="median", byzantine=1)[:]

    def cosine(a, b):
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    truth = one(honest)
    assert cosine(one(attacked), truth) < 0
    assert cosine(grouped(attacked), truth) > 0.98
    assert cosine(grouped(honest), truth) > 0.99


@pytest.mark.parametrize(("rule", "count"), [("median", 3), ("median", 4), ("trimmed_mean", 5)])
def test_weights_add_up_and_give_the_combined_mean(rule, count):
    means = np.random.default_rng(3).standard_normal((count, 50))
    # Equal values, among them all of a coordinate.
    means[1, :5], means[:, 7] = means[0, :5], 1.5
    combined = RobustMean(list(means), rule=rule, byzantine=1)
    found, weights = combined.weighed(slice(0, 50))
    np.testing.assert_array_equal(found, means)
    np.testing.assert_allclose(np.sum(weights, axis=0), 1.0)
    assert set(np.unique(weights)) == {0.0, 1 / combined.kept}
    np.testing.assert_allclose(np.sum(weights * found, axis=0), combined[:])
