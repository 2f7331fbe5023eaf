"""The sum of units: each moves it by at most Δ, none can spoil it, and it never shows itself."""

from __future__ import annotations

import copy
import math
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dp.errors import NormExceededError, Reason, ReceiptError, SpecError, TooManyUnitsError
from dp.noise.grid import Grid
from dp.noise.share import add_noise, lift, no_wrap, per_silo_sigma
from dp.noise.source import NoiseSource
from dp.noise.unit_sum import UnitSum

D = 40
GRID = Grid(clip_l2=0.7, steps=2**17, dimension=D)


def total(*vectors, grid=GRID, start=None):
    """What the vectors add up to, read through the only way out."""
    units = UnitSum(grid, max_units=max(1, len(vectors)))
    for vector in vectors:
        units.add(vector)
    out = np.zeros(grid.dimension, dtype=np.uint32) if start is None else start
    units.add_to(out)
    return lift(out)


def norm_sq(integers):
    return sum(int(value) ** 2 for value in integers)


ANY = hnp.arrays(
    dtype=st.sampled_from([np.float32, np.float64]),
    shape=D,
    elements={"allow_nan": True, "allow_infinity": True, "allow_subnormal": True},
)


@given(
    vector=ANY,
    clip_l2=st.sampled_from([1e-6, 0.7, 1e6]),
    steps=st.sampled_from([2**9, 2**17, 2**24]),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_unit_moves_the_sum_by_at_most_the_clip(vector, clip_l2, steps):
    grid = Grid(clip_l2=clip_l2, steps=steps, dimension=D)
    others = [np.full(D, 0.3 * clip_l2, dtype=np.float32), np.eye(D, dtype=np.float32)[3]]
    before = total(*others, grid=grid)
    change = total(others[0], vector, others[1], grid=grid) - before
    assert norm_sq(change) <= steps**2
    # Not finite: nothing at all, and the others' integers are the same to the bit.
    if not np.isfinite(vector).all():
        assert not change.any()


@pytest.mark.parametrize(
    "vector",
    [
        np.full(D, 1e38, dtype=np.float32),
        np.full(D, -3.4028235e38, dtype=np.float32),
        np.full(D, 1e-45, dtype=np.float32),
        np.full(D, -0.0, dtype=np.float32),
        np.full(D, 1e308),
        np.full(D, 5e-324),
    ],
)
def test_extremes_are_clipped_in_their_own_direction(vector):
    integers = total(vector)
    assert norm_sq(integers) <= GRID.steps**2
    if abs(vector[0]) > 1:
        assert np.array_equal(np.sign(integers), np.sign(vector))
        assert math.sqrt(norm_sq(integers)) > 0.999 * GRID.steps
    else:
        assert not integers.any()


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("place", [0, 17, D - 1])
def test_a_unit_that_is_not_finite_is_null_and_counted(bad, dtype, place):
    good = np.linspace(-1, 1, D).astype(dtype)
    spoiled = good.copy()
    spoiled[place] = bad
    units = UnitSum(GRID, max_units=3)
    for vector in (good, spoiled, good):
        units.add(vector)
    assert units.null_units == 1
    # It was a unit all the same: the sum is full.
    with pytest.raises(TooManyUnitsError):
        units.add(good)
    assert np.array_equal(total(good, spoiled, good), total(good, good))


def test_a_signalling_nan_is_null_without_a_warning():
    vector = np.full(D, 0.1, dtype=np.float32)
    vector.view(np.uint32)[5] = 0x7FA00000
    assert not total(vector).any()


def test_the_sum_is_exact_and_its_order_is_nobodys_business():
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=D).astype(np.float32) for _ in range(7)]
    expected = sum(GRID.encode(vector).astype(np.int64) for vector in vectors)
    assert np.array_equal(total(*vectors), expected)
    assert np.array_equal(total(*reversed(vectors)), expected)


def test_float32_and_float64_agree_to_one_step():
    rng = np.random.default_rng(1)
    for scale in (1e-30, 1e-3, 1.0, 1e30):
        vector = (rng.normal(size=D) * scale).astype(np.float32)
        assert np.abs(total(vector) - total(vector.astype(np.float64))).max() <= 1


def test_noise_that_is_there_already_stays():
    start = np.full(D, 2**32 - 5, dtype=np.uint32)
    assert np.array_equal(total(np.ones(D), start=start), GRID.encode(np.ones(D)) - 5)


def test_the_ring_holds_the_largest_sum():
    """B_max units, all at the bound and all alike, at the finest grid that the ring allows."""
    units_most = 256 + 8 * 16
    steps = (2**31 - 1) // units_most - 1
    no_wrap(1, units_most, steps, 0.0)
    grid = Grid(clip_l2=1.0, steps=steps, dimension=1)
    vector = np.array([-5.0], dtype=np.float32)
    per_unit = int(grid.encode(vector)[0])
    assert per_unit == -round(grid.clip_steps)
    assert total(*[vector] * units_most, grid=grid).tolist() == [units_most * per_unit]


def test_one_unit_too_many_ends_the_sum():
    units = UnitSum(GRID, max_units=2)
    units.add(np.ones(D))
    units.add(np.ones(D))
    with pytest.raises(TooManyUnitsError, match="at most 2") as caught:
        units.add(np.ones(D))
    assert caught.value.reason is Reason.TOO_MANY_UNITS
    out = np.zeros(D, dtype=np.uint32)
    for attempt in (lambda: units.add_to(out), lambda: units.add(np.ones(D))):
        with pytest.raises(ReceiptError):
            attempt()
    assert not out.any()


def test_an_empty_sum_is_zero():
    assert not total().any()


def test_it_is_added_once():
    units = UnitSum(GRID, max_units=2)
    units.add(np.ones(D))
    for wrong in (np.zeros(D + 1, np.uint32), np.zeros(D, np.int32)):
        with pytest.raises(SpecError):
            units.add_to(wrong)
    units.add_to(np.zeros(D, dtype=np.uint32))
    with pytest.raises(ReceiptError):
        units.add_to(np.zeros(D, dtype=np.uint32))
    with pytest.raises(ReceiptError):
        units.add(np.ones(D))


def test_a_norm_that_is_too_long_after_all_ends_the_sum(monkeypatch):
    units = UnitSum(GRID, max_units=3)
    units.add(np.full(D, 0.01))
    monkeypatch.setattr(Grid, "clip_steps", property(lambda self: self.steps + 200.0))
    with pytest.raises(NormExceededError):
        units.add(np.ones(D))
    out = np.zeros(D, dtype=np.uint32)
    with pytest.raises(ReceiptError):
        units.add_to(out)
    assert not out.any()


@pytest.mark.parametrize("wrong", [np.ones(D + 1), np.ones((1, D)), np.ones(D, dtype=np.int32)])
def test_other_shapes_and_types_are_refused_and_cost_nothing(wrong):
    units = UnitSum(GRID, max_units=1)
    with pytest.raises(SpecError):
        units.add(wrong)
    units.add(np.ones(D))


@pytest.mark.parametrize("most", [0, -1, True, 2.0])
def test_impossible_limits(most):
    with pytest.raises(SpecError):
        UnitSum(GRID, max_units=most)


def test_without_noise_it_is_never_seen():
    units = UnitSum(GRID, max_units=2)
    units.add(np.full(D, 0.05, dtype=np.float32))
    assert repr(units) == "<UnitSum d=40 max_units=2 sum=redacted>"
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ReceiptError):
            attempt(units)
    with pytest.raises((TypeError, ValueError)):
        np.asarray(units, dtype=np.float64)
    public = {name for name in dir(units) if not name.startswith("_")}
    assert public == {"add", "add_to", "grid", "max_units", "null_units"}


def test_pure_noise_is_the_same_however_many_units_there_are():
    """The spread of the noise must not tell N: not for N, N ± 1 or no units at all."""
    dimension, z = 100_000, 1.3
    grid = Grid(clip_l2=1.0, steps=2**13, dimension=dimension)
    sigma = per_silo_sigma(z, grid.steps, 1, 1, 0)
    vector = np.zeros(dimension, dtype=np.float32)
    vector[0] = 1.0
    spreads = []
    for count in (0, 19, 20, 21):
        units = UnitSum(grid, max_units=30)
        for _ in range(count):
            units.add(vector)
        out = np.zeros(dimension, dtype=np.uint32)
        add_noise(out, sigma, NoiseSource.fresh("test"))
        units.add_to(out)
        spreads.append(lift(out)[1:].std())
    allowed = 5 / math.sqrt(2 * dimension)
    for spread in spreads:
        assert spread == pytest.approx(z * grid.steps, rel=allowed)


def test_adding_takes_no_second_vector():
    dimension = 2_000_000
    grid = Grid(clip_l2=1.0, steps=2**17, dimension=dimension)
    vector = np.ones(dimension, dtype=np.float32)
    tracemalloc.start()
    try:
        units = UnitSum(grid, max_units=2)
        units.add(vector)
        units.add(vector)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * dimension + (1 << 20)
