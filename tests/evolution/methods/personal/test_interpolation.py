"""Between two adapters: what is interpolated is the change of the weights, not the factors."""

import numpy as np
import pytest

from evolution.errors import AdapterMismatchError
from evolution.methods.personal.interpolation import interpolated

ALPHA = 4.0
LAYERS = {"x": (6, 5), "y": (3, 7)}


def adapter(seed, rank=2, layers=LAYERS):
    rng = np.random.default_rng(seed)
    made = {}
    for name, (out, inputs) in layers.items():
        prefix = f"base_model.model.{name}.lora_"
        made[f"{prefix}A.weight"] = rng.normal(size=(rank, inputs)).astype(np.float32)
        made[f"{prefix}B.weight"] = rng.normal(size=(out, rank)).astype(np.float32)
    return made


def change(tensors, layer):
    """ΔW as an engine makes it: α over the rank of what it is given."""
    A, B = (tensors[f"base_model.model.{layer}.lora_{f}.weight"].astype(np.float64) for f in "AB")
    return ALPHA / A.shape[0] * B @ A


def with_factor(of, other, which):
    return {name: (other if f"lora_{which}" in name else of)[name] for name in of}


@pytest.mark.parametrize("weight", [0.25, 0.5, 0.75])
@pytest.mark.parametrize(
    ("shared", "own", "rank"),
    [
        (adapter(1), adapter(2), 4),
        (adapter(1), adapter(2, rank=3), 5),
        (adapter(1), with_factor(adapter(2), adapter(1), "A"), 2),
        (adapter(1), with_factor(adapter(2), adapter(1), "B"), 2),
    ],
)
def test_the_change_of_every_layer_is_interpolated_exactly(shared, own, rank, weight):
    found = interpolated(shared, own, weight)
    assert found.keys() == shared.keys()
    for layer in LAYERS:
        wanted = (1 - weight) * change(shared, layer) + weight * change(own, layer)
        np.testing.assert_allclose(change(found, layer), wanted, rtol=1e-5, atol=1e-6)
    assert {found[name].shape[0] for name in found if "lora_A" in name} == {rank}


def test_the_mean_of_the_factors_would_be_something_else():
    shared, own = adapter(1), adapter(2)
    mean = {name: (shared[name] + own[name]) / 2 for name in shared}
    wanted = (change(shared, "x") + change(own, "x")) / 2
    assert np.abs(change(mean, "x") - wanted).max() > 0.5
    assert np.abs(change(interpolated(shared, own, 0.5), "x") - wanted).max() < 1e-5


def test_one_layer_with_another_a_makes_all_of_the_higher_rank():
    """Peft's form has one rank for all layers."""
    shared, own = adapter(1), with_factor(adapter(2), adapter(1), "A")
    own["base_model.model.y.lora_A.weight"] = adapter(3)["base_model.model.y.lora_A.weight"]
    found = interpolated(shared, own, 0.5)
    assert {found[name].shape[0] for name in found if "lora_A" in name} == {4}


def test_the_ends_are_the_two_adapters_bit_for_bit_without_a_head():
    head = {"value_head.weight": np.ones((1, 5), dtype=np.float32)}
    shared, own = adapter(1), adapter(2)
    for weight, end in ((0.0, shared), (1.0, own)):
        found = interpolated(shared | head, own | head, weight)
        assert found.keys() == end.keys()
        assert all(found[name].tobytes() == end[name].tobytes() for name in end)


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_a_weight_that_is_no_share_is_refused(weight):
    with pytest.raises(ValueError, match="from 0 to 1"):
        interpolated(adapter(1), adapter(2), weight)


@pytest.mark.parametrize("layers", [{"x": (6, 5)}, {"x": (6, 4), "y": (3, 7)}])
def test_adapters_of_other_layers_are_not_mixed(layers):
    with pytest.raises(AdapterMismatchError):
        interpolated(adapter(1), adapter(2, layers=layers), 0.5)
