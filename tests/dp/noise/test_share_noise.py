"""Noise shares: enough variance for every survivor set, no wrap, nothing in it of the data."""

from __future__ import annotations

import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from dp.config import Mode, PrivacySpec, RecordSpec
from dp.errors import RingOverflowError, SpecError
from dp.noise.grid import Grid
from dp.noise.metrics_block import MetricsBlock
from dp.noise.share import add_noise, lift, metrics_sigma, no_wrap, per_silo_sigma, summed_sigma
from dp.noise.source import NoiseSource
from dp.noise.unit_sum import UnitSum
from tests.kit.dp.shares import BLOCK, GRID, METRICS, D, receipt, release


def threshold(n, c):
    return max((n + c) // 2 + 1, c + 2)


@pytest.mark.parametrize("z", [1e-3, 0.3, 1.0, 8.21])
def test_every_survivor_set_keeps_the_variance(z):
    """Exhaustive over silos, survivors and which c of them added nothing."""
    target = (Fraction(z) * 2**20) ** 2
    checked = 0
    for n in range(3, 8):
        for c in range(1, n - 1):
            t = threshold(n, c)
            if t > n:
                continue
            for n_min in range(1, n + 1):
                variance = Fraction(per_silo_sigma(z, 2**20, t, n_min, c)) ** 2
                for size in range(max(t, n_min), n + 1):
                    for survivors in itertools.combinations(range(n), size):
                        for silent in itertools.combinations(survivors, c):
                            assert variance * len(set(survivors) - set(silent)) >= target
                            checked += 1
    assert checked > 1000


def test_sizing_for_all_silos_would_not_survive_a_drop():
    sigma = per_silo_sigma(1.0, 2**20, 7, 8, 3)
    assert sigma == pytest.approx(2**20 / math.sqrt(5))
    assert sigma**2 * (8 - 3) >= 2.0**40 * (1 - 1e-12)
    assert (2**20 / math.sqrt(10)) ** 2 * 5 < 2.0**40 * 0.6


def test_least_sigma_is_enforced():
    assert per_silo_sigma(0.0, 2**20, 3, 3, 1) == 0.0
    assert per_silo_sigma(8.0, 1, 5, 5, 1) == 4.0
    for arguments in (
        (7.99, 1, 5, 5, 1),
        (-1.0, 2**20, 3, 3, 1),
        (math.nan, 2**20, 3, 3, 1),
        (math.inf, 2**20, 3, 3, 1),
        (1e308, 2**24, 3, 3, 1),
        (1.0, 2**20, 3, 3, 3),
        (1.0, 2**20, 3, 3, -1),
    ):
        with pytest.raises(SpecError):
            per_silo_sigma(*arguments)


def test_ring_bound_is_exact():
    no_wrap(7, 1, 72, 0.0, ring_bits=10)
    with pytest.raises(RingOverflowError):
        no_wrap(8, 1, 63, 0.0, ring_bits=10)
    no_wrap(1, 1, 498, math.nextafter(1.0 + 1 / 12, 0.0), ring_bits=10)
    with pytest.raises(RingOverflowError):
        no_wrap(1, 1, 498, math.nextafter(1.0 + 1 / 12, 2.0), ring_bits=10)
    no_wrap(10, 1, 2**20, summed_sigma(per_silo_sigma(1.0, 2**20, 7, 7, 3), 10))
    # A sum of up to 256 + 8·16 unit vectors per silo wraps at this grid.
    with pytest.raises(RingOverflowError):
        no_wrap(10, 384, 2**20, 0.0)
    for sigma in (math.nan, math.inf, -1.0):
        with pytest.raises(RingOverflowError):
            no_wrap(1, 1, 1, sigma)
    for arguments in ((0, 1, 1, 0.0), (1, 0, 1, 0.0), (1, 1, 0, 0.0)):
        with pytest.raises(SpecError):
            no_wrap(*arguments)


@pytest.mark.parametrize("sign", [1, -1])
def test_ring_sum_is_the_integer_sum_at_the_bound(sign):
    steps, n = 2**24, 127
    no_wrap(n, 1, steps, 0.0)
    total = np.zeros(1, dtype=np.uint32)
    for _ in range(n):
        total += np.array([sign * steps], dtype=np.int32).view(np.uint32)
    assert lift(total).tolist() == [sign * n * steps]
    with pytest.raises(RingOverflowError):
        no_wrap(n + 1, 1, steps, 0.0)
    wrapped = np.array([128 * steps], dtype=np.int64).astype(np.uint32)
    assert lift(wrapped).tolist() != [128 * steps]
    with pytest.raises(SpecError):
        lift(np.zeros(1, dtype=np.int64))


def test_without_noise_each_silo_leaves_its_own_pattern_in_the_sum():
    n, total = 5, np.zeros(D + 2, dtype=np.uint32)
    for silo in range(n):
        pattern = np.full(D, (-1) ** silo * 2.0**silo / 1024)
        total += release(delta=pattern, metrics={"episodes": 2**silo, "successes": 0})
    signed = lift(total)
    expected = sum((-1) ** silo * 2**silo for silo in range(n)) / 1024
    assert np.array_equal(GRID.decode(signed[:D]), np.full(D, expected))
    means = BLOCK.decode(signed[D:], n, 0.0)
    assert means["episodes"].mean == pytest.approx(31 / 5, abs=64 / BLOCK.scale)
    assert means["successes"].mean == 0.0


def test_noise_is_on_every_coordinate_with_its_own_scale():
    grid = Grid(clip_l2=1.0, steps=2**20, dimension=150_000)
    y = release(
        grid=grid,
        delta=np.zeros(150_000, dtype=np.float32),
        metrics_sigma=9000.0,
        sigma=700_000.0,
        receipt=receipt(Mode.SILO, dimension=150_000),
    )
    noise = lift(y)[:150_000]
    assert noise.std() == pytest.approx(700_000.0, rel=0.01)
    # Tiles are noised independently: no stretch repeats.
    assert np.unique(noise[: 2**16] - noise[2**16 : 2**17]).size > 60_000
    assert np.abs(lift(y)[150_000:] - BLOCK.encode(METRICS)).max() < 9000 * 8


@pytest.mark.parametrize("fill", ["data", "zeros", "none"])
def test_noise_is_drawn_first_and_does_not_depend_on_the_data(monkeypatch, fill):
    """With the key fixed, output minus encoding is the same noise whatever the data are."""
    monkeypatch.setattr("dp.noise.source.os.urandom", bytes)
    delta = {"data": np.full(D, 0.01), "zeros": np.zeros(D), "none": None}[fill]
    metrics = None if fill == "none" else METRICS
    y = release(
        delta=delta,
        metrics=metrics,
        sigma=5e5,
        metrics_sigma=5e3,
        source=NoiseSource.fresh("test"),
        receipt=receipt(Mode.SILO),
    )
    encoded = np.zeros(D + 2, dtype=np.int64)
    if fill == "data":
        encoded[:D] = GRID.encode(delta)
    if metrics is not None:
        encoded[D:] = BLOCK.encode(metrics)
    noise = np.zeros(D + 2, dtype=np.uint32)
    source = NoiseSource.fresh("again")
    add_noise(noise[:D], 5e5, source)
    add_noise(noise[D:], 5e3, source)
    assert np.array_equal(lift(y) - encoded, lift(noise))


def test_pure_noise_variance_over_survivors_with_silent_colluders():
    """Three silos, one of which adds nothing: the sum still holds (zΔ)²."""
    z, n, c, t = 1.0, 4, 1, 3
    sigma = per_silo_sigma(z, GRID.steps, t, t, c)
    grid = Grid(clip_l2=1.0, steps=2**20, dimension=40_000)
    total = np.zeros(40_002, dtype=np.uint32)
    for _ in range(t - c):
        total += release(
            grid=grid,
            delta=None,
            metrics=None,
            sigma=sigma,
            metrics_sigma=sigma,
            source=NoiseSource.fresh("test"),
            receipt=receipt(Mode.SILO, dimension=40_000),
        )
    no_wrap(n, 1, grid.steps, summed_sigma(sigma, n))
    assert lift(total).std() == pytest.approx(z * grid.steps, rel=5 / math.sqrt(2 * 40_000))


# Several units in one sum -------------------------------------------------------------------------

LOCAL = PrivacySpec(
    mode=Mode.RECORD_LOCAL,
    unit="task",
    clip_l2=1.0,
    noise_multiplier=1.4,
    delta=1e-5,
    epsilon_cap=8.0,
    grid=2**17,
    metrics_noise_multiplier=6.0,
    record=RecordSpec(sampling_rate=0.1, expected_units=64, steps_per_round=4, delta_clip_l2=1.0),
)
DISTRIBUTED = dataclasses.replace(
    LOCAL,
    mode=Mode.RECORD_DISTRIBUTED,
    record=dataclasses.replace(LOCAL.record, delta_clip_l2=None),
)
SILO = dataclasses.replace(LOCAL, mode=Mode.SILO, record=None)
COMPOSED = dataclasses.replace(
    LOCAL, record=dataclasses.replace(LOCAL.record, silo_noise_multiplier=2.0)
)
NONE = dataclasses.replace(SILO, mode=Mode.NONE, noise_multiplier=0.0, metrics_noise_multiplier=0.0)


@pytest.mark.parametrize("sign", [1, -1])
def test_ring_at_and_past_the_bound_with_the_most_units(sign):
    """n silos of B_max units each, every unit at the bound: exact up to it, wrapped past it."""
    n, units_most = 10, DISTRIBUTED.record.max_units
    assert units_most == 128
    steps = (2**31 - 1) // (n * units_most) - 1
    no_wrap(n, units_most, steps, 0.0)
    with pytest.raises(RingOverflowError):
        no_wrap(n, units_most, steps + 1, 0.0)
    # Noise takes its share of the ring: 12 standard deviations do not fit beside the units.
    with pytest.raises(RingOverflowError):
        no_wrap(n, units_most, steps, summed_sigma(per_silo_sigma(1.4, steps, 7, 7, 3), n))
    grid = Grid(clip_l2=1.0, steps=steps, dimension=1)
    one = sign * round(grid.clip_steps)

    def summed(silos):
        total = np.zeros(1, dtype=np.uint32)
        for _ in range(silos):
            units = UnitSum(grid, max_units=units_most)
            for _ in range(units_most):
                units.add(np.array([sign * 9.0], dtype=np.float32))
            units.add_to(total)
        return lift(total).tolist()

    assert summed(n) == [n * units_most * one]
    assert summed(n + 1) != [(n + 1) * units_most * one]


def test_units_of_several_silos_add_up_under_noise_for_every_survivor_set():
    """Whoever is left, and with c of them silent: the units' sum, and at least (zΔ)² of noise."""
    n, c, z, dimension = 4, 1, 1.0, 20_000
    t = threshold(n, c)
    grid = Grid(clip_l2=1.0, steps=2**12, dimension=dimension)
    sigma = per_silo_sigma(z, grid.steps, t, t, c)
    allowed = 5 / math.sqrt(2 * dimension)

    def upload(silo, *, silent):
        units = UnitSum(grid, max_units=3)
        for k in range(silo % 3 + 1):
            units.add(np.full(dimension, 2.0 ** -(silo + k) / 200, dtype=np.float32))
        noise = np.zeros(dimension, dtype=np.uint32)
        if not silent:
            add_noise(noise, sigma, NoiseSource.fresh("test"))
        plain = np.zeros(dimension, dtype=np.uint32)
        units.add_to(plain)
        return noise + plain, plain

    for size in range(t, n + 1):
        for survivors in itertools.combinations(range(n), size):
            uploads = [upload(silo, silent=silo == survivors[0]) for silo in survivors]
            noisy = sum((y for y, _ in uploads), np.zeros(dimension, dtype=np.uint32))
            plain = sum((y for _, y in uploads), np.zeros(dimension, dtype=np.uint32))
            error = lift(noisy - plain)
            assert error.std() >= z * grid.steps * (1 - allowed)
            assert error.std() == pytest.approx(summed_sigma(sigma, size - c), rel=allowed)


def test_noise_of_steps_and_of_silos_hangs_together_in_nothing():
    """Four steps of three silos: |ρ| < 5/√d for every pair, and for every lag inside one."""
    dimension = 60_000
    grid = Grid(clip_l2=1.0, steps=2**13, dimension=dimension)
    rows = []
    for _ in range(12):
        y = release(
            grid=grid,
            delta=None,
            metrics=None,
            sigma=9000.0,
            metrics_sigma=9000.0,
            receipt=receipt(Mode.RECORD_DISTRIBUTED, dimension=dimension),
        )
        rows.append(lift(y)[:dimension] / 9000.0)
    noise = np.array(rows)
    limit = 5 / math.sqrt(dimension)
    correlation = np.corrcoef(noise) - np.eye(12)
    assert np.abs(correlation).max() < limit
    for lag in (1, 2, 2**13, 2**14, 2**15):
        for row in noise[:3]:
            assert abs(np.corrcoef(row[lag:], row[:-lag])[0, 1]) < 5 / math.sqrt(dimension - lag)
    # The control: the same noise under another sign would be seen.
    assert abs(np.corrcoef(noise[0], -noise[0])[0, 1]) > limit


# Metrics ------------------------------------------------------------------------------------------

FAMILIES = MetricsBlock(
    (
        "update_norm_sq",
        "episodes/grid",
        "successes/grid",
        "episodes/text",
        "successes/text",
    ),
    (4.0, 240.0, 240.0, 240.0, 240.0),
)
COHORT = {"tries": 4, "t": 7, "n_min": 8, "c": 3}


def test_metrics_noise_of_every_mode():
    steps = FAMILIES.unit_steps(tries=4)
    assert 0 < steps < FAMILIES.grid / 50

    def sigma(spec, **change):
        return metrics_sigma(spec, FAMILIES, **{**COHORT, **change})

    whole = per_silo_sigma(6.0, FAMILIES.grid, 7, 8, 3)
    assert sigma(NONE) == 0.0
    assert sigma(SILO) == whole
    assert sigma(DISTRIBUTED) == per_silo_sigma(6.0, steps, 7, 8, 3) < whole
    # Alone it holds against everybody, whatever the cohort is.
    assert sigma(LOCAL) == sigma(LOCAL, t=2, n_min=2, c=1) >= 6.0 * steps
    assert sigma(COMPOSED) == whole
    assert sigma(COMPOSED, t=200, n_min=200, tries=60) == sigma(LOCAL, tries=60) > 6.0 * steps


def test_a_user_moves_the_whole_block():
    for spec in (LOCAL, DISTRIBUTED):
        user = dataclasses.replace(spec, unit="user")
        divisor = (1, 1, 0) if spec is LOCAL else (7, 8, 3)
        expected = per_silo_sigma(6.0, FAMILIES.grid, *divisor)
        assert metrics_sigma(user, FAMILIES, **COHORT) == expected


@pytest.mark.parametrize("spec", [DISTRIBUTED, SILO, COMPOSED])
def test_shared_metrics_noise_keeps_its_variance_for_every_survivor_set(spec):
    needed = {"task": FAMILIES.unit_steps(tries=4), "silo": FAMILIES.grid}
    owed = {DISTRIBUTED: ["task"], SILO: ["silo"], COMPOSED: ["task", "silo"]}[spec]
    for n in range(3, 9):
        for c in range(1, n - 1):
            t = threshold(n, c)
            if t > n:
                continue
            variance = Fraction(metrics_sigma(spec, FAMILIES, tries=4, t=t, n_min=2, c=c)) ** 2
            for survivors in range(t, n + 1):
                for unit in owed:
                    target = (6 * Fraction(needed[unit])) ** 2
                    assert variance * (survivors - c) >= target
                    if spec is COMPOSED and unit == "task":
                        # The task's guarantee does not count on any other silo.
                        assert variance >= target
