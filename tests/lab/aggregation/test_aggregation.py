"""What holds for every aggregation method of the lab, and the one-sum methods against plans."""

from __future__ import annotations

import numpy as np
import pytest

from federation.adapter.layout import Layout
from federation.aggregate.registry import AGGREGATORS, OPTIMISERS, REFUSED_METHODS, make_aggregator
from federation.errors import LayoutError, UpdateError
from lab.aggregation.aggregation import (
    METHODS,
    OPTIONS,
    AggregationError,
    SiloUpdate,
    make_lab_aggregation,
)
from tests.kit.lab.aggregation_samples import (
    CLIP,
    LAYOUT,
    SIDES,
    SILOS,
    Mean,
    adapter,
    made,
    product,
    updates,
)

CROSSING = sorted(name for name, cls in OPTIMISERS.items() if cls.crosses_rounds)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_keeps_the_seams_promises(method):
    """Names, shapes, float32, what is asked for, and that it moves somewhere."""
    aggregation = made(method)
    tensors = adapter(b_scale=0.0)
    for number in (1, 2, 3):
        names = aggregation.trainable(number)
        assert names <= {spec.name for spec in LAYOUT.specs}
        for silo in range(SILOS):
            correction = aggregation.correction(silo)
            assert correction is None or {n: t.dtype for n, t in correction.items()} == (
                dict.fromkeys(names, np.float32)
            )
        mean = Mean()
        given = {name: tensor.copy() for name, tensor in tensors.items()}
        after = aggregation.combine(
            given, updates(names, seed=number), round_number=number, mean=mean
        )
        assert len(mean.asked) == aggregation.sums_per_round
        assert Layout.from_tensors(after) == LAYOUT
        assert all(np.isfinite(tensor).all() for tensor in after.values())
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(given[name], tensor)
        assert any(not np.array_equal(after[name], tensors[name]) for name in after)
        tensors = after
        # Another round's updates ask for the same sums: nothing depends on what is in them.
        again, other = Mean(), made(method)
        other.combine(
            adapter(),
            updates(other.trainable(number), seed=9, scale=2.0),
            round_number=number,
            mean=again,
        )
        assert again.asked == mean.asked


@pytest.mark.parametrize("method", sorted(METHODS))
def test_what_is_not_the_methods_is_refused(method):
    aggregation = made(method)
    names = aggregation.trainable(1)
    with pytest.raises(AggregationError, match="expected 4 updates"):
        aggregation.combine(adapter(), updates(names)[1:], round_number=1, mean=Mean())
    good = updates(names)
    short = dict(list(good[0].delta.items())[1:])
    for wrong in (short, good[0].delta | {"else": np.zeros(2, np.float32)}):
        bad = [SiloUpdate(delta=wrong, mean_gradient=good[0].mean_gradient), *good[1:]]
        with pytest.raises(LayoutError):
            aggregation.combine(adapter(), bad, round_number=1, mean=Mean())
    with pytest.raises(LayoutError):
        aggregation.combine({}, good, round_number=1, mean=Mean())

    # A product is split between two factors, so it may be as long as the square of a factor.
    for value, match in ((1e90, "out of float32"), (np.nan, "out of float32|not finite")):

        def broken(vectors, *, clip_l2, what, value=value):
            return np.full(vectors[0].size, value if what != "weight" else 1.0)

        with pytest.raises(UpdateError, match=match):
            made(method).combine(adapter(), good, round_number=1, mean=broken)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_updates_of_zero_leave_the_function(method):
    """Whatever is done to the factors, the products are what they were."""
    aggregation = made(method)
    before = adapter()
    zero = updates(aggregation.trainable(1), scale=0.0)
    after = aggregation.combine(before, zero, round_number=1, mean=Mean())
    for prefix in SIDES:
        old = product(before, prefix)
        assert np.linalg.norm(product(after, prefix) - old) <= 1e-5 * np.linalg.norm(old)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_fresh_adapter_stays_trainable(method):
    """One factor of every layer keeps full rank, so that gradients of the other one exist."""
    aggregation = made(method)
    zero = updates(aggregation.trainable(1), scale=0.0)
    after = aggregation.combine(adapter(b_scale=0.0), zero, round_number=1, mean=Mean())
    for prefix in SIDES:
        a = after[f"{prefix}.lora_A.weight"].astype(np.float64)
        assert np.linalg.matrix_rank(a) == a.shape[0]
        np.testing.assert_array_equal(product(after, prefix), 0.0)


@pytest.mark.parametrize("method", sorted(AGGREGATORS))
@pytest.mark.parametrize("gauge", [False, True])
def test_the_products_methods_are_the_products_own(method, gauge):
    """Byte for byte what ``federation.aggregate`` makes of the mean."""
    if gauge and method in {"ffa", "fedsa"}:
        with pytest.raises(AggregationError):
            made(method, gauge=True)
        return
    aggregation = made(method, gauge=gauge, server_step=1.5)
    product_method = make_aggregator(method, LAYOUT, server_step=1.5, gauge=gauge)
    tensors = adapter()
    for number in (1, 2, 3):
        silos = updates(aggregation.trainable(number), seed=number)
        shared = product_method.shared_layout(number)
        assert aggregation.trainable(number) == {spec.name for spec in shared.specs}
        mean = np.mean([shared.flatten(s.delta).astype(np.float64) for s in silos], axis=0)
        expected = product_method.apply(tensors, mean, number)
        tensors = aggregation.combine(tensors, silos, round_number=number, mean=Mean())
        for name, tensor in expected.items():
            np.testing.assert_array_equal(tensors[name], tensor)


@pytest.mark.parametrize("optimiser", CROSSING)
@pytest.mark.parametrize("method", ["fedavg", "ffa", "fedsa", "weighted"])
def test_server_optimisers_keep_their_moments_over_rounds(method, optimiser):
    """A second round is not a first one: the same updates move the adapter by another step."""
    aggregation = made(method, server_optimiser=optimiser, server_step=0.01)
    silos = updates(aggregation.trainable(1))
    start = {name: np.zeros_like(tensor) for name, tensor in adapter().items()}
    moves = []
    for number in (1, 2):
        after = aggregation.combine(start, silos, round_number=number, mean=Mean())
        moves.append(LAYOUT.flatten(after).astype(np.float64))
    assert not np.allclose(moves[0], moves[1])
    if optimiser == "fedavgm":
        np.testing.assert_allclose(moves[1], 1.9 * moves[0], rtol=1e-5)


def test_the_noise_that_is_known_reaches_the_second_moment():
    silos = updates(made("fedavg").trainable(1))
    after = {}
    for variance in (0.0, 0.02):
        aggregation = made(
            "fedavg", server_optimiser="fedadam", options={"noise_variance": variance}
        )
        made_of = aggregation.combine(adapter(), silos, round_number=1, mean=Mean())
        after[variance] = np.abs(LAYOUT.flatten(made_of) - LAYOUT.flatten(adapter()))
    assert (after[0.02] >= after[0.0] - 1e-6).all()
    assert after[0.02].sum() > 1.2 * after[0.0].sum()


@pytest.mark.parametrize(
    ("method", "changes", "match"),
    [
        ("krum", {}, "no method 'krum'; use one of"),
        ("flora", {}, "only ever sees sums"),
        ("fedavg", {"options": {"sketch": 3.0}}, "no option 'sketch'"),
        ("fedavg", {"options": {"noise_variance": -1.0}}, "noise_variance"),
        ("fedask", {"options": {"sketch": 2.0}}, "whole number from 3"),
        ("fedask", {"options": {"sketch": 4.5}}, "whole number"),
        ("fedask", {"options": {"product_clip_l2": float("nan")}}, "above 0"),
        ("flex_masked", {"options": {"product_clip_l2": 0.0}}, "above 0"),
        ("scaffold", {"options": {"control_clip_l2": -1.0}}, "above 0"),
        ("weighted", {"options": {"w_max": 0.0}}, "whole number from 1"),
        ("fedask", {"gauge": True}, "takes no gauge"),
        ("flex_masked", {"gauge": True}, "takes no gauge"),
        ("scaffold", {"gauge": True}, "control variates"),
        ("scaffold", {"server_optimiser": "fedadam"}, "takes no server optimiser"),
        ("fedask", {"server_optimiser": "fedavgm"}, "on products"),
        ("fedavg", {"server_optimiser": "adam"}, "steps on gradients"),
        ("fedavg", {"server_optimiser": "lion"}, "unknown server optimiser"),
        ("rolora", {"server_optimiser": "fedadam"}, "other coordinates"),
        ("fedsvd", {"server_optimiser": "fedyogi"}, "rewrites the coordinates"),
        ("weighted", {"server_optimiser": "fedavgm", "gauge": True}, "rewrites the coordinates"),
        ("fedavg", {"silos": 0}, "at least one silo"),
        ("fedavg", {"clip_l2": 0.0}, "clip_l2"),
        ("fedavg", {"server_step": float("inf")}, "server_step"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(method, changes, match):
    with pytest.raises(AggregationError, match=match):
        made(method, **changes)


def test_every_refused_method_is_either_run_here_or_needs_factors():
    """The two registries tell one story: what a plan refuses and the lab runs is said to be so."""
    for method, reason in REFUSED_METHODS.items():
        assert (method in METHODS) == ("the lab runs it" in reason)
        assert (method in METHODS) != ("only ever sees sums" in reason)
    assert set(METHODS) == set(OPTIONS)
    plain = Layout.from_tensors({"w": np.zeros(4, np.float32)})
    for method in sorted(set(METHODS) - {"fedavg", "weighted", "scaffold"}):
        with pytest.raises(LayoutError, match="LoRA"):
            make_lab_aggregation(
                method,
                plain,
                silos=3,
                clip_l2=CLIP,
                server_step=1.0,
                gauge=False,
                server_optimiser="fedavg",
                options={},
            )


def test_the_real_sum_feeds_every_method():
    """Grid, ring and noise of the lab instead of exact means: the result is the exact one's."""
    from lab.experiment.sums import PlainSum
    from lab.experiment.tables import NoiseTable

    table = NoiseTable(clip_l2=8.0)
    for method in sorted(METHODS):
        silos = updates(made(method).trainable(1), scale=0.05)
        ring = PlainSum(table, silos=SILOS, key=("test", method))
        results = [
            made(method, clip_l2=8.0).combine(adapter(), silos, round_number=1, mean=mean)
            for mean in (ring, Mean())
        ]
        for prefix in SIDES:
            one, other = (product(tensors, prefix) for tensors in results)
            np.testing.assert_allclose(one, other, atol=1e-3)
