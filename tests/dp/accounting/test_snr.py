"""The predicted cosine against a simulation, and the number of silos it implies."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from dp.accounting import rdp, snr
from dp.errors import SpecError


def test_silos_needed_for_the_documented_plan():
    """ε=8, δ=1e-5, T=30, cosine 0.5; the least noise any such protocol adds."""
    z = rdp.calibrate(target_epsilon=8.0, delta=1e-5, steps=30)
    assert z == pytest.approx(3.495, abs=5e-4)
    needed = {
        d: snr.silos_needed(min_cosine=0.5, noise_multiplier=z, dimension=d)
        for d in (10**3, 10**5, 10**6)
    }
    assert needed == {10**3: 64, 10**5: 639, 10**6: 2018}


def test_dropout_tolerance_has_its_price():
    z = rdp.calibrate(target_epsilon=8.0, delta=1e-5, steps=30)
    divisor = functools.partial(snr.threshold_divisor, colluding=1)
    needed = {
        d: snr.silos_needed(min_cosine=0.5, noise_multiplier=z, dimension=d, divisor=divisor)
        for d in (10**3, 10**5, 10**6)
    }
    assert needed == {10**3: 91, 10**5: 903, 10**6: 2854}
    assert needed[10**5] / 639 == pytest.approx(math.sqrt(2), rel=0.01)


@pytest.mark.parametrize(
    ("dimension", "z", "epsilon"), [(10**3, 0.21213, 677), (10**6, 0.0067082, 666_676)]
)
def test_with_five_silos_the_same_plan_claims_nothing(dimension, z, epsilon):
    divisor = snr.threshold_divisor(5, colluding=1)
    cosine = snr.predicted_cosine(noise_multiplier=z, dimension=dimension, silos=5, divisor=divisor)
    assert cosine == pytest.approx(0.5, rel=1e-3)
    assert rdp.epsilon(rdp.rdp_gaussian(z, 30), 1e-5) == pytest.approx(epsilon, rel=1e-2)


@pytest.mark.parametrize(
    ("n", "c", "t"),
    [(3, 1, 3), (4, 1, 3), (5, 1, 4), (10, 3, 7), (20, 6, 14), (50, 16, 34), (200, 66, 134)],
)
def test_threshold_divisor(n, c, t):
    assert snr.threshold_divisor(n, colluding=c) == t - c


def test_documented_cosines_at_record_level():
    """z = 1.65, B̄ = 100, ten silos: averaged over local trainings, and in one shared sum."""
    plan = {"noise_multiplier": 1.65, "silos": 10, "expected_units": 100}
    for dimension, local, distributed in ((9_200_000, 0.063, 0.196), (100_000, 0.52, 0.89)):
        found = [
            snr.predicted_cosine(dimension=dimension, divisor=divisor(10), **plan)
            for divisor in (snr.alone, snr.undivided)
        ]
        assert found == pytest.approx([local, distributed], rel=0.01)


def test_units_and_silos_needed_at_record_level():
    plan = {"noise_multiplier": 1.65, "dimension": 100_000}
    units = snr.units_needed(min_cosine=0.9, silos=10, divisor=10, **plan)
    for count, reached in ((units, True), (units - 1, False)):
        cosine = snr.predicted_cosine(silos=10, divisor=10, expected_units=count, **plan)
        assert (cosine >= 0.9) == reached
    # The noise shrinks with B̄, and with n shared or √n alone.
    alone = snr.units_needed(min_cosine=0.9, silos=10, divisor=snr.alone(10), **plan)
    assert alone / units == pytest.approx(math.sqrt(10), rel=0.02)
    shared, single = (
        snr.silos_needed(min_cosine=0.9, expected_units=50, divisor=divisor, **plan)
        for divisor in (snr.undivided, snr.alone)
    )
    assert (shared, single) == (22, 465)
    with pytest.raises(SpecError, match="no number of units"):
        snr.units_needed(
            min_cosine=0.999999, noise_multiplier=1e9, dimension=10**9, silos=1, divisor=1
        )


def test_prediction_of_a_noisy_step_matches_a_simulation():
    """Every silo adds zC/√k per coordinate to its sum of B̄ units, then the sum is divided."""
    rng = np.random.default_rng(1)
    d, silos, divisor, units, z = 40_000, 6, 4, 32, 1.2
    signal = rng.normal(size=d)
    signal /= np.linalg.norm(signal)
    total = silos * units * signal + rng.normal(size=(silos, d)).sum(axis=0) * z / math.sqrt(
        divisor
    )
    mean = total / (silos * units)
    cosine = mean @ signal / np.linalg.norm(mean)
    predicted = snr.predicted_cosine(
        noise_multiplier=z, dimension=d, silos=silos, divisor=divisor, expected_units=units
    )
    assert cosine == pytest.approx(predicted, abs=0.01)
    assert 0.4 < predicted < 0.7


def test_prediction_matches_a_simulation():
    rng = np.random.default_rng(0)
    d, silos, divisor, z = 50_000, 12, 5, 0.03
    signal = rng.normal(size=d)
    signal /= np.linalg.norm(signal)
    noise = rng.normal(size=(silos, d)).mean(axis=0) * (z / math.sqrt(divisor))
    noisy = signal + noise
    cosine = noisy @ signal / np.linalg.norm(noisy)
    predicted = snr.predicted_cosine(noise_multiplier=z, dimension=d, silos=silos, divisor=divisor)
    assert cosine == pytest.approx(predicted, abs=0.01)
    assert 0.7 < predicted < 0.8


def test_silos_needed_is_the_least():
    plan = {"noise_multiplier": 2.0, "dimension": 10_000, "signal_fraction": 0.5}
    needed = snr.silos_needed(min_cosine=0.8, **plan)
    assert snr.predicted_cosine(silos=needed, divisor=needed, **plan) >= 0.8
    assert snr.predicted_cosine(silos=needed - 1, divisor=needed - 1, **plan) < 0.8
    assert snr.silos_needed(min_cosine=0.8, noise_multiplier=0.0, dimension=5) == 1


def test_refusals():
    good = {"noise_multiplier": 1.0, "dimension": 10, "silos": 4, "divisor": 2}
    for change in (
        {"silos": 0},
        {"divisor": 0},
        {"dimension": 0},
        {"expected_units": 0},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.nan},
        {"signal_fraction": 0.0},
        {"signal_fraction": 1.1},
    ):
        with pytest.raises(SpecError):
            snr.predicted_cosine(**{**good, **change})
    for cosine in (0.0, 1.0):
        with pytest.raises(SpecError):
            snr.silos_needed(min_cosine=cosine, noise_multiplier=1.0, dimension=10)
    with pytest.raises(SpecError, match="no number of silos"):
        snr.silos_needed(
            min_cosine=0.999999, noise_multiplier=1e12, dimension=10**8, divisor=lambda _: 1
        )
