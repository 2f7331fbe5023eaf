"""Fixed point: whatever goes in, Σq² ≤ Δ² comes out or a typed error does."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dp.errors import NonFiniteError, NormExceededError, Reason, SpecError
from dp.noise.grid import Grid, l2_norm, require_norm

STEPS = 2**20


def norm_sq(q):
    return sum(int(v) ** 2 for v in q)


@given(
    x=hnp.arrays(
        dtype=st.sampled_from([np.float32, np.float64]),
        shape=st.integers(1, 40),
        elements={"allow_nan": True, "allow_infinity": True, "allow_subnormal": True},
    ),
    clip_l2=st.sampled_from([1e-6, 0.1, 1.0, 7.3, 1e6]),
    steps=st.sampled_from([102, 1000, STEPS, 2**24]),
)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_any_vector_encodes_within_the_sensitivity(x, clip_l2, steps):
    grid = Grid(clip_l2=clip_l2, steps=steps, dimension=x.size)
    if not np.isfinite(x).all():
        with pytest.raises(NonFiniteError):
            grid.encode(x)
        return
    q = grid.encode(x)
    assert q.dtype == np.int32
    assert norm_sq(q) <= steps**2


@pytest.mark.parametrize("magnitude", [1e38, 1e308, 1.0, 1e-30, 1e-310, 5e-324])
@pytest.mark.parametrize("dimension", [1, 3, 1000, 100_000])
def test_extreme_magnitudes_keep_their_direction(magnitude, dimension):
    direction = np.random.default_rng(0).choice([-1.0, 1.0], dimension)
    clip_l2 = min(magnitude, 1e300)
    clip_l2 = max(clip_l2, 1e-290)
    grid = Grid(clip_l2=clip_l2, steps=STEPS, dimension=dimension)
    q = grid.encode(direction * magnitude)
    assert norm_sq(q) <= STEPS**2
    if magnitude >= 1e-290:
        assert np.array_equal(np.sign(q), direction)
        assert math.sqrt(norm_sq(q)) > STEPS * 0.99


def test_denormals_are_scaled_exactly_before_the_clip():
    grid = Grid(clip_l2=1e-300, steps=2**10, dimension=2)
    q = grid.encode(np.array([3 * 5e-324, -4 * 5e-324]))
    assert q.tolist() == [0, 0]
    grid = Grid(clip_l2=1e-30, steps=2**10, dimension=2)
    assert grid.encode(np.array([2.4e38, -3.2e38], dtype=np.float32)).tolist() == [613, -818]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 20_000, 39_999])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_non_finite_raises(bad, place, dtype):
    x = np.zeros(40_000, dtype=dtype)
    x[place] = bad
    with pytest.raises(NonFiniteError) as caught:
        Grid(clip_l2=1.0, steps=STEPS, dimension=x.size).encode(x)
    assert caught.value.reason is Reason.NON_FINITE


def test_zero_and_negative_zero():
    grid = Grid(clip_l2=1.0, steps=STEPS, dimension=3)
    assert grid.encode(np.array([0.0, -0.0, 0.0])).tolist() == [0, 0, 0]


def test_short_vectors_are_only_rounded():
    grid = Grid(clip_l2=2.0, steps=STEPS, dimension=1000)
    x = np.random.default_rng(1).normal(size=1000)
    x *= 1.9 / np.linalg.norm(x)
    decoded = grid.decode(grid.encode(x).astype(np.int64))
    assert np.abs(decoded - x).max() <= 0.5 / grid.scale * (1 + 1e-9)


def test_clip_acts_on_the_whole_vector():
    grid = Grid(clip_l2=1.0, steps=STEPS, dimension=20_000)
    x = np.random.default_rng(2).normal(size=20_000)
    decoded = grid.decode(grid.encode(x).astype(np.int64))
    expected = x / np.linalg.norm(x) * grid.clip_steps / grid.steps
    assert np.abs(decoded - expected).max() <= 0.5 / grid.scale * (1 + 1e-6)


def test_worst_case_rounding_stays_inside():
    """Every coordinate is rounded up by almost half a step, at the coarsest grid allowed."""
    for dimension in (1, 4, 100, 10_000):
        steps = 16 * math.isqrt(dimension)
        grid = Grid(clip_l2=1.0, steps=steps, dimension=dimension)
        for per_coordinate in np.arange(0.5, grid.clip_steps / math.sqrt(dimension), 0.5):
            x = np.full(dimension, np.nextafter(per_coordinate, np.inf) / grid.scale)
            assert norm_sq(grid.encode(x)) <= steps**2


def test_too_coarse_grid_says_what_to_do():
    Grid(clip_l2=1.0, steps=1600, dimension=10_000)
    with pytest.raises(SpecError, match="at least 1600 steps, or train fewer"):
        Grid(clip_l2=1.0, steps=1599, dimension=10_000)
    with pytest.raises(SpecError, match="at least 1601"):
        Grid(clip_l2=1.0, steps=1600, dimension=10_001)


@pytest.mark.parametrize(
    "change",
    [
        {"clip_l2": 0.0},
        {"clip_l2": math.nan},
        {"clip_l2": math.inf},
        {"clip_l2": 5e-324},
        {"dimension": 0},
        {"steps": 0},
        {"steps": 2**24 + 1},
    ],
)
def test_impossible_grids(change):
    with pytest.raises(SpecError):
        Grid(**{"clip_l2": 1.0, "steps": STEPS, "dimension": 4, **change})


@pytest.mark.parametrize(
    "x", [np.zeros(3), np.zeros((2, 2)), np.zeros(4, dtype=np.int64), np.zeros(4, dtype=complex)]
)
def test_wrong_shapes_and_types(x):
    with pytest.raises(SpecError):
        Grid(clip_l2=1.0, steps=STEPS, dimension=4).encode(x)


def test_decode_refuses_ring_elements():
    with pytest.raises(SpecError):
        Grid(clip_l2=1.0, steps=STEPS, dimension=4).decode(np.zeros(4, dtype=np.uint32))


def test_norm_check_is_exact_at_the_bound():
    require_norm(np.array([3, 4], dtype=np.int32), 5)
    with pytest.raises(NormExceededError) as caught:
        require_norm(np.array([3, 4, 1], dtype=np.int32), 5)
    assert caught.value.reason is Reason.NORM_EXCEEDED
    full = np.zeros(40_000, dtype=np.int32)
    full[7] = 2**24
    require_norm(full, 2**24)
    full[39_999] = 1
    with pytest.raises(NormExceededError):
        require_norm(full, 2**24)
    for extreme in (-(2**31), 2**31 - 1):
        with pytest.raises(NormExceededError):
            require_norm(np.array([extreme], dtype=np.int32), 2**24)


def test_encode_checks_its_own_result(monkeypatch):
    """With the clip's margin removed, the integer check is what refuses."""
    monkeypatch.setattr(Grid, "clip_steps", property(lambda self: self.steps + 2.0))
    with pytest.raises(NormExceededError):
        Grid(clip_l2=1.0, steps=STEPS, dimension=4).encode(np.full(4, 9.0))


# Tile by tile ------------------------------------------------------------------------------------


def encoded_whole(grid, x):
    """The same encoding, with arrays of full length; norm over float64 tiles of 2^13."""
    tiles = [slice(start, start + 2**13) for start in range(0, x.size, 2**13)]
    wide = x.astype(np.float64)
    # Float32 is wide enough in float64 and is not divided by its largest magnitude.
    largest = 1.0 if x.dtype == np.float32 else float(np.abs(wide).max())
    if not wide.any():
        return np.zeros(x.size, dtype=np.int32)
    scaled = wide / largest
    norm = math.sqrt(math.fsum(float(np.dot(scaled[t], scaled[t])) for t in tiles))
    factor = min(largest * grid.scale, grid.clip_steps / norm)
    return np.rint(scaled * factor).astype(np.int32)


@pytest.mark.parametrize("dimension", [1, 5, 2**13, 2**13 + 1, 100_003])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("length", [0.0, 1e-3, 0.5, 1.0, 30.0])
def test_adding_into_ring_elements_is_the_whole_encoding(dimension, dtype, length):
    rng = np.random.default_rng(dimension)
    x = rng.normal(size=dimension)
    x = (x * length / np.linalg.norm(x)).astype(dtype)
    grid = Grid(clip_l2=1.0, steps=STEPS, dimension=dimension)
    expected = encoded_whole(grid, x)
    assert np.array_equal(grid.encode(x), expected)
    out = rng.integers(0, 2**32, dimension, dtype=np.uint32)
    before = out.copy()
    grid.fit(x).add_into(out)
    assert np.array_equal(out, before + expected.view(np.uint32))


@pytest.mark.parametrize(
    "out", [np.zeros(3, np.uint32), np.zeros(4, np.int32), np.zeros((4, 1), np.uint32)]
)
def test_only_ring_elements_of_the_same_length_take_a_vector(out):
    fitted = Grid(clip_l2=1.0, steps=STEPS, dimension=4).fit(np.ones(4))
    with pytest.raises(SpecError, match="ring elements"):
        fitted.add_into(out)


def test_a_vector_that_is_too_long_after_all_leaves_zeros(monkeypatch):
    """Found in the last tile, when all tiles before it were added already."""
    monkeypatch.setattr(Grid, "clip_steps", property(lambda self: self.steps + 2000.0))
    grid = Grid(clip_l2=1.0, steps=STEPS, dimension=40_000)
    x = np.full(40_000, 1.0, dtype=np.float32)
    out = np.full(40_000, 7, dtype=np.uint32)
    with pytest.raises(NormExceededError):
        grid.fit(x).add_into(out)
    assert not out.any()


def test_a_vector_that_changes_under_the_encoder_cannot_pass_the_check():
    """The integers that are checked are the integers that are added."""
    x = np.full(40_000, 0.001, dtype=np.float32)
    fitted = Grid(clip_l2=1.0, steps=STEPS, dimension=40_000).fit(x)
    x[39_999] = 2.0
    out = np.zeros(40_000, dtype=np.uint32)
    with pytest.raises(NormExceededError):
        fitted.add_into(out)
    assert not out.any()


def test_a_fitted_vector_is_not_printed():
    fitted = Grid(clip_l2=1.0, steps=STEPS, dimension=1).fit(np.array([0.123456]))
    assert "0.123456" not in repr(fitted)


def test_the_norm_of_a_vector_takes_no_copy_of_it():
    x = np.random.default_rng(3).normal(size=50_000).astype(np.float32)
    assert l2_norm(x) == pytest.approx(float(np.linalg.norm(x.astype(np.float64))), rel=1e-12)
    assert l2_norm(np.zeros(3, np.float32)) == 0.0
    x[3] = math.nan
    assert math.isnan(l2_norm(x))
