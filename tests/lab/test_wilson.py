"""Wilson intervals against published ones, and the equation that defines them."""

import math

import pytest

from lab.wilson import Z_95, Interval, wilson

PUBLISHED = [
    # R. G. Newcombe, Statistics in Medicine 17 (1998), Table I, method 3.
    (81, 263, 0.2553, 0.3662),
    (15, 148, 0.0624, 0.1605),
    (0, 20, 0.0000, 0.1611),
    (1, 29, 0.0061, 0.1718),
]


@pytest.mark.parametrize(("successes", "episodes", "low", "high"), PUBLISHED)
def test_published_intervals(successes, episodes, low, high):
    interval = wilson(successes, episodes)
    assert interval.low == pytest.approx(low, abs=5e-5)
    assert interval.high == pytest.approx(high, abs=5e-5)
    assert (interval.rate, interval.episodes) == (successes / episodes, episodes)


@pytest.mark.parametrize(("successes", "episodes"), [(3, 7), (100, 208), (1, 1000)])
def test_the_bounds_are_where_the_score_test_just_rejects(successes, episodes):
    """Wilson 1927: p with |p̂ − p| = z·√(p(1−p)/n)."""
    interval = wilson(successes, episodes)
    for p in (interval.low, interval.high):
        score = abs(interval.rate - p) / math.sqrt(p * (1 - p) / episodes)
        assert score == pytest.approx(Z_95)


def test_none_and_all_stay_inside_the_unit_interval():
    none, every = wilson(0, 5), wilson(5, 5)
    assert none.low == 0.0
    assert every.high == 1.0
    assert none.high == pytest.approx(1 - every.low)


@pytest.mark.parametrize(("successes", "episodes"), [(0, 0), (2, 1), (-1, 3)])
def test_impossible_counts_are_refused(successes, episodes):
    with pytest.raises(ValueError, match="no rate"):
        wilson(successes, episodes)


def test_overlap_is_symmetric_and_counts_a_shared_point():
    a = Interval(rate=0.1, low=0.0, high=0.2, episodes=1)
    b = Interval(rate=0.3, low=0.2, high=0.4, episodes=1)
    c = Interval(rate=0.5, low=0.41, high=0.6, episodes=1)
    assert a.overlaps(b)
    assert b.overlaps(a)
    assert not a.overlaps(c)
    assert not c.overlaps(b)
    assert str(b) == " 30.0 % [20.0, 40.0]"
