"""The report's statistics against scipy, against published values and against their definitions."""

import math
import random

import pytest
import scipy.stats

from lab.report.interval import Stratum, combined, over_seeds
from lab.report.paired import Discordance, holm, mcnemar, paired_difference
from lab.wilson import wilson


def test_the_seed_interval_is_scipys():
    rates = [0.61, 0.55, 0.64, 0.58]
    spread = over_seeds(rates)
    low, high = scipy.stats.t.interval(0.95, 3, loc=sum(rates) / 4, scale=scipy.stats.sem(rates))
    assert (spread.low, spread.high) == pytest.approx((low, high))
    assert spread.deviation == pytest.approx(scipy.stats.tstd(rates))


def test_two_seeds_have_no_interval_and_one_no_deviation():
    assert math.isnan(over_seeds([0.1, 0.2]).low)
    assert math.isnan(over_seeds([0.1]).deviation)
    with pytest.raises(ValueError):
        over_seeds([])


def test_wilson_is_scipys():
    for successes, tasks in ((0, 20), (7, 9), (200, 400)):
        expected = scipy.stats.binomtest(successes, tasks).proportion_ci(0.95, method="wilson")
        interval = wilson(successes, tasks)
        assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))


def test_one_stratum_is_wilson():
    one = combined([Stratum(weight=1.0, successes=3, tasks=25)])
    assert one == wilson(3, 25)


def test_a_difference_of_two_proportions_is_newcombes():
    """MOVER with weights 1 and 1: Newcombe 1998, Stat. Med. 17, Table II method 10, by symmetry.

    His p₁ − p₂ is p₁ + (1 − p₂) − 1, and Wilson's limits of 1 − p₂ are the mirrored ones. Example
    (a): 56/70 and 48/80 give [0.0524, 0.3339].
    """
    both = combined(
        [Stratum(weight=1.0, successes=56, tasks=70), Stratum(weight=1.0, successes=32, tasks=80)]
    )
    assert (both.low - 1, both.high - 1) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_far_from_the_ends_it_is_the_binomial_variance():
    strata = [(0.5, 40_000, 100_000), (0.3, 55_000, 100_000), (0.2, 30_000, 100_000)]
    interval = combined([Stratum(weight=w, successes=x, tasks=n) for w, x, n in strata])
    sigma = math.sqrt(sum(w * w * (x / n) * (1 - x / n) / n for w, x, n in strata))
    assert interval.high - interval.low == pytest.approx(2 * 1.959963985 * sigma, rel=1e-3)
    assert interval.rate == pytest.approx(sum(w * x / n for w, x, n in strata))


def test_the_macro_interval_covers_as_often_as_it_says():
    stream = random.Random(11)  # noqa: S311
    rates, tasks = (0.05, 0.4, 0.9), 60
    covered = 0
    for _ in range(1500):
        interval = combined(
            [
                Stratum(
                    weight=1 / 3,
                    successes=sum(stream.random() < p for _ in range(tasks)),
                    tasks=tasks,
                )
                for p in rates
            ]
        )
        covered += interval.low <= sum(rates) / 3 <= interval.high
    # Binomial(1500, 0.95) has a standard deviation of 0.0056.
    assert 0.93 <= covered / 1500 <= 0.975


def test_strata_are_refused_when_they_are_none():
    with pytest.raises(ValueError):
        combined([])
    with pytest.raises(ValueError):
        combined([Stratum(weight=-1.0, successes=1, tasks=2)])


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (5, 5), (9, 1), (59, 6), (700, 620)])
def test_mcnemar_is_the_exact_binomial_test(b, c):
    counts = Discordance(tasks=2000, only_first=b, only_second=c)
    expected = scipy.stats.binomtest(b, b + c).pvalue if b + c else 1.0
    assert mcnemar(counts) == pytest.approx(expected, rel=1e-9)


def test_discordance_counts_task_by_task():
    counts = Discordance.of("110010", "010101")
    assert counts == Discordance(tasks=6, only_first=2, only_second=2)
    with pytest.raises(ValueError):
        Discordance.of("11", "1")


def test_holm_is_the_published_procedure():
    """Holm 1979; the values are those of R's p.adjust(c(.01, .04, .03, .005), "holm")."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_paired_interval_is_that_of_the_differences():
    """With one stratum: mean ± 1.96·s/√n of d ∈ {−1, 0, 1}, s with n in the denominator."""
    first, second = "1101101110", "0101001100"
    differences = [int(a) - int(b) for a, b in zip(first, second, strict=True)]
    found = paired_difference({3: [Discordance.of(first, second)]})
    mean = sum(differences) / 10
    half = 1.959963984540054 * scipy.stats.tstd(differences) * math.sqrt(9 / 10) / math.sqrt(10)
    assert (found.value, found.low, found.high) == pytest.approx((mean, mean - half, mean + half))
    with pytest.raises(ValueError):
        paired_difference({})
