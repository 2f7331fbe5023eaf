"""The metrics block: bounds, integer norm, means with standard errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp.errors import NonFiniteError, SpecError
from dp.metrics_block import Estimate, MetricsBlock

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
        (("a", "a"), (1.0, 1.0)),
        (("",), (1.0,)),
        (("a",), (1.0, 2.0)),
        (("a",), (0.0,)),
        (("a",), (math.inf,)),
        (("a",), (1.0,), 0),
        (("a",), (1.0,), 2**25),
        (("a", "b"), (1.0, 1.0), 22),
    ],
)
def test_impossible_layouts(arguments):
    with pytest.raises(SpecError):
        MetricsBlock(*arguments)


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
