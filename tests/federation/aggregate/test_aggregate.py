"""Aggregation: the arithmetic of a step, who trains what, and the gauge's invariants."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.adapter.encoding import TILE
from federation.adapter.layout import Layout
from federation.aggregate.aggregator import Aggregator
from federation.aggregate.gauge import rademacher, regauge
from federation.aggregate.registry import AGGREGATORS, INCOMPLETE_ADAPTERS, make_aggregator
from federation.aggregate.rounds import FIRST_ROUND
from federation.aggregate.server_step import MeanOfSum, mean_of_sum, step
from federation.errors import LayoutError, UpdateError
from tests.kit.federation.adapters import CLIP, GRID, RANK, SIDES, lora, plan_of, product

LAYOUT = Layout.from_tensors(lora(0))
FORMS = ("a_orthonormal", "b_orthonormal", "balanced")


def aggregator(method: str, *, gauge: bool = False, server_step: float = 1.0) -> Aggregator:
    return make_aggregator(method, LAYOUT, server_step=server_step, gauge=gauge)


def deltas(silos: int, layout: Layout, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(silos, layout.dimension)) * 0.01


@pytest.mark.parametrize("method", sorted(AGGREGATORS))
@pytest.mark.parametrize("server_step", [1.0, 2.0])
def test_the_step_is_the_float_average(method, server_step):
    method_object = aggregator(method, server_step=server_step)
    shared = method_object.shared_layout(1)
    before = lora(3)
    moves = deltas(7, shared)
    total = np.rint(moves * GRID / CLIP).astype(np.int64).sum(axis=0)
    mean = mean_of_sum(total, scale=GRID / CLIP, count=7)
    after = method_object.apply(before, mean, 1)
    silos = [shared.flatten({s.name: before[s.name] for s in shared.specs}) + m for m in moves]
    start = shared.flatten({s.name: before[s.name] for s in shared.specs}).astype(np.float64)
    average = start + server_step * (np.mean(silos, axis=0) - start)
    if method_object.gauge:  # Its factors are others; the products are compared.
        expected = before | shared.unflatten(average.astype(np.float32))
        check_gauge(expected, after, method_object.gauge_form(2))
        after = method_object.apply_ungauged(before, mean, 1)
    moved = shared.flatten({s.name: after[s.name] for s in shared.specs}).astype(np.float64)
    error = np.linalg.norm(moved - average) / np.linalg.norm(average)
    assert error < 1e-6
    for spec in LAYOUT.specs:
        if spec not in shared.specs:
            np.testing.assert_array_equal(after[spec.name], before[spec.name])


@pytest.mark.parametrize("gauge", [False, True])
def test_fedsvd_is_an_svd_of_the_product(gauge):
    """Against numpy's dense SVD of the whole product, in float64."""
    method = aggregator("fedsvd", gauge=gauge)
    assert method.gauge
    before, mean = lora(3), deltas(1, method.shared_layout(1))[0]
    assert {spec.name[-8] for spec in method.shared_layout(2).specs} == {"B"}
    moved = method.apply_ungauged(before, mean, 1)
    after = method.apply(before, mean, 1)
    for prefix in SIDES:
        u, sigma, vt = np.linalg.svd(product(moved, prefix))
        a = after[f"{prefix}.lora_A.weight"].astype(np.float64)
        b = after[f"{prefix}.lora_B.weight"].astype(np.float64)
        sign = np.sign(np.sum(a * vt[:RANK], axis=1))
        np.testing.assert_allclose(a, sign[:, None] * vt[:RANK], atol=1e-5)
        np.testing.assert_allclose(b, u[:, :RANK] * sigma[:RANK] * sign, atol=1e-5 * sigma[0])
        # What is learned never leaves the row space of the initial A.
        stacked = np.vstack((before[f"{prefix}.lora_A.weight"].astype(np.float64), a))
        assert np.linalg.matrix_rank(stacked, tol=1e-4) == RANK


def test_fedsvd_keeps_the_row_space_of_a_layer_without_a_product():
    method = aggregator("fedsvd")
    before = lora(3, b_scale=0.0)
    after = method.apply(before, np.zeros(method.shared_layout(1).dimension), 1)
    for prefix in SIDES:
        a = after[f"{prefix}.lora_A.weight"].astype(np.float64)
        np.testing.assert_allclose(a @ a.T, np.eye(RANK), atol=1e-5)
        np.testing.assert_array_equal(product(after, prefix), 0.0)
        stacked = np.vstack((before[f"{prefix}.lora_A.weight"].astype(np.float64), a))
        assert np.linalg.matrix_rank(stacked, tol=1e-4) == RANK


@pytest.mark.parametrize("method", sorted(AGGREGATORS))
def test_an_adapter_that_is_not_the_whole_result_says_so(method):
    """Ten rounds of moves from a fresh adapter: only where B is never shared nothing is learned."""
    one, tensors = aggregator(method), lora(3, b_scale=0.0)
    for number in range(1, 11):
        tensors = one.apply(tensors, deltas(1, one.shared_layout(number), number)[0], number)
    silent = not any(product(tensors, prefix).any() for prefix in SIDES)
    assert silent == (method in INCOMPLETE_ADAPTERS)


def test_fedsa_shares_a_and_leaves_the_function_of_the_base_model():
    method = aggregator("fedsa", server_step=2.0)
    shared = method.shared_layout(2)
    assert {spec.name[-8] for spec in shared.specs} == {"A"}
    before, mean = lora(3, b_scale=0.0), deltas(1, shared)[0]
    after = method.apply(before, mean, 1)
    for prefix in SIDES:
        np.testing.assert_array_equal(product(after, prefix), 0.0)
        moved = after[f"{prefix}.lora_A.weight"] - before[f"{prefix}.lora_A.weight"]
        assert np.linalg.norm(moved) > 0.0
    with pytest.raises(ValueError, match="leaves B to each silo"):
        aggregator("fedsa", gauge=True)
    with pytest.raises(LayoutError, match="no common product"):
        method.regauge(before, 2)


def test_the_step_is_the_stated_arithmetic_bit_for_bit():
    before = lora(4)
    total = np.random.default_rng(5).integers(-(2**30), 2**30, LAYOUT.dimension)
    mean = mean_of_sum(total, scale=3.7e5, count=3)
    after = LAYOUT.flatten(step(LAYOUT, before, LAYOUT, mean, 1.7))
    for index, start in enumerate(LAYOUT.flatten(before)):
        # Python floats are IEEE 754 binary64: an independent statement of the same formula.
        exact = float(start) + 1.7 * (float(int(total[index])) / (3.7e5 * 3))
        assert after[index] == np.float32(exact)


def test_every_silo_counts_once():
    """No weight, count or size of data enters: only the sum and the number of silos do."""
    parameters = set(inspect.signature(mean_of_sum).parameters)
    assert parameters == {"total", "scale", "count"}
    vectors = [np.full(4, value, dtype=np.int64) for value in (10, 20, 60)]
    mean = mean_of_sum(sum(vectors), scale=1.0, count=3)
    np.testing.assert_array_equal(mean, np.full(4, 30.0))


@pytest.mark.parametrize(
    ("total", "scale", "count"),
    [
        (np.zeros(3, np.uint32), 1.0, 1),
        (np.zeros((3, 1), np.int64), 1.0, 1),
        (np.zeros(3, np.int64), 1.0, 0),
        (np.zeros(3, np.int64), 0.0, 1),
        (np.zeros(3, np.int64), float("nan"), 1),
    ],
)
def test_sums_without_a_mean_are_refused(total, scale, count):
    with pytest.raises(UpdateError):
        mean_of_sum(total, scale=scale, count=count)


def test_an_update_out_of_float32_is_refused():
    mean = np.zeros(LAYOUT.dimension)
    mean[5] = 1e39
    with pytest.raises(UpdateError, match="out of float32"):
        aggregator("fedavg").apply(lora(0), mean, 1)


def test_a_mean_of_another_length_is_refused():
    with pytest.raises(LayoutError):
        aggregator("rolora").apply(lora(0), np.zeros(LAYOUT.dimension), 1)


def test_rolora_alternates_and_starts_with_b():
    """B is zero in a fresh adapter, so a first round on A would have no gradient."""
    method = aggregator("rolora")
    for round_number in range(FIRST_ROUND, 7):
        wanted = "lora_B" if round_number % 2 else "lora_A"
        names = [spec.name for spec in method.shared_layout(round_number).specs]
        assert len(names) == 2
        assert all(wanted in name for name in names)
    assert "lora_B" in method.shared_layout(FIRST_ROUND).specs[0].name
    assert aggregator("fedavg").shared_layout(1) == LAYOUT


def test_methods_that_need_pairs_say_so():
    plain = Layout.from_tensors({"w": np.zeros(4, np.float32)})
    make_aggregator("fedavg", plain, server_step=1.0, gauge=False)
    for method, gauge in (("fedavg", True), *((m, False) for m in AGGREGATORS if m != "fedavg")):
        with pytest.raises(LayoutError, match="LoRA"):
            make_aggregator(method, plain, server_step=1.0, gauge=gauge)


def test_the_plan_builds_its_method():
    method = plan_of("rolora", gauge=True, server_step=2.0).aggregator(LAYOUT)
    assert (method.name, method.gauge, method.server_step) == ("rolora", True, 2.0)
    assert method.layout == LAYOUT


def check_gauge(before: dict, after: dict, form: str) -> None:
    for prefix in SIDES:
        old, new = product(before, prefix), product(after, prefix)
        assert np.linalg.norm(new - old) <= 1e-5 * np.linalg.norm(old)
        a = after[f"{prefix}.lora_A.weight"].astype(np.float64)
        b = after[f"{prefix}.lora_B.weight"].astype(np.float64)
        if form == "a_orthonormal":
            np.testing.assert_allclose(a @ a.T, np.eye(RANK), atol=1e-5)
        elif form == "b_orthonormal":
            np.testing.assert_allclose(b.T @ b, np.eye(RANK), atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@given(seed=st.integers(0, 10_000), exponent=st.integers(-12, 12))
def test_the_gauge_keeps_the_product(form, seed, exponent):
    before = lora(seed, b_scale=2.0**exponent)
    after = regauge(LAYOUT, before, form)
    assert Layout.from_tensors(after) == LAYOUT
    check_gauge(before, after, form)
    if form == "balanced":
        for prefix in SIDES:
            a = after[f"{prefix}.lora_A.weight"].astype(np.float64)
            b = after[f"{prefix}.lora_B.weight"].astype(np.float64)
            scale = np.linalg.norm(product(before, prefix), ord=2)
            np.testing.assert_allclose(a @ a.T, b.T @ b, atol=1e-5 * scale)


@pytest.mark.parametrize("form", FORMS)
def test_the_gauge_is_idempotent_and_ignores_the_old_factors(form):
    before = lora(8)
    once = regauge(LAYOUT, before, form)
    twice = regauge(LAYOUT, once, form)
    mixed = {}
    turn = np.random.default_rng(9).normal(size=(RANK, RANK))
    for prefix in SIDES:
        a, b = before[f"{prefix}.lora_A.weight"], before[f"{prefix}.lora_B.weight"]
        mixed[f"{prefix}.lora_A.weight"] = (np.linalg.inv(turn) @ a).astype(np.float32)
        mixed[f"{prefix}.lora_B.weight"] = (b @ turn).astype(np.float32)
    other = regauge(LAYOUT, mixed, form)
    for name, tensor in once.items():
        np.testing.assert_allclose(twice[name], tensor, atol=2e-5)
        np.testing.assert_allclose(other[name], tensor, atol=2e-4)


def test_noise_on_b_is_noise_in_the_weights_under_the_gauge():
    """With orthonormal rows of A, the norm of ΔB is the norm of the change of BA."""
    gauged = regauge(LAYOUT, lora(2), "a_orthonormal")
    for prefix in SIDES:
        noise = np.random.default_rng(3).normal(size=gauged[f"{prefix}.lora_B.weight"].shape)
        moved = noise @ gauged[f"{prefix}.lora_A.weight"].astype(np.float64)
        assert np.linalg.norm(moved) == pytest.approx(np.linalg.norm(noise), rel=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_fresh_adapter_stays_zero_and_trainable(form):
    before = lora(6, b_scale=0.0)
    after = regauge(LAYOUT, before, form)
    check_gauge(before, after, form)
    for prefix in SIDES:
        a, b = after[f"{prefix}.lora_A.weight"], after[f"{prefix}.lora_B.weight"]
        np.testing.assert_array_equal(product(after, prefix), 0.0)
        # The gradient of one factor contains the other one: at least one must have full rank.
        assert np.linalg.matrix_rank(b if form == "b_orthonormal" else a) == RANK
        if form != "b_orthonormal":
            # The random row space that the adapter started with is kept.
            old = before[f"{prefix}.lora_A.weight"].astype(np.float64)
            stacked = np.vstack((old, a.astype(np.float64)))
            assert np.linalg.matrix_rank(stacked, tol=1e-4) == RANK
        if form == "balanced":
            rows = np.linalg.norm(a, axis=1)
            expected = np.linalg.norm(before[f"{prefix}.lora_A.weight"]) / np.sqrt(RANK)
            np.testing.assert_allclose(rows, expected, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("broken", ["A", "B", "both", "column"])
def test_lost_rank_is_completed_without_coordinate_axes(form, broken):
    before = lora(7)
    for prefix in SIDES:
        for which in "AB":
            if broken in (which, "both"):
                before[f"{prefix}.lora_{which}.weight"][:] = 0.0
        if broken == "column":
            before[f"{prefix}.lora_B.weight"][:, 1] = before[f"{prefix}.lora_B.weight"][:, 0]
    after = regauge(LAYOUT, before, form)
    check_gauge(before, after, form)
    for prefix in SIDES:
        whole = after[f"{prefix}.lora_{'B' if form == 'b_orthonormal' else 'A'}.weight"]
        whole = whole if form != "b_orthonormal" else whole.T
        assert np.linalg.matrix_rank(whole) == RANK
        # A coordinate axis would have all its weight in one entry.
        share = np.abs(whole).max(axis=1) / np.linalg.norm(whole, axis=1)
        assert share.max() < 0.999


def test_square_layers_of_full_rank_are_gauged_too():
    draw = np.random.default_rng(1)
    before = {
        "l.lora_A.weight": draw.normal(size=(2, 2)).astype(np.float32),
        "l.lora_B.weight": np.zeros((2, 2), np.float32),
    }
    for form in FORMS:
        after = regauge(Layout.from_tensors(before), before, form)
        np.testing.assert_array_equal(product(after, "l"), 0.0)
    after = regauge(Layout.from_tensors(before), before, "b_orthonormal")
    b = after["l.lora_B.weight"].astype(np.float64)
    np.testing.assert_allclose(b.T @ b, np.eye(2), atol=1e-6)


def test_cancelling_factors_leave_no_rounding_behind():
    before = lora(1)
    for prefix, (m, n) in SIDES.items():
        a, b = np.zeros((RANK, n), np.float32), np.zeros((m, RANK), np.float32)
        a[0], b[:, 0] = 0.1, 0.3
        a[1], b[:, 1] = -0.1, 0.3
        before[f"{prefix}.lora_A.weight"], before[f"{prefix}.lora_B.weight"] = a, b
    for form in FORMS:
        after = regauge(LAYOUT, before, form)
        for prefix in SIDES:
            np.testing.assert_array_equal(product(after, prefix), 0.0)


def test_signs_are_fixed():
    for seed in range(5):
        after = regauge(LAYOUT, lora(seed), "a_orthonormal")
        for prefix in SIDES:
            a = after[f"{prefix}.lora_A.weight"]
            assert (a[np.arange(RANK), np.abs(a).argmax(axis=1)] > 0).all()


def test_a_factor_that_is_not_finite_is_refused():
    before = lora(0)
    before["model.layer1.lora_A.weight"][0, 0] = np.nan
    with pytest.raises(UpdateError, match="NaN"):
        regauge(LAYOUT, before, "balanced")


@pytest.mark.parametrize("round_number", [1, 2])
def test_rolora_prepares_the_next_round(round_number):
    method = aggregator("rolora", gauge=True)
    before = lora(3)
    mean = deltas(1, method.shared_layout(round_number))[0]
    moved = method.apply_ungauged(before, mean, round_number)
    after = method.apply(before, mean, round_number)
    check_gauge(moved, after, "b_orthonormal" if round_number == 1 else "a_orthonormal")


def test_probes_are_signs_that_depend_on_the_seed():
    one, two = rademacher(b"1", 50, 16), rademacher(b"2", 50, 16)
    assert set(np.unique(one)) == {-1.0, 1.0}
    assert abs(float(one.mean())) < 0.15
    assert 200 < np.count_nonzero(one != two) < 600
    np.testing.assert_array_equal(one, rademacher(b"1", 50, 16))


# Tiles -------------------------------------------------------------------------------------------


def test_tensors_across_tile_borders_move_like_one_formula():
    """More than one tile, none of them full at the end, and a tensor smaller than a tile."""
    draw = np.random.default_rng(3)
    shapes = {"a": (TILE + 3,), "b": (5,), "c": (2, TILE - 1)}
    tensors = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    layout = Layout.from_tensors(tensors)
    total = draw.integers(-(2**20), 2**20, layout.dimension).astype(np.int32)
    mean = MeanOfSum(total, scale=3.7e5, count=3)
    moved = step(layout, tensors, layout, mean, 1.5)
    whole = mean_of_sum(total.astype(np.int64), scale=3.7e5, count=3)
    np.testing.assert_array_equal(mean[:], whole)
    for name, delta in layout.unflatten(whole).items():
        expected = (tensors[name].astype(np.float64) + 1.5 * delta).astype(np.float32)
        np.testing.assert_array_equal(moved[name], expected)


def test_tensors_that_are_not_shared_are_handed_on_uncopied():
    tensors = lora(1)
    aggregator = plan_of("rolora").aggregator(Layout.from_tensors(tensors))
    shared = aggregator.shared_layout(1)
    moved = aggregator.apply(tensors, np.ones(shared.dimension), 1)
    assert {name for name in tensors if moved[name] is not tensors[name]} == {
        spec.name for spec in shared.specs
    }
