"""Bounds of the audits against scipy and by simulation, and what counts as a verdict."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import beta, binom

from dp.errors import SpecError
from lab.audit.bounds import (
    AuditResult,
    epsilon_lower_bound,
    rate_lower_bound,
    rate_upper_bound,
)
from lab.audit.one_run import audit_one_run, one_run_p_value


@pytest.mark.parametrize(("k", "n"), [(0, 10), (1, 10), (10, 10), (3, 10_000), (30_853, 100_000)])
def test_the_bounds_are_clopper_and_pearsons(k, n):
    low = beta.ppf(0.05, k, n - k + 1) if k else 0.0
    high = beta.ppf(0.95, k + 1, n - k) if k < n else 1.0
    assert rate_lower_bound(k, n) == pytest.approx(low, rel=1e-9)
    assert rate_upper_bound(k, n) == pytest.approx(high, rel=1e-9)


@pytest.mark.parametrize(("k", "n", "level"), [(-1, 3, 0.9), (4, 3, 0.9), (0, 0, 0.9), (1, 2, 1.0)])
def test_no_bound_without_trials(k, n, level):
    with pytest.raises(SpecError):
        rate_lower_bound(k, n, confidence=level)


def test_a_perfect_attack_on_ten_thousand_runs_proves_epsilon_7_9_and_no_more():
    proven = epsilon_lower_bound(
        true_positives=10_000, present=10_000, false_positives=0, absent=10_000, delta=1e-3
    )
    assert proven == pytest.approx(7.90, abs=0.01)


def test_a_test_that_finds_less_than_delta_proves_nothing():
    proven = epsilon_lower_bound(
        true_positives=3, present=1000, false_positives=0, absent=1000, delta=0.01
    )
    assert proven == 0.0


@pytest.mark.parametrize(
    ("measured", "releases", "holds"),
    [(0.9, 5, True), (1.0, 5, True), (1.01, 5, False), (math.nan, 5, False), (0.5, 0, False),
     (math.inf, 5, False)],
)  # fmt: skip
def test_doubt_never_holds(measured, releases, holds):
    result = AuditResult(
        audit="a", quantity="mu", claimed=1.0, measured=measured, estimate=0.0, releases=releases
    )
    assert result.holds is holds
    assert ("VIOLATED" in str(result)) is not holds


def reference_p_value(m, r, v, eps, delta):
    """Appendix of arXiv 2305.08846, spelled with scipy."""
    p = 1 / (1 + math.exp(-eps))
    best, total = 0.0, 0.0
    for i in range(1, v + 1):
        total += binom.pmf(v - i, r, p)
        best = max(best, total / i)
    return min(1.0, binom.sf(v - 1, r, p) + 2 * m * delta * best)


@pytest.mark.parametrize(
    ("m", "r", "v"), [(10, 4, 4), (1000, 100, 90), (1000, 1000, 500), (5, 5, 0)]
)
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
def test_the_one_run_p_value_is_theorem_5_2(m, r, v, delta):
    for eps in (0.0, 0.5, 3.0, 9.0):
        assert one_run_p_value(m, r, v, eps, delta) == pytest.approx(
            reference_p_value(m, r, v, eps, delta), rel=1e-9, abs=1e-15
        )


def one_run(right_fraction, m=1000, guesses=200, claimed=1.0):
    rng = np.random.default_rng(4)
    included = rng.random(m) < 0.5
    sign = np.where(rng.random(m) < right_fraction, 1.0, -1.0)
    scores = np.where(included, sign, -sign) * (1.0 + rng.random(m))
    return audit_one_run(
        scores=scores, included=included, guesses=guesses, delta=1e-5, claimed_epsilon=claimed
    )


def test_one_run_refutes_what_guesses_refute():
    blind, strong, perfect = one_run(0.5), one_run(0.9), one_run(1.0)
    assert blind.measured < 0.3
    assert blind.holds
    assert 1.6 < strong.measured < strong.estimate
    assert not strong.holds
    # 200 right guesses of 200 cannot prove more than 0.05 = p^200.
    assert 3.5 < perfect.measured < -math.log(math.expm1(-math.log(0.05) / 200))


def test_one_run_is_right_about_randomised_response():
    """Bits told truthfully with probability e/(1+e) are exactly 1-DP: a bound above 1 is rare."""
    assert sum(not trial(1.0, seed).holds for seed in range(100)) <= 10
    assert sum(not trial(2.0, seed).holds for seed in range(20)) == 20


def trial(epsilon, seed):
    rng = np.random.default_rng([7, seed])
    included = rng.random(600) < 0.5
    truthful = rng.random(600) < 1 / (1 + math.exp(-epsilon))
    return audit_one_run(
        scores=np.where(included == truthful, 1.0, -1.0) + rng.random(600) / 10,
        included=included, guesses=600, delta=0.0, claimed_epsilon=1.0,
    )  # fmt: skip


@pytest.mark.parametrize("guesses", [0, 3, 1002])
def test_one_run_fixes_an_even_number_of_guesses(guesses):
    with pytest.raises(SpecError):
        one_run(0.5, guesses=guesses)


def test_a_nan_score_proves_nothing_and_passes_nothing():
    result = audit_one_run(
        scores=np.array([1.0, math.nan, 2.0]), included=np.array([True, False, True]),
        guesses=2, delta=1e-5, claimed_epsilon=1.0,
    )  # fmt: skip
    assert not result.holds
