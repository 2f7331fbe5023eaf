"""The rule that assigns patterns, on curves whose pattern is known by construction."""

import numpy as np
import pytest

from evolution.diagnose.patterns import RULE, Curve, Judged, assign
from evolution.diagnose.rates import Rate
from lab.wilson import wilson

TASKS = 200
SEEDS = (0, 1, 2)
UP = [0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6]


def curve(rates, seed=0, tasks=TASKS):
    points = [
        Judged(round=5 * n, successes=round(rate * tasks), tasks=tasks)
        for n, rate in enumerate(rates)
    ]
    return Curve(seed=seed, points=tuple(points))


def curves(rates=UP, shifts=(0.0, 0.01, -0.01)):
    return [curve([rate + shift for rate in rates], seed) for seed, shift in enumerate(shifts)]


def base(level, shifts=(0.005, 0.0, -0.005)):
    return {seed: level + shift for seed, shift in enumerate(shifts)}


def said(rates, level=0.6, locus="environments", **more):
    return assign(curves(rates, **more), base(level), locus=locus)


@pytest.mark.parametrize(
    ("rates", "level", "locus", "pattern"),
    [
        (UP, 0.6, "tasks", "A"),
        (UP, 0.6, "environments", "B"),
        (UP, 0.3, "environments", "B"),
        (UP, 0.62, "environments", "B"),
        (UP, 0.8, "environments", "C"),
        ([0.2] * 12, 0.6, "environments", "C"),
        # From 0.6 back to 0.3: more than half of the rise of 0.4 is lost.
        ([*UP[:8], 0.45, 0.3, 0.3, 0.3], 0.6, "environments", "D"),
        ([0.5] * 6 + [0.2] * 6, 0.6, "environments", "D"),
        ([*UP[:9], 0.7, 0.5, 0.7], 0.6, "environments", "D"),
        ([*UP[:8], 0.45, 0.3, 0.3, 0.3], 0.6, "tasks", "D"),
    ],
)
def test_each_pattern_by_its_curve(rates, level, locus, pattern):
    assert said(rates, level, locus).pattern == pattern


def test_a_fall_of_less_than_half_of_the_rise_is_no_collapse():
    found = said([*UP[:8], 0.5, 0.45, 0.45, 0.45])
    assert found.collapsed == ()
    assert found.pattern == "C"


def test_one_seed_of_three_that_collapses_shows_as_seeds_that_part():
    bad = [*UP[:6], 0.3, 0.2, 0.1, 0.1, 0.1, 0.1]
    found = assign([*curves()[:2], curve(bad, 2)], base(0.6), locus="environments")
    assert found.collapsed == (2,)
    assert found.pattern == "D"
    assert found.why.startswith("seeds part")


def test_seeds_that_part_no_more_than_the_baselines_are_no_pattern_of_the_federation():
    shifts = (0.0, 0.2, -0.2)
    parted = assign(curves(shifts=shifts), base(0.6, shifts), locus="environments")
    assert parted.pattern == "B"
    assert assign(curves(shifts=shifts), base(0.6), locus="environments").pattern == "D"


def test_a_task_level_setting_below_its_baseline_has_no_letter():
    found = said(UP, 0.8, "tasks")
    assert found.pattern is None
    assert "instructions" in found.why


def test_what_cannot_be_told_apart_says_so():
    found = assign(curves(shifts=(0.0, 0.06, -0.06)), base(0.63), locus="environments")
    assert found.low < -RULE.margin < 0 < found.high
    assert found.pattern is None
    assert "cannot be told apart" in found.why
    alone = assign(curves()[:1], base(0.6), locus="environments")
    assert (alone.pattern, alone.divergence) == (None, None)


def test_limits_are_students_one_sided():
    found = assign(curves(shifts=(0.0, 0.03, -0.03)), base(0.6, (0, 0, 0)), locus="environments")
    # Differences 0, 0.03, −0.03: deviation 0.03, and t of 2 degrees at 95 % is 2.9200.
    assert found.difference == pytest.approx(0, abs=1e-9)
    assert found.high == pytest.approx(2.9200 * 0.03 / 3**0.5, abs=1e-4)
    assert found.low == pytest.approx(-found.high)
    # The same with other seeds, where nothing can be paired: Welch with variance 0 on one side.
    welch = assign(
        curves(shifts=(0.0, 0.03, -0.03)), {7: 0.6, 8: 0.6, 9: 0.6}, locus="environments"
    )
    assert welch.high == pytest.approx(found.high)


def test_binomial_noise_alone_is_no_oscillation_and_no_collapse():
    """64 tasks, as FedAgent judges: evaluations differ by 6 points by chance."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(100):
        noisy = [curve(rng.binomial(64, UP) / 64, seed, 64) for seed in SEEDS]
        wrong += assign(noisy, base(0.55), locus="environments").pattern == "D"
    assert wrong <= 5


def test_a_real_oscillation_shows_through_noise():
    rng = np.random.default_rng(1)
    swung = [*UP[:6], 0.7, 0.4, 0.7, 0.4, 0.7, 0.4]
    found = 0
    for _ in range(50):
        noisy = [curve(rng.binomial(64, swung) / 64, seed, 64) for seed in SEEDS]
        found += assign(noisy, base(0.6), locus="environments").pattern == "D"
    assert found >= 45


def test_a_steady_rise_in_the_tail_is_no_oscillation():
    rising = [0.1 + 0.05 * n for n in range(12)]
    assert said(rising, 0.5).oscillation == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"baseline": {}}, "beside a baseline"),
        ({"baseline": {0: 1.5}}, "success rate"),
        ({"curves": []}, "at least one"),
        ({"curves": [curve(UP), curve(UP)]}, "one curve"),
    ],
)
def test_what_is_no_setting_is_refused(given, error):
    values = {"curves": [curve(UP)], "baseline": {0: 0.5}, **given}
    with pytest.raises(ValueError, match=error):
        assign(values["curves"], values["baseline"], locus="tasks")


def test_curves_are_checked():
    with pytest.raises(ValueError, match="no rate"):
        Judged(round=1, successes=3, tasks=2)
    points = (Judged(round=2, successes=1, tasks=2), Judged(round=1, successes=1, tasks=2))
    with pytest.raises(ValueError, match="in order"):
        Curve(seed=0, points=points)


@pytest.mark.parametrize(("count", "total"), [(0, 10), (3, 10), (10, 10), (1, 400)])
def test_limits_of_a_share_are_wilsons(count, total):
    mine, theirs = Rate(count=count, total=total), wilson(count, total)
    assert (mine.low, mine.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert not Rate(count=0, total=0).known
    with pytest.raises(ValueError, match="no share"):
        Rate(count=2, total=1)
