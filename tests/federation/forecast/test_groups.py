"""Groups in a forecast: how many a roster allows, and what they cost in noise."""

from __future__ import annotations

import math

import pytest

from dp.accounting.snr import predicted_cosine
from federation.aggregate.groups import variance_of_rule
from federation.forecast.forecast import forecast_plan
from federation.forecast.groups import cost_of_groups, most_groups
from federation.plan.read import read_plan
from tests.kit.paths import ROOT

BASE = (ROOT / "deploy" / "examples" / "plan-silo-dp.toml").read_text()
BASE = BASE.replace('method = "rolora"\ngauge = true', 'method = "fedavg"')


def plan_with(groups="", n_min=3):
    text = BASE.replace("n_min = 160", f"n_min = {n_min}")
    return read_plan(text.replace("[privacy]\n", f"{groups}[privacy]\n").encode())


def of(count, byzantine=1, rule="median"):
    return f'[aggregation.groups]\ncount = {count}\nbyzantine = {byzantine}\nrule = "{rule}"\n\n'


def test_twelve_silos_allow_three_groups_of_four():
    plan = plan_with()
    three = most_groups(plan, silos=12, colluding=1)
    assert (three.count, three.least, three.most, three.byzantine) == (3, 4, 4, 1)
    # t is 3 of 4 and 7 of 12, c is 1: two silos share the noise where six did.
    assert three.divisor == 2
    assert three.noise == pytest.approx(math.sqrt(3 * variance_of_rule(3, "median", 1) * 6 / 2))
    assert most_groups(plan, silos=11, colluding=1) is None


@pytest.mark.parametrize(
    ("silos", "count", "least", "most"),
    [(12, 3, 4, 4), (23, 5, 4, 5), (60, 15, 4, 4), (90, 15, 6, 6)],
)
def test_more_silos_allow_more_groups_up_to_what_a_record_names(silos, count, least, most):
    found = most_groups(plan_with(), silos=silos, colluding=1)
    assert (found.count, found.least, found.most) == (count, least, most)
    assert found.byzantine == (count - 1) // 2


def test_many_groups_cost_more_than_few():
    few, many = (
        cost_of_groups(plan_with(of(count)), silos=60, colluding=1).noise for count in (3, 15)
    )
    assert 1 < few < many


def test_the_forecast_is_that_of_a_group():
    plan = plan_with(of(3))
    shown = forecast_plan(plan, silos=12, colluding=1, dimension=100)
    assert (shown.threshold, shown.drops) == (3, 1)
    assert shown.groups == cost_of_groups(plan, silos=12, colluding=1) == shown.most_groups
    z = plan.privacy.noise_multiplier * math.sqrt(variance_of_rule(3, "median", 1))
    assert shown.predicted_cosine == predicted_cosine(
        noise_multiplier=z, dimension=100, silos=4, divisor=2
    )
    one = forecast_plan(plan_with(), silos=12, colluding=1, dimension=100)
    assert one.groups is None
    assert one.most_groups.count == 3
    assert one.predicted_cosine > shown.predicted_cosine
    # Noise over signal is what the cost says it is.
    ratio = math.sqrt((shown.predicted_cosine**-2 - 1) / (one.predicted_cosine**-2 - 1))
    assert ratio == pytest.approx(shown.groups.noise)
    assert shown.epsilon_total == one.epsilon_total


def test_a_plan_with_groups_may_start():
    shown = forecast_plan(plan_with(of(3)), silos=200, colluding=2, dimension=10)
    assert shown.refusals == ()


def test_a_roster_that_allows_no_such_groups_is_refused():
    shown = forecast_plan(plan_with(of(3)), silos=11, colluding=1, dimension=100)
    assert any("11 silos in 3 groups leave 3" in refusal for refusal in shown.refusals)
    assert shown.most_groups is None


def test_a_trimmed_mean_costs_less_than_a_median():
    costs = [
        cost_of_groups(plan_with(of(7, 1, rule)), silos=28, colluding=1).noise
        for rule in ("trimmed_mean", "median")
    ]
    assert costs[0] < costs[1]
