"""Rates of one seed and of several, by counting."""

from __future__ import annotations

import numpy as np
import pytest

from lab.membership.rates import Sample, rates_at, roc


def sample(shift):
    scores = np.concatenate((np.arange(200.0), np.arange(200.0) + shift))
    return Sample(scores=scores, included=np.arange(400) >= 200)


def test_rates_count_at_the_threshold_of_the_others():
    rates = rates_at([sample(100.0)], target=0.01)
    # Two of the 200 others lie above 197, and so do 102 of the members.
    assert (rates.false_positive_rate, rates.true_positive_rate) == (0.01, 0.51)
    assert rates.true_positive_low < 0.51 < rates.true_positive_high
    assert rates.false_positive_high > 0.01
    false, true = roc(sample(100.0))
    assert false[-1] == true[-1] == 1.0
    assert (np.diff(false) >= 0).all()


def test_each_seed_has_its_own_threshold_and_is_one_observation():
    loud = Sample(scores=10.0 * sample(60.0).scores, included=sample(60.0).included)
    rates = rates_at([sample(100.0), loud, sample(20.0)], target=0.01)
    assert rates.seeds.rates == (0.51, 0.31, 0.11)
    assert rates.true_positive_rate == pytest.approx(rates.seeds.mean)
    assert (rates.members, rates.others) == (600, 600)
    # The t interval of three seeds that differ is far wider than that of six hundred canaries.
    assert rates.seeds.low < rates.true_positive_low < rates.true_positive_high < rates.seeds.high


def test_a_bound_is_refuted_at_both_limits():
    rates = rates_at([sample(100.0)], target=0.01)
    assert rates.exceeds(lambda _rate: 0.4)
    assert not rates.exceeds(lambda _rate: 0.5)
    # Below the hits at the counted false positives, and above them at their upper limit.
    assert not rates.exceeds(lambda rate: 0.3 if rate <= 0.011 else 0.6)


def test_a_score_that_is_no_number_ends_the_count():
    broken = sample(100.0)
    broken.scores[3] = np.nan
    with pytest.raises(ValueError, match="not a number"):
        rates_at([broken], target=0.01)


@pytest.mark.parametrize(("size", "alarms"), [(20, 0), (500, 5)])
def test_the_limit_holds_for_others_that_did_not_set_the_thresholds(size, alarms):
    """Uniform scores: one that is unseen passes a threshold with the probability above it."""
    draws = np.random.default_rng(5)
    passed = 0
    for _ in range(600):
        others = np.sort(draws.uniform(size=(3, size)))
        samples = [
            Sample(scores=np.append(row, 2.0), included=np.arange(size + 1) == size)
            for row in others
        ]
        unseen = float(np.mean(1.0 - others[:, size - alarms - 1]))
        passed += unseen > rates_at(samples, target=0.01).false_positive_high
    # 2.5 % of them, within four standard errors.
    assert passed <= 30
