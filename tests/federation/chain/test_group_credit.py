"""What groups added: their own sums against the combined update, by hand and by drawing noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dp.noise.estimate import Estimate
from federation.adapter import encoding
from federation.aggregate.groups import RobustMean
from federation.chain import group_credit
from federation.chain.group_credit import (
    GroupAlong,
    GroupRelease,
    along_update,
    silos_in_groups,
    total_of_groups,
)
from federation.errors import UpdateError


def combined(*means, rule="median", byzantine=1):
    return RobustMean(
        [np.array(mean, dtype=float) for mean in means], rule=rule, byzantine=byzantine
    )


def release(number, *groups):
    return GroupRelease(
        round=number,
        groups=tuple(
            GroupAlong(part=part, silos=tuple(silos), along=Estimate(mean, error))
            for part, (silos, mean, error) in enumerate(groups)
        ),
    )


def test_without_noise_it_is_the_projection_in_lengths_of_the_update():
    # The median is (1, 2): ‖T‖² = 5.
    update = combined([1.0, 0.0], [0.0, 2.0], [3.0, 4.0])
    found = along_update(update, [0.0] * 3)
    assert [each.mean for each in found] == [1 / 5, 4 / 5, 11 / 5]
    assert {each.standard_error for each in found} == {0.0}


def test_a_group_that_goes_against_the_update_is_below_zero():
    found = along_update(combined([1.0, 1.0], [2.0, 2.0], [-9.0, -9.0]), [0.0] * 3)
    assert found[2].mean == -9.0


def test_the_share_of_its_own_noise_is_taken_off_and_the_error_is_a_bound():
    """Three groups, one coordinate: the median is group 1's, which holds its noise."""
    found = along_update(combined([1.0], [2.0], [4.0]), [0.5, 0.25, 0.125])
    # ⟨m, T⟩ is 2, 4, 8; only group 1 is in T, with weight 1: 4 − 0.25.
    assert [each.mean for each in found] == [2 / 4, 3.75 / 4, 8 / 4]
    errors = [
        # s²·(T + m·w)² + the others' s²·(m·w)², and s²·√d/(2k).
        math.sqrt(0.5 * 2**2 + 0.25 * 1**2) + 0.5 / 2,
        math.sqrt(0.25 * 4**2) + 0.25 / 2,
        math.sqrt(0.125 * 2**2 + 0.25 * 4**2) + 0.125 / 2,
    ]
    assert [each.standard_error for each in found] == pytest.approx([e / 4 for e in errors])


@pytest.mark.parametrize(
    ("rule", "count", "byzantine"),
    [("median", 3, 1), ("median", 4, 1), ("trimmed_mean", 5, 1)],
)
def test_over_many_draws_the_noise_is_not_credited_and_the_bound_holds(rule, count, byzantine):
    """Groups of nothing but noise went nowhere; ⟨m, T⟩ alone would say that they all did."""
    rng = np.random.default_rng(7)
    dimension, deviations = 400, np.linspace(0.5, 1.5, count)
    found, naive, errors = [], [], []
    for _ in range(300):
        means = [s * rng.standard_normal(dimension) for s in deviations]
        update = combined(*means, rule=rule, byzantine=byzantine)
        total = update[:]
        norm_sq = float(total @ total)
        each = along_update(update, deviations**2)
        found.append([one.mean * norm_sq for one in each])
        errors.append([one.standard_error * norm_sq for one in each])
        naive.append([float(mean @ total) for mean in means])
    spread = np.std(found, axis=0)
    assert (np.abs(np.mean(found, axis=0)) < 4 * spread / math.sqrt(300)).all()
    assert (np.mean(naive, axis=0) > 20 * spread / math.sqrt(300)).all()
    assert (spread < np.mean(errors, axis=0)).all()


def test_what_moved_alike_is_found_under_noise():
    rng = np.random.default_rng(8)
    dimension, deviation, found = 400, 0.5, []
    drift = rng.standard_normal(dimension)
    for _ in range(200):
        means = [drift + deviation * rng.standard_normal(dimension) for _ in range(3)]
        update = combined(*means)
        total = update[:]
        found.append([one.mean * float(total @ total) for one in along_update(update, [0.25] * 3)])
    # E T is the drift: the noise of groups that move alike is symmetric.
    spread = np.std(found, axis=0) / math.sqrt(200)
    assert (np.abs(np.mean(found, axis=0) - float(drift @ drift)) < 4 * spread).all()


def test_tiles_add_up(monkeypatch):
    rng = np.random.default_rng(9)
    update = combined(*rng.standard_normal((5, 97)), rule="trimmed_mean")
    whole = along_update(update, [0.1] * 5)
    monkeypatch.setattr(group_credit, "TILE", 10)
    assert encoding.TILE > 97
    for one, other in zip(along_update(update, [0.1] * 5), whole, strict=True):
        assert one == pytest.approx(other)


def test_where_nothing_moved_nothing_is_told():
    for each in along_update(combined([0.0], [0.0], [0.0]), [0.0] * 3):
        assert math.isnan(each.reportable)


@pytest.mark.parametrize("variances", [[0.1] * 2, [0.1, -0.1, 0.1], [0.1, math.nan, 0.1]])
def test_variances_that_fit_no_groups_are_refused(variances):
    with pytest.raises(UpdateError):
        along_update(combined([1.0], [2.0], [3.0]), variances)


def test_the_silos_of_a_group_share_alike_and_all_add_up_to_the_groups():
    first = release(1, (("ant", "bee"), 0.5, 0.03), (("cat", "dog", "eel"), 1.0, 0.04))
    second = release(2, (("ant", "cat"), 0.25, 0.04), (("bee", "dog", "eel"), 0.5, 0.0))
    assert first.total == Estimate(0.75, pytest.approx(0.035))
    found = {silo.silo_id: silo for silo in silos_in_groups([first, second])}
    # Half of half a length, and half of half of a quarter.
    assert found["ant"].added.mean == 0.5 / 4 + 0.25 / 4
    # In different rounds: as squares.
    assert found["ant"].added.standard_error == pytest.approx(math.hypot(0.03, 0.04) / 4)
    assert found["dog"].added.mean == pytest.approx(1.0 / 6 + 0.5 / 6)
    total = total_of_groups([first, second])
    assert math.fsum(silo.added.mean for silo in found.values()) == pytest.approx(total.mean)
    assert total.mean == pytest.approx(0.75 + 0.375)


def test_silos_that_no_round_put_apart_are_named():
    first = release(1, (("ant", "bee"), 0.5, 0.0), (("cat", "dog", "eel"), 1.0, 0.0))
    second = release(2, (("ant", "cat"), 0.5, 0.0), (("bee", "dog", "eel"), 1.0, 0.0))
    found = {silo.silo_id: silo.together for silo in silos_in_groups([first, second])}
    assert found == {"ant": (), "bee": (), "cat": (), "dog": ("eel",), "eel": ("dog",)}
