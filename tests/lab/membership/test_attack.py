"""Scores on synthetic mechanisms, where the best test is known."""

from __future__ import annotations

import numpy as np
import pytest

from lab.membership.attack import ridge, step_log_ratio
from lab.membership.rates import Sample, rates_at
from lab.membership.tradeoff import sampled_gaussian

Q, Z, STEPS = 0.5, 1.2, 6
TARGET = 0.01


def unit_rows(rng, count, dimension, *, common):
    """Gradients of length 1 that share a direction: the larger ``common``, the more of it."""
    rows = rng.standard_normal((count, dimension)) / np.sqrt(dimension)
    rows += common * np.ones(dimension) / np.sqrt(dimension)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def released(rng, rows, included, *, z):
    sampled = included & (rng.random(len(rows)) < Q)
    return sampled @ rows + z * rng.standard_normal(rows.shape[1])


def attacked(make, *, repeats, count, z=Z):
    """One sample of many trainings, scored by a function of rows, release and coins."""
    rng = np.random.default_rng(7)
    scores, coins = [], []
    for _ in range(repeats):
        included = rng.random(count) < 0.5
        total = np.zeros(count)
        for _ in range(STEPS):
            rows = make.rows(rng, count)
            total += make.score(rows, released(rng, rows, included, z=z), included)
        scores.append(total)
        coins.append(included)
    return Sample(scores=np.concatenate(scores), included=np.concatenate(coins))


class Alone:
    """No canary's gradient has anything of another's: each is under the mechanism by itself."""

    def rows(self, rng, count):
        return np.linalg.qr(rng.standard_normal((count, count)))[0]

    def score(self, rows, y, included):
        return step_log_ratio(
            rows @ rows.T, rows @ y, np.zeros(len(rows)), sampling_rate=Q, noise_std=Z
        )


class Tied:
    """Gradients with much in common, as those of one model's canaries have."""

    def rows(self, rng, count):
        return unit_rows(rng, count, 2 * count, common=0.8)


class Matched(Tied):
    def score(self, rows, y, included):
        return rows @ y


class Unknown(Tied):
    def score(self, rows, y, included):
        half = np.full(len(rows), 0.5)
        return step_log_ratio(rows @ rows.T, rows @ y, half, sampling_rate=Q, noise_std=Z)


class Known(Tied):
    def score(self, rows, y, included):
        coins = included.astype(np.float64)
        return step_log_ratio(rows @ rows.T, rows @ y, coins, sampling_rate=Q, noise_std=Z)


@pytest.fixture(scope="module")
def curve():
    return sampled_gaussian(q=Q, z=Z, steps=STEPS, epsilon_max=12.0)


def test_the_ratio_of_a_canary_alone_has_the_power_of_the_curve(curve):
    rates = rates_at([attacked(Alone(), repeats=150, count=80)], target=TARGET)
    assert rates.true_positive_rate > 0.85 * curve.power(TARGET)
    assert not rates.exceeds(curve.power)


def test_half_of_the_noise_is_found_out(curve):
    rates = rates_at([attacked(Alone(), repeats=50, count=80, z=Z / 2)], target=TARGET)
    assert rates.exceeds(curve.power)


def test_whoever_knows_more_finds_more_and_none_more_than_the_curve(curve):
    powers = []
    for make in (Matched(), Unknown(), Known()):
        rates = rates_at([attacked(make, repeats=100, count=80)], target=TARGET)
        assert not rates.exceeds(curve.power)
        powers.append(rates.true_positive_rate / curve.power(TARGET))
    assert powers == sorted(powers)
    assert powers[0] < 0.35
    assert powers[2] > 0.6


def test_the_ratio_is_that_of_the_covariance_written_out():
    rng = np.random.default_rng(1)
    rows = unit_rows(rng, 7, 12, common=0.5)
    chances, y = rng.random(7), rng.standard_normal(12)
    found = step_log_ratio(rows @ rows.T, rows @ y, chances, sampling_rate=Q, noise_std=Z)
    for index, row in enumerate(rows):
        covariance, rest = Z**2 * np.eye(12), y.copy()
        for other, chance in zip(rows, Q * chances, strict=True):
            if other is not row and not np.array_equal(other, row):
                covariance += chance * (1 - chance) * np.outer(other, other)
                rest -= chance * other
        weighted = np.linalg.solve(covariance, row)
        expected = np.log(1 - Q + Q * np.exp(weighted @ rest - weighted @ row / 2))
        assert found[index] == pytest.approx(expected, abs=1e-9)


def test_a_canarys_own_coin_is_not_in_its_score():
    rng = np.random.default_rng(2)
    rows = unit_rows(rng, 30, 40, common=0.8)
    coins, y = (rng.random(30) < 0.5).astype(np.float64), rng.standard_normal(40)
    turned = coins.copy()
    turned[4] = 1.0 - turned[4]
    before, after = (
        step_log_ratio(rows @ rows.T, rows @ y, known, sampling_rate=Q, noise_std=Z)
        for known in (coins, turned)
    )
    assert after[4] == pytest.approx(before[4], abs=1e-9)
    assert (np.abs(np.delete(after - before, 4)) > 1e-6).all()


def test_ridge_takes_the_others_out_of_a_move():
    rng = np.random.default_rng(3)
    rows = unit_rows(rng, 400, 800, common=0.8)
    included = rng.random(400) < 0.5
    move = included @ rows + 0.5 * rng.standard_normal(800)
    # To first order, what a canary's loss loses is its gradient's product with the move.
    loss = Sample(scores=rows @ move, included=included)
    apart = Sample(
        scores=ridge(rows.astype(np.float32), move.astype(np.float32), penalty=0.25),
        included=included,
    )
    by_loss, by_ridge = (rates_at([one], target=TARGET) for one in (loss, apart))
    assert by_ridge.true_positive_low > by_loss.true_positive_high
