"""Sums of units' gradients applied step by step, and the deltas of ``record_local``."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dp.noise.grid import Grid
from dp.noise.metrics_block import MetricsBlock
from dp.noise.unit_sum import UnitSum
from federation.adapter.encoding import decode_adapter, encode_adapter
from federation.adapter.layout import Layout
from federation.errors import OptimiserStateError
from secagg.descriptor import AggregationId
from server.errors import QuarantinedSumError
from server.run.aggregation import aggregate
from server.run.descriptor import build_descriptor
from tests.kit.secagg.secagg_samples import make_roster, signed_roster, silo_names
from tests.kit.server import world as sw

NAMES = silo_names(4)
UNITS = 4
LAYOUT = Layout.from_tensors(sw.initial_tensors())


def descriptor_of(plan, *, step=0, adapter=sw.INITIAL):
    return build_descriptor(
        identity=AggregationId(run_id="run", round=1, step=step, part=0, attempt=1),
        plan=plan,
        plan_sha256=bytes(32),
        roster=signed_roster(make_roster(4)),
        ready=dict.fromkeys(NAMES, ("constant",)),
        adapter=adapter,
        adapter_sha256=bytes(32),
        now_unix_s=100,
    )


def figures_of(descriptor, *, norm_sq=0.0, solved=16.0):
    layout = descriptor.metrics
    block = MetricsBlock(names=layout.names, bounds=layout.bounds, grid=layout.grid)
    return block.encode(
        {"update_norm_sq": norm_sq, "episodes/constant": 64.0, "successes/constant": solved}
    )


def summed(plan, descriptor, units_of_silos):
    """What unmasking yields of each silo's units, through the integer sum that silos use."""
    release = plan.spec.release
    grid = Grid(clip_l2=release.clip_l2, steps=release.grid, dimension=descriptor.dimension)
    total = np.zeros(descriptor.words, dtype=np.uint32)
    for units in units_of_silos:
        sampled = UnitSum(grid, max_units=release.max_units)
        for unit in units:
            sampled.add(unit.astype(np.float32))
        sampled.add_to(total[: descriptor.dimension])
        total[descriptor.dimension :] += figures_of(descriptor).view(np.uint32)
    return total


def applied(plan, total, descriptor, optimiser, *, previous=sw.INITIAL):
    return aggregate(
        plan=plan,
        previous=previous,
        total=total,
        descriptor=descriptor,
        survivors=NAMES,
        optimiser=optimiser,
    )


def units(count: int, seed: int, dimension: int = sw.DIMENSION) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        vector = draw.normal(size=dimension)
        found.append(vector / np.linalg.norm(vector) * draw.uniform(1.0, 0.9 * sw.CLIP))
    return found


def moved(result) -> np.ndarray:
    found = decode_adapter(b"".join(result.adapter), max_bytes=1 << 20)
    return LAYOUT.flatten(found).astype(np.float64) - LAYOUT.flatten(sw.initial_tensors())


def test_gradients_are_divided_by_the_plans_batch_not_by_what_was_sampled():
    plan = sw.parsed(sw.stepped_toml(optimiser="sgd"))
    descriptor = descriptor_of(plan)
    assert descriptor.max_units == 20
    for counts in ((4, 4, 4, 4), (9, 0, 1, 3), (0, 0, 0, 0)):
        sampled = [units(count, seed) for seed, count in enumerate(counts)]
        total = summed(plan, descriptor, sampled)
        result = applied(plan, total, descriptor, plan.optimiser())
        everything = [unit for silo in sampled for unit in silo]
        mean = np.sum(everything, axis=0) / (4 * UNITS) if everything else np.zeros(sw.DIMENSION)
        np.testing.assert_allclose(moved(result), mean, atol=1e-4)
        assert result.update_norm == pytest.approx(np.linalg.norm(mean), rel=1e-3, abs=1e-3)


def test_adam_takes_its_steps_in_order_and_a_second_try_gives_the_same_bytes():
    plan = sw.parsed(sw.stepped_toml(optimiser="adam"))
    optimiser, previous, published = plan.optimiser(), sw.INITIAL, []
    for step in range(3):
        descriptor = descriptor_of(plan, step=step, adapter=previous)
        total = summed(plan, descriptor, [units(3, 10 * step + k) for k in range(4)])
        first = applied(plan, total, descriptor, optimiser, previous=previous)
        again = applied(plan, total, descriptor, optimiser, previous=previous)
        assert b"".join(first.adapter) == b"".join(again.adapter)
        previous = b"".join(first.adapter)
        published.append(previous)
    with pytest.raises(OptimiserStateError):
        applied(plan, total, descriptor, plan.optimiser(), previous=published[1])
    # The first step of Adam moves every coordinate by its learning rate; plain descent does not.
    start = LAYOUT.flatten(sw.initial_tensors())
    one = LAYOUT.flatten(decode_adapter(published[0], max_bytes=1 << 20)) - start
    np.testing.assert_allclose(np.abs(one), 1.0, rtol=1e-3)


def test_nothing_is_said_about_single_silos_and_figures_come_with_the_first_step():
    plan = sw.parsed(sw.stepped_toml())
    optimiser = plan.optimiser()
    for step in range(2):
        descriptor = descriptor_of(plan, step=step)
        total = summed(plan, descriptor, [units(4, k) for k in range(4)])
        result = applied(plan, total, descriptor, optimiser)
        for name in ("kappa", "zeta_sq", "silo_norm_sq"):
            assert math.isnan(getattr(result, name))
            assert math.isnan(getattr(result, f"{name}_error"))
        assert math.isfinite(result.update_norm)
        assert result.update_norm_error > 0
        if step == 0:
            ratio = result.success["constant"]
            assert ratio.mean == pytest.approx(0.25, abs=1e-3)
            sigma = descriptor.metrics.sigma * 2.0
            assert ratio.standard_error > sigma / (descriptor.metrics.grid * 4)
        else:
            assert result.success == {}


def test_a_sum_of_more_than_the_largest_batch_is_quarantined():
    plan = sw.parsed(sw.stepped_toml())
    descriptor = descriptor_of(plan)
    total = np.zeros(descriptor.words, dtype=np.uint32)
    noise = descriptor.noise_sigma * 2.0 * (math.sqrt(sw.DIMENSION) + 12)
    largest = 4 * descriptor.max_units * sw.GRID
    total[0] = largest
    applied(plan, total, descriptor, plan.optimiser())
    total[0] = largest + int(noise) + 2
    with pytest.raises(QuarantinedSumError, match="not applied"):
        applied(plan, total, descriptor, plan.optimiser())


def test_the_gauge_comes_with_the_last_step_of_a_round():
    stepped = sw.stepped_toml(method="rolora", optimiser="sgd")
    plan = sw.parsed(stepped.replace(b"server_optimiser", b"gauge = true\nserver_optimiser"))
    plain = sw.parsed(stepped)
    start = encode_adapter(
        sw.initial_tensors()
        | {"layer.lora_B.weight": np.full_like(sw.initial_tensors()["layer.lora_B.weight"], 0.25)}
    )
    for step, gauged in ((0, False), (1, False), (2, True)):
        descriptor = descriptor_of(plan, step=step, adapter=start)
        sampled = [units(2, k, descriptor.dimension) for k in range(4)]
        total = summed(plan, descriptor, sampled)
        with_gauge, without = (
            b"".join(applied(one, total, descriptor, one.optimiser(), previous=start).adapter)
            for one in (plan, plain)
        )
        assert (with_gauge != without) is gauged


def test_a_delta_of_record_local_is_averaged_like_any_other():
    text = sw.plan_toml(mode="record_local", noise=0.5, steps=3).replace(
        b"steps_per_round = 3", b"steps_per_round = 3\ndelta_clip_l2 = 2.0"
    )
    plan = sw.parsed(text)
    descriptor = descriptor_of(plan)
    assert (descriptor.max_units, descriptor.unit_clip, descriptor.noise_sigma) == (1, 2.0, 0.0)
    grid = Grid(clip_l2=2.0, steps=2**20, dimension=sw.DIMENSION)
    parts = [unit / sw.CLIP for unit in units(4, 3)]
    total = np.zeros(descriptor.words, dtype=np.int64)
    for part in parts:
        total[: sw.DIMENSION] += grid.encode(part.astype(np.float32))
        norm_sq = float(np.linalg.norm(part)) ** 2
        total[sw.DIMENSION :] += figures_of(descriptor, norm_sq=norm_sq)
    result = applied(plan, (total % 2**32).astype(np.uint32), descriptor, plan.optimiser())
    np.testing.assert_allclose(moved(result), np.mean(parts, axis=0), atol=1e-5)
    # The block's noise is each silo's own and whole, so its error is that of four of them.
    unit = descriptor.metrics.bounds[0] / (
        MetricsBlock(
            names=descriptor.metrics.names,
            bounds=descriptor.metrics.bounds,
            grid=descriptor.metrics.grid,
        ).scale
    )
    expected = descriptor.metrics.sigma * math.sqrt(4) * unit / 4
    assert result.silo_norm_sq_error == pytest.approx(expected)
    assert descriptor.metrics.bounds[0] == 4.0
