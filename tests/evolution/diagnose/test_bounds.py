"""The theory's bounds, by hand and on the bandit that reaches one."""

import math

import pytest

from evolution.diagnose.bounds import (
    chi2,
    chi2_to_mixture,
    described_slack,
    fallback,
    policy_gap_floor,
    prefix_slack,
    return_difference,
    task_gap_bound,
)
from evolution.envs.builtin.bandit import HORIZON, MOST_REWARD


def test_chi2_by_hand():
    assert chi2({"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.5}) == 0
    assert chi2({"a": 1.0}, {"a": 0.25, "b": 0.75}) == pytest.approx(0.75**2 / 0.25 + 0.75)
    assert chi2({"a": 0.5, "b": 0.5}, {"a": 1.0}) == math.inf
    with pytest.raises(ValueError, match="come to 1"):
        chi2({"a": 0.5}, {"a": 1.0})


@pytest.mark.parametrize("silos", [2, 5])
def test_silos_with_nothing_in_common_reach_the_largest_chi2(silos):
    found = chi2_to_mixture([{str(n): 1.0} for n in range(silos)])
    assert found == pytest.approx([silos - 1] * silos)
    assert chi2_to_mixture([{"a": 1.0}] * silos) == pytest.approx([0.0] * silos)


def test_the_smaller_of_theorem_twos_bounds_is_taken():
    small = task_gap_bound(chi2=4, silos=5, most_return=1.0, eps_approx=0.001, eps_opt=0.001)
    assert small == pytest.approx(5 * 0.002)
    large = task_gap_bound(chi2=0.2, silos=5, most_return=1.0, eps_approx=0.2, eps_opt=0.1)
    assert large == pytest.approx(math.sqrt(1.2 * 0.3))


def test_the_floor_is_the_bandits_gap():
    assert policy_gap_floor(most_return=MOST_REWARD * HORIZON, delta=1.0) == 0.5
    assert return_difference(most_return=1.0, horizon=4, delta=0.1) == pytest.approx(0.4)


def test_prefix_slack_term_by_term():
    known = prefix_slack(most_return=1.0, horizon=4, t_star=1, eta_cls=0.0, eta_ker=0.0)
    assert known.total == 0
    late = prefix_slack(most_return=2.0, horizon=4, t_star=3, eta_cls=0.1, eta_ker=0.05)
    assert (late.t_star, late.eta_cls, late.eta_ker) == pytest.approx((1.0, 0.2, 0.4))
    assert late.total == pytest.approx(1.6)
    assert late.largest == "t_star"


def test_corollary_one():
    found = described_slack(
        silos=4, most_return=1.0, horizon=3, eps_approx=0.005, eps_opt=0.005, eta_cls=0.1,
        eta_ker=0.01,
    )  # fmt: skip
    assert found == pytest.approx(math.sqrt(4 * 0.01) + 0.1 + 0.03)


@pytest.mark.parametrize(
    ("gap", "floor", "verdict"),
    [
        ((0.4, 0.6), 0.5, "F1"),
        ((0.25, 0.3), 0.5, "F1"),
        ((0.0, 0.1), 0.5, "F2"),
        ((0.2, 0.3), 0.5, None),
        ((0.0, 0.3), 0.0, "F2"),
    ],
)
def test_the_fallbacks_verdict(gap, floor, verdict):
    assert fallback(gap, floor) == verdict
