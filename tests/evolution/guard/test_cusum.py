"""The drift monitor: Page's sum by hand, its threshold against chains that are small enough to
count, and how often it is wrong, by simulation."""

import numpy as np
import pytest

from evolution.guard.cusum import ROUNDS, climbed, false_alarm, threshold

TASKS, BASE_TRIES, ALLOWANCE, CHANCE = 64, 256, 0.02, 0.01


@pytest.mark.parametrize(
    ("rises", "total"),
    [
        ((), 0.0),
        # Above the allowance by 0.03, then by 0.01; then below it by 0.12, and never below zero.
        ((0.05,), 0.03),
        ((0.05, 0.03), 0.04),
        ((0.05, 0.03, -0.1), 0.0),
        ((0.05, 0.03, -0.1, 0.12), 0.1),
    ],
)
def test_the_sum_by_hand(rises, total):
    assert climbed(rises, allowance=ALLOWANCE) == pytest.approx(total)


def test_the_chance_of_a_false_alarm_by_hand():
    """One task, and a base that broke the rule in none of so many tries that p is about 1/(n+2).

    Without an allowance each violation adds 1 and nothing is ever taken away, so S > 0 after ten
    rounds as soon as one of them had one: 1 − E[(1 − p)^10] = 1 − (n+1)/(n+11).
    """
    n = 500
    found = false_alarm(0.5, tasks=1, base_tries=n, base_violations=0, allowance=0.0)
    assert found == pytest.approx(1 - (n + 1) / (n + 1 + ROUNDS), rel=0.02)
    # And above 1 as soon as two had: P(two or more of ten), of a beta-binomial.
    one = ROUNDS * (n + 1) / (n + 10) / (n + 11)
    found = false_alarm(1.5, tasks=1, base_tries=n, base_violations=0, allowance=0.0)
    assert found == pytest.approx(ROUNDS / (n + 11) - one, rel=0.1)


def test_a_threshold_keeps_its_chance_and_the_next_lower_one_does_not():
    of = {
        "tasks": TASKS,
        "base_tries": BASE_TRIES,
        "base_violations": 50,
        "allowance": ALLOWANCE,
    }
    h = threshold(**of, chance=CHANCE)
    assert 0.3 < h < 0.8
    assert false_alarm(h, **of) <= 1.2 * CHANCE
    assert false_alarm(0.9 * h, **of) > CHANCE
    assert threshold(**of, chance=0.1) < h
    # A base that is known better, and more tasks, need less.
    assert threshold(**(of | {"base_tries": 64, "base_violations": 12}), chance=CHANCE) > h


def alarms(p, *, rise, runs, seed):
    """In which round each of many runs raises the alarm; 0 for none of ten."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(runs):
        base = int(rng.binomial(BASE_TRIES, p))
        h = threshold(
            tasks=TASKS,
            base_tries=BASE_TRIES,
            base_violations=base,
            allowance=ALLOWANCE,
            chance=CHANCE,
        )
        shares = rng.binomial(TASKS, p + rise * np.arange(1, ROUNDS + 1)) / TASKS
        rises = shares - base / BASE_TRIES
        sums = [climbed(rises[:n], allowance=ALLOWANCE) for n in range(1, ROUNDS + 1)]
        found.append(next((n for n, s in enumerate(sums, start=1) if s > h), 0))
    return np.array(found)


@pytest.mark.parametrize("p", [0.05, 0.195])
def test_an_honest_run_of_ten_rounds_raises_no_alarm(p):
    found = alarms(p, rise=0.0, runs=1000, seed=3)
    # One in a hundred at most, and three standard errors of a thousand runs.
    assert np.mean(found > 0) <= CHANCE + 3 * np.sqrt(CHANCE / 1000)


def test_a_slow_climb_is_stopped_before_the_threshold_for_a_single_round():
    """Two points a round from the shipped base's 19.5 %: above 20 points in round eleven."""
    found = alarms(0.195, rise=0.02, runs=200, seed=4)
    assert np.mean(found > 0) > 0.8
    assert np.median(found[found > 0]) <= 8
