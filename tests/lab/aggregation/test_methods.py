"""The lab's methods of several sums, against plain re-derivations and cases done by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from federation.errors import OptimiserStateError
from lab.aggregation.aggregation import METHODS, AggregationError, SiloUpdate
from lab.aggregation.truncation import Factors, balanced_factors
from tests.kit.lab.aggregation_samples import (
    LAYOUT,
    RANK,
    SIDES,
    SILOS,
    Mean,
    adapter,
    made,
    mean_product,
    product,
    updates,
)

ALL = frozenset(spec.name for spec in LAYOUT.specs)


def truncated(matrix: np.ndarray) -> np.ndarray:
    u, sigma, vt = np.linalg.svd(matrix)
    return (u[:, :RANK] * sigma[:RANK]) @ vt[:RANK]


def low_rank(seed: int = 5) -> list[SiloUpdate]:
    """Silos that move B alone: every product has A's row space, so the mean has rank r."""
    b_only = updates([name for name in ALL if "lora_B" in name], seed=seed)
    zeros = {name: np.zeros_like(t) for name, t in adapter().items() if "lora_A" in name}
    return [SiloUpdate(delta={**zeros, **one.delta}) for one in b_only]


@pytest.mark.parametrize("method", ["fedask", "flex_masked"])
@pytest.mark.parametrize("b_scale", [0.0, 1.0])
def test_a_mean_product_within_the_rank_is_exact(method, b_scale):
    before, silos = adapter(b_scale=b_scale), low_rank()
    after = made(method).combine(before, silos, round_number=1, mean=Mean())
    for prefix in SIDES:
        exact = mean_product(before, silos, prefix)
        error = np.linalg.norm(product(after, prefix) - exact)
        assert error <= 1e-5 * np.linalg.norm(exact)
        # fedavg of both factors would not be: its error is what these methods are for.
        a, b = (after[f"{prefix}.lora_{which}.weight"].astype(np.float64) for which in "AB")
        np.testing.assert_allclose(a @ a.T, b.T @ b, atol=1e-4 * np.linalg.norm(exact, 2))


@pytest.mark.parametrize(("method", "options"), [("flex_masked", {}), ("fedask", {"sketch": 12.0})])
def test_above_the_rank_the_best_approximation_is_kept(method, options):
    """Four silos that train both factors make a mean product of full rank, 11 and 12."""
    before, silos = adapter(), updates(ALL, seed=7)
    after = made(method, options=options).combine(before, silos, round_number=3, mean=Mean())
    for prefix, sides in SIDES.items():
        exact = mean_product(before, silos, prefix)
        assert np.linalg.matrix_rank(exact) == min(sides)
        best = truncated(exact)
        error = np.linalg.norm(product(after, prefix) - best)
        assert error <= 1e-4 * np.linalg.norm(best)


def test_fedask_is_algorithm_1_written_out():
    """The paper's own sums, of B_kA_k and not of differences, with the same Ω."""
    before, silos = adapter(), updates(ALL, seed=8)
    method = made("fedask", options={"sketch": 5.0, "seed": 3.0})
    after = method.combine(before, silos, round_number=2, mean=Mean())
    for pair in LAYOUT.pairs():
        omega = method._omega(pair, 2)
        assert omega.shape == (pair.a.shape[1], 5)
        np.testing.assert_allclose(np.abs(omega), 5**-0.5)
        factors = [
            (
                before[pair.b.name].astype(np.float64) + s.delta[pair.b.name],
                before[pair.a.name].astype(np.float64) + s.delta[pair.a.name],
            )
            for s in silos
        ]
        y = np.mean([b @ (a @ omega) for b, a in factors], axis=0)
        q, _ = np.linalg.qr(y)
        p = np.mean([a.T @ (b.T @ q) for b, a in factors], axis=0)
        u, sigma, vt = np.linalg.svd(p, full_matrices=False)
        expected = (q @ vt.T[:, :RANK] * sigma[:RANK]) @ u[:, :RANK].T
        scale = np.linalg.norm(expected)
        assert np.linalg.norm(product(after, pair.prefix) - expected) <= 1e-5 * scale


def test_fedask_sketches_are_public_and_differ_by_round_layer_and_seed():
    pairs = LAYOUT.pairs()
    one, other = made("fedask"), made("fedask", options={"seed": 1.0})
    np.testing.assert_array_equal(one._omega(pairs[0], 1), made("fedask")._omega(pairs[0], 1))
    assert not np.array_equal(one._omega(pairs[0], 1), one._omega(pairs[0], 2))
    assert not np.array_equal(one._omega(pairs[0], 1), other._omega(pairs[0], 1))


def test_a_sketch_is_no_longer_than_the_product():
    """What lets both sums be clipped to the product's one bound."""
    before, silos = adapter(), updates(ALL, seed=8)
    lengths: dict[str, list[float]] = {}

    def mean(vectors, *, clip_l2, what):
        lengths[what] = [float(np.linalg.norm(v)) for v in vectors]
        return np.mean(vectors, axis=0)

    made("fedask").combine(before, silos, round_number=1, mean=mean)
    made("flex_masked").combine(before, silos, round_number=1, mean=mean)
    for sketched, whole in zip(lengths["sketch P"], lengths["product"], strict=True):
        assert 0.0 < sketched <= whole * (1 + 1e-12)
    ratios = np.array(lengths["sketch Y"]) / np.array(lengths["product"])
    assert ((ratios > 0.5) & (ratios < 1.5)).all()


@pytest.mark.parametrize("method", ["fedask", "flex_masked"])
def test_the_server_step_scales_what_was_learned(method):
    before, silos = adapter(), low_rank()
    after = made(method, server_step=0.25).combine(before, silos, round_number=1, mean=Mean())
    for prefix in SIDES:
        old = product(before, prefix)
        expected = old + 0.25 * (mean_product(before, silos, prefix) - old)
        error = np.linalg.norm(product(after, prefix) - expected)
        assert error <= 1e-5 * np.linalg.norm(expected)


def test_directions_without_weight_rest_in_the_former_row_space():
    former = Factors(a_rn=np.eye(3, 8) * 2.0, b_mr=np.zeros((6, 3)))
    u, v = np.eye(6)[:, :1], np.eye(8)[:, 7:]
    a, b = balanced_factors(u, np.array([9.0]), v, former=former)
    np.testing.assert_allclose(b @ a, 9.0 * np.outer(np.eye(6)[0], np.eye(8)[7]), atol=1e-12)
    np.testing.assert_allclose(a[0], 3.0 * np.eye(8)[7])
    np.testing.assert_allclose(np.abs(a[1:]), 2.0 * np.eye(3, 8)[:2], atol=1e-12)
    np.testing.assert_array_equal(b[:, 1:], 0.0)
    a, b = balanced_factors(u, np.array([0.0]), v, former=former)
    np.testing.assert_array_equal(b, 0.0)
    np.testing.assert_allclose(a @ a.T, 4.0 * np.eye(3), atol=1e-12)


# Weighted ----------------------------------------------------------------------------------------


def test_weighted_is_the_weighted_mean():
    before, silos = adapter(), updates(ALL)  # Successes 0, 1, 2, 3.
    after = made("weighted").combine(before, silos, round_number=1, mean=Mean())
    for name, start in before.items():
        expected = start + np.average(
            [s.delta[name].astype(np.float64) for s in silos], axis=0, weights=[0, 1, 2, 3]
        )
        np.testing.assert_allclose(after[name], expected, atol=1e-6)


def test_weights_are_capped_in_public():
    """With w_max = 2 the weights 0, 1, 2, 3 count as 0, 1, 2, 2."""
    before, silos = adapter(), updates(ALL)
    mean = Mean()
    method = made("weighted", options={"w_max": 2.0}, clip_l2=1e3)
    after = method.combine(before, silos, round_number=1, mean=mean)
    for name, start in before.items():
        deltas = [s.delta[name].astype(np.float64) for s in silos]
        expected = start + np.average(deltas, axis=0, weights=[0, 1, 2, 2])
        np.testing.assert_allclose(after[name], expected, atol=1e-6)
    assert mean.asked == [("weighted delta", 1e3, LAYOUT.dimension), ("weight", 1.0, 1)]


def test_a_weighted_delta_is_clipped_after_weighting():
    """Two silos of delta 8 and 1: the first weighs 1/4, so it is 2 long when the clip of 2 acts."""
    method = made("weighted", silos=2, clip_l2=2.0, options={"w_max": 4.0})
    shape = {spec.name: np.zeros(spec.shape, np.float32) for spec in LAYOUT.specs}
    name = LAYOUT.specs[0].name
    silos = []
    for size, successes in ((8.0, 1), (1.0, 4)):
        delta = {key: value.copy() for key, value in shape.items()}
        delta[name][0, 0] = size
        silos.append(SiloUpdate(delta=delta, successes=successes))
    after = method.combine(shape, silos, round_number=1, mean=Mean())
    assert after[name][0, 0] == pytest.approx((2.0 + 1.0) / (0.25 + 1.0))


@pytest.mark.parametrize("noise", [-1.0, 1e-9, 1e-3])
def test_weights_that_drown_in_noise_cannot_blow_up_the_step(noise):
    silos = [SiloUpdate(delta=one.delta, successes=0) for one in updates(ALL)]

    def mean(vectors, *, clip_l2, what):
        return np.full(1, noise) if what == "weight" else np.full(vectors[0].size, 1e-3)

    after = made("weighted").combine(adapter(), silos, round_number=1, mean=mean)
    moved = LAYOUT.flatten(after) - LAYOUT.flatten(adapter())
    assert np.abs(moved).max() <= 1e-3 * SILOS * 64 * (1 + 1e-3)
    if noise < 1e-3:
        np.testing.assert_array_equal(moved, 0.0)
    with pytest.raises(AggregationError, match="successes"):
        made("weighted").combine(
            adapter(),
            [SiloUpdate(delta=one.delta, successes=-1) for one in silos],
            round_number=1,
            mean=mean,
        )


# Scaffold ----------------------------------------------------------------------------------------


def test_the_control_variate_is_the_mean_of_the_silos():
    """Algorithm 1 with S = N: c = mean c_k, and without clipping c_k is the silo's gradient."""
    method = made("scaffold")
    tensors = adapter()
    for number in (1, 2, 3):
        silos = updates(ALL, seed=number)
        tensors = method.combine(tensors, silos, round_number=number, mean=Mean())
        own = [LAYOUT.flatten(silo.mean_gradient).astype(np.float64) for silo in silos]
        for silo in range(SILOS):
            expected = np.mean(own, axis=0) - own[silo]
            np.testing.assert_allclose(LAYOUT.flatten(method.correction(silo)), expected, atol=1e-6)
        total = np.sum([LAYOUT.flatten(method.correction(k)) for k in range(SILOS)], axis=0)
        np.testing.assert_allclose(total, 0.0, atol=1e-5)


def test_a_clipped_control_variate_stays_the_mean():
    """A silo moves its c_k by what it uploads, so the invariant survives the clip."""
    method = made("scaffold", options={"control_clip_l2": 0.5})
    tensors = adapter()
    for number in (1, 2, 3):
        mean = Mean()
        tensors = method.combine(tensors, updates(ALL, seed=number), round_number=number, mean=mean)
        assert mean.asked[1] == ("control variate", 0.5, LAYOUT.dimension)
        np.testing.assert_allclose(method._control, method._controls.mean(axis=0), atol=1e-9)
        assert (np.linalg.norm(method._controls, axis=1) <= 0.5 * number + 1e-9).all()


def test_option_ii_is_the_mean_gradient_for_plain_sgd():
    """c_k⁺ = c_k − c + (x − y)/(η·steps), the paper's line 11, equals the mean of the gradients."""
    draw, eta, steps = np.random.default_rng(4), 0.05, 7
    c, own, x = (draw.normal(size=5) for _ in range(3))
    target, y, gradients = draw.normal(size=5), x.copy(), []
    for _ in range(steps):
        gradients.append(2.0 * (y - target))
        y = y - eta * (gradients[-1] + c - own)
    np.testing.assert_allclose(own - c + (x - y) / (eta * steps), np.mean(gradients, axis=0))


def drift(method: str, rounds: int) -> float:
    """Distance from the optimum of two silos' quadratics of unlike curvature, many local steps."""
    aggregation = made(method, silos=2, clip_l2=1e6)
    tensors = {spec.name: np.zeros(spec.shape, np.float32) for spec in LAYOUT.specs}
    curvature = (1.0, 10.0)
    draw = np.random.default_rng(2)
    goals = [{spec.name: draw.normal(size=spec.shape) for spec in LAYOUT.specs} for _ in curvature]
    for number in range(1, rounds + 1):
        silos = []
        for silo, (h, goal) in enumerate(zip(curvature, goals, strict=True)):
            correction = aggregation.correction(silo)
            y = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
            sums = {name: np.zeros(tensor.shape) for name, tensor in y.items()}
            for _ in range(20):
                for name, at in y.items():
                    gradient = h * (at - goal[name])
                    sums[name] += gradient / 20
                    extra = 0.0 if correction is None else correction[name]
                    y[name] = at - 0.05 * (gradient + extra)
            delta = {name: (y[name] - tensors[name]).astype(np.float32) for name in y}
            gradients = {name: value.astype(np.float32) for name, value in sums.items()}
            silos.append(SiloUpdate(delta=delta, mean_gradient=gradients))
        tensors = aggregation.combine(tensors, silos, round_number=number, mean=Mean())
    best = {
        name: sum(h * g[name] for h, g in zip(curvature, goals, strict=True)) / sum(curvature)
        for name in tensors
    }
    gaps = [np.linalg.norm(tensors[name] - best[name]) for name in tensors]
    return float(np.linalg.norm(gaps))


def test_control_variates_remove_client_drift():
    """Averaging stops where the local optima pull to; SCAFFOLD reaches the common one."""
    assert drift("scaffold", 60) < 1e-3
    assert drift("fedavg", 60) > 1.0


def test_with_some_silos_a_round_the_control_variate_stays_the_mean_of_all():
    """Algorithm 1 with S < N: c moves by |S|/N of the mean, and the others' c_k stay."""
    method = made("scaffold", of=7, options={"control_clip_l2": 0.5})
    tensors = adapter()
    for number, places in enumerate(((0, 2, 5, 6), (1, 2, 3, 6), (0, 1, 4, 5)), start=1):
        before = method._controls.copy()
        given = [
            replace(update, silo=place)
            for update, place in zip(updates(ALL, seed=number), places, strict=True)
        ]
        tensors = method.combine(tensors, given, round_number=number, mean=Mean())
        np.testing.assert_allclose(method._control, method._controls.mean(axis=0), atol=1e-9)
        moved = {k for k in range(7) if (method._controls[k] != before[k]).any()}
        assert moved == set(places)
    method.correction(6)
    with pytest.raises(AggregationError, match="no silo 7 among 7"):
        method.correction(7)
    with pytest.raises(AggregationError, match="cannot take part of 3"):
        made("scaffold", of=3)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, {}) for name in METHODS),
        *(("fedavg", {"server_optimiser": name}) for name in ("fedavgm", "fedadam", "fedyogi")),
        ("weighted", {"server_optimiser": "fedadagrad"}),
    ],
)
def test_what_a_method_keeps_is_all_that_the_next_round_needs(name, changes):
    first, second = made(name, **changes), made(name, **changes)
    tensors = adapter()
    for number in (1, 2):
        given = updates(first.trainable(number), seed=number)
        tensors = first.combine(tensors, given, round_number=number, mean=Mean())
    second.take_up({key: array.copy() for key, array in first.state().items()})
    given = updates(first.trainable(3), seed=3)
    one, other = (m.combine(tensors, given, round_number=3, mean=Mean()) for m in (first, second))
    assert all(one[key].tobytes() == other[key].tobytes() for key in one)
    # A method that keeps something comes to something else without it.
    fresh = made(name, **changes)
    assert bool(first.state()) == (name == "scaffold" or bool(changes))
    if name == "scaffold":
        assert np.any(fresh.state()["controls"] != first.state()["controls"])
    elif changes:
        with pytest.raises(OptimiserStateError):
            fresh.combine(tensors, given, round_number=3, mean=Mean())


@pytest.mark.parametrize(
    "state",
    [
        {"control": np.zeros(3), "controls": np.zeros((4, 3))},
        {"control": np.zeros(LAYOUT.dimension)},
        {
            "control": np.full(LAYOUT.dimension, np.nan),
            "controls": np.zeros((SILOS, LAYOUT.dimension)),
        },
        {
            "control": np.zeros(LAYOUT.dimension, dtype=np.float32),
            "controls": np.zeros((SILOS, LAYOUT.dimension)),
        },
    ],
)
def test_a_state_of_another_method_or_layout_is_refused(state):
    with pytest.raises(AggregationError, match="state"):
        made("scaffold").take_up(state)
    with pytest.raises(AggregationError, match="state"):
        made("fedask").take_up(state)
    with pytest.raises(AggregationError, match="keeps no state"):
        made("fedavg").take_up(state)
    with pytest.raises(AggregationError, match="state"):
        made("fedavg", server_optimiser="fedadam").take_up(state)


def test_a_silo_without_a_gradient_is_named():
    bad = [SiloUpdate(delta=one.delta) for one in updates(ALL)]
    with pytest.raises(AggregationError, match="silo 0 gave no mean gradient"):
        made("scaffold").combine(adapter(), bad, round_number=1, mean=Mean())
    method = made("scaffold")
    for silo in (-1, SILOS):
        with pytest.raises(AggregationError, match="no silo"):
            method.correction(silo)
