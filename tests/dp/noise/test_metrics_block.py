"""The metrics block: bounds, integer norm, means with standard errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp.errors import NonFiniteError, SpecError
from dp.noise.estimate import Estimate
from dp.noise.metrics_block import MetricsBlock

BLOCK = MetricsBlock(("episodes", "successes", "delta_sq"), (64.0, 64.0, 1.0))


@given(
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30),
    grid=st.sampled_from([88, 1000, 2**16, 2**24]),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_norm_never_exceeds_the_grid(values, grid):
    names = tuple(f"m{i}" for i in range(len(values)))
    block = MetricsBlock(names, tuple(1.0 + i for i in range(len(values))), grid)
    q = block.encode(dict(zip(names, values, strict=True)))
    assert q.dtype == np.int32
    assert q.min() >= 0
    assert sum(int(v) ** 2 for v in q) <= grid**2


def test_values_at_their_bounds_are_not_biased():
    q = BLOCK.encode({"episodes": 64, "successes": 1e300, "delta_sq": 1.0})
    assert q.tolist() == [BLOCK.scale] * 3
    assert BLOCK.scale == math.isqrt(2**32 // 3)
    means = BLOCK.decode(q.astype(np.int64), 1, 0.0)
    assert means["episodes"].mean == pytest.approx(64.0)
    assert means["delta_sq"].mean == pytest.approx(1.0)


def test_sum_decodes_to_mean_and_standard_error():
    silos = [
        {"episodes": 10, "successes": 2, "delta_sq": 0.25},
        {"episodes": 30, "successes": 4, "delta_sq": 0.75},
        {"episodes": -5, "successes": 0, "delta_sq": 0.5},
    ]
    total = sum(BLOCK.encode(silo).astype(np.int64) for silo in silos)
    estimates = BLOCK.decode(total, 3, 300.0)
    assert estimates["episodes"].mean == pytest.approx(40 / 3, abs=64 / BLOCK.scale)
    assert estimates["successes"].mean == pytest.approx(2.0, abs=64 / BLOCK.scale)
    assert estimates["delta_sq"].mean == pytest.approx(0.5, abs=1 / BLOCK.scale)
    assert estimates["episodes"].standard_error == pytest.approx(300 * 64 / (3 * BLOCK.scale))
    mean, standard_error = estimates["delta_sq"]
    assert standard_error == pytest.approx(300 / (3 * BLOCK.scale))
    assert mean == estimates["delta_sq"].reportable


# One task more or less ----------------------------------------------------------------------------


def families(episodes, grid=2**16, names=("grid", "text")):
    labels = ("update_norm_sq",)
    for name in names:
        labels += (f"episodes/{name}", f"successes/{name}")
    return MetricsBlock(labels, (2.0, *[float(episodes)] * (2 * len(names))), grid)


def difference(block, ours, theirs):
    """Σ(difference)² of two encodings, exactly."""
    zeros = dict.fromkeys(block.names, 0.0)
    before = block.encode({**zeros, **ours}).astype(np.int64)
    return int(((block.encode({**zeros, **theirs}) - before) ** 2).sum())


@pytest.mark.parametrize(("episodes", "grid"), [(6, 64), (8, 64), (12, 100), (24, 2**16), (7, 71)])
def test_one_task_moves_the_block_by_at_most_its_steps(episodes, grid):
    """Exhaustive: every count of the others, every task of up to ``tries`` episodes."""
    block = families(episodes, grid)
    worst = 0
    for tries in range(1, min(episodes, 4) + 1):
        steps = block.unit_steps(tries=tries)
        assert steps <= grid
        for others in range(episodes - tries + 1):
            for solved in range(others + 1):
                before = {"episodes/grid": others, "successes/grid": solved}
                for more in range(1, tries + 1):
                    for wins in (0, more):
                        after = {"episodes/grid": others + more, "successes/grid": solved + wins}
                        moved = difference(block, before, after)
                        assert moved <= steps**2
                        worst = max(worst, moved / steps**2)
    # The bound is near what happens: it holds back no multiple of the truth.
    assert worst > 0.5


@given(
    others=st.tuples(st.floats(0, 300), st.floats(0, 300)),
    task=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    episodes=st.integers(1, 240),
    tries=st.integers(1, 64),
    grid=st.sampled_from([40, 64, 1000, 2**16, 2**24]),
)
@settings(max_examples=500, deadline=None, derandomize=True)
def test_no_figures_of_a_task_move_the_block_further(others, task, episodes, tries, grid):
    """Also for figures that are no counts, beyond the bounds, and at the grid's coarsest."""
    block = families(episodes, grid)
    names = ("episodes/text", "successes/text")
    before = dict(zip(names, others, strict=True))
    after = {
        name: value + part * tries for name, value, part in zip(names, others, task, strict=True)
    }
    assert difference(block, before, after) <= block.unit_steps(tries=tries) ** 2


def test_rounding_to_even_may_take_one_step_more():
    """Both reals are halves that round apart: ⌈tries·s/b⌉ would be one too few."""
    block = MetricsBlock(
        ("episodes/a", "successes/a", "episodes/b", "successes/b"), (20.0,) * 4, 100
    )
    assert block.scale == 50
    before = {"episodes/a": 0.2, "successes/a": 0.2}
    after = {"episodes/a": 0.6, "successes/a": 0.6}
    # 0.5 → 0 and 1.5 → 2: one real step apart, two integers.
    zeros = dict.fromkeys(block.names, 0.0)
    moved = block.encode({**zeros, **after}) - block.encode({**zeros, **before})
    assert moved.tolist() == [2, 2, 0, 0]
    assert block.unit_steps(tries=1) == math.isqrt(2 * 3**2 - 1) + 1


def test_unit_steps_of_a_usual_plan():
    block = families(240)
    # s = ⌊2^16/√5⌋ = 29308; 4/240 of it, one more for rounding, √2 for two coordinates.
    assert block.scale == 29308
    assert block.unit_steps(tries=4) == math.ceil(math.sqrt(2) * 489)
    assert block.unit_steps(tries=240) == math.ceil(math.sqrt(2) * 29308) <= block.grid
    assert block.unit_steps(tries=10**9) == block.unit_steps(tries=240)


def test_what_is_not_known_to_be_bounded_counts_whole():
    for names, bounds in (
        (("update_norm_sq",), (1.0,)),
        (("episodes/a", "successes/a", "loss"), (9.0, 9.0, 9.0)),
        (("episodes", "successes"), (9.0, 9.0)),
    ):
        block = MetricsBlock(names, bounds)
        assert block.unit_steps(tries=1) == block.grid
    for tries in (0, -1, True, 1.0):
        with pytest.raises(SpecError):
            families(10).unit_steps(tries=tries)


def test_below_noise_is_nan():
    assert math.isnan(Estimate(1.0, 1.1).reportable)
    assert math.isnan(Estimate(-1.0, 1.1).reportable)
    assert Estimate(-1.0, 0.9).reportable == -1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite(bad):
    with pytest.raises(NonFiniteError):
        BLOCK.encode({"episodes": 1, "successes": bad, "delta_sq": 0})


@pytest.mark.parametrize(
    "values",
    [{}, {"episodes": 1}, {"episodes": 1, "successes": 1, "delta_sq": 0, "loss": 1}],
)
def test_names_must_match(values):
    with pytest.raises(SpecError, match="exactly"):
        BLOCK.encode(values)


@pytest.mark.parametrize(
    "arguments",
    [
        ((), ()),
        ((), (1.0,), 0),
        (("a",), (1.0,), 0),
        (("a", "a"), (1.0, 1.0)),
        (("",), (1.0,)),
        (("a",), (1.0, 2.0)),
        (("a",), (0.0,)),
        (("a",), (math.inf,)),
        (("a",), (1.0,), 2**25),
        (("a", "b"), (1.0, 1.0), 22),
    ],
)
def test_impossible_layouts(arguments):
    with pytest.raises(SpecError):
        MetricsBlock(*arguments)


def test_a_block_without_coordinates_says_nothing():
    block = MetricsBlock.of((), ())
    assert (block.size, block.grid) == (0, 0)
    assert block.encode({}).shape == (0,)
    assert block.decode(np.zeros(0, dtype=np.int64), 3, 0.0) == {}
    with pytest.raises(SpecError, match="exactly"):
        block.encode({"episodes": 1.0})
    assert MetricsBlock.of(BLOCK.names, BLOCK.bounds) == BLOCK


def test_decode_refuses_nonsense():
    total = np.zeros(3, dtype=np.int64)
    for arguments in (
        (total[:2], 1, 0.0),
        (total.astype(np.uint32), 1, 0.0),
        (total, 0, 0.0),
        (total, 1, -1.0),
        (total, 1, math.nan),
    ):
        with pytest.raises(SpecError):
            BLOCK.decode(*arguments)
