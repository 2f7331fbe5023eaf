"""Low-rank pairs in one step: against autograd through peft's own layers; what is left alone."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model

from dp.errors import CouplingError
from dp.steps.backends import BACKENDS
from dp.steps.low_rank import pairs_in
from tests.kit.dp import tiny_lm as tiny

UNITS = ((tiny.row(1, 7),), (tiny.row(2, 12), tiny.row(3, 5)), (tiny.row(4, 12),))
LAYERS = 4
"""Of the tiny model's two blocks."""


def adapted(name="default", **changes):
    torch.manual_seed(1)
    model = tiny.model().requires_grad_(requires_grad=False)
    options = {"r": 2, "lora_alpha": 3.0, "target_modules": ["qkv", "out"], **changes}
    model = inject_adapter_in_model(LoraConfig(**options), model, adapter_name=name).eval()
    for parameter in factors(model).values():
        parameter.data = 0.3 * torch.randn(parameter.shape)
    return model


def factors(model, kinds=("lora_A", "lora_B")):
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if any(f".{kind}." in name for kind in kinds) and name.endswith(".weight")
    }


def gradients(backend, model, *, kinds=("lora_A", "lora_B"), loss=None):
    made = BACKENDS[backend](
        model=model,
        parameters=factors(model, kinds),
        loss=loss or tiny.RowSums(),
        probe=tiny.PROBE,
    )
    return list(made.unit_gradients(UNITS))


def pairs_of(model):
    return pairs_in(model, factors(model).values())


def agree(one, other, tolerance=1e-6):
    assert len(one) == len(other)
    for got, expected in zip(one, other, strict=True):
        assert np.linalg.norm(expected) > 1e-3
        assert np.linalg.norm(got - expected) <= tolerance * np.linalg.norm(expected)


@pytest.mark.parametrize("backend", ["hooks", "fixed"])
@pytest.mark.parametrize("kinds", [("lora_A", "lora_B"), ("lora_A",), ("lora_B",)])
@pytest.mark.parametrize("changes", [{}, {"use_rslora": True}], ids=["lora", "rslora"])
def test_the_gradient_of_every_unit_is_autograd_s(backend, kinds, changes):
    model = adapted(**changes)
    assert len(pairs_of(model)) == LAYERS
    expected = gradients("loop", model, kinds=kinds)
    agree(gradients(backend, model, kinds=kinds), expected)


def test_not_one_bit_of_a_unit_depends_on_others_not_even_where_these_are_no_numbers():
    made = BACKENDS["fixed"](
        model=(model := adapted()),
        parameters=factors(model),
        loss=Steep(),
        probe=[((2, *ids), (False, *mask)) for ids, mask in tiny.PROBE],
    )
    well = [(((2, *ids), (False, *mask)),) for ids, mask in map(tiny.row, range(6), [14] * 6)]
    ill = [(((1, *ids), (False, *mask)),) for ids, mask in map(tiny.row, range(9), [14] * 9)]
    together = [vector.tobytes() for vector in made.unit_gradients(well)]
    assert made.one_by_one == ""
    assert [next(made.unit_gradients([unit])).tobytes() for unit in well] == together
    mixed = list(made.unit_gradients([*ill[:4], *well[::-1], *ill[4:]]))
    assert [vector.tobytes() for vector in mixed[4:10]] == together[::-1]
    assert all(not np.isfinite(vector).all() for vector in (*mixed[:4], *mixed[10:]))


class Steep(tiny.RowSums):
    """Rows that begin with a one have an infinite loss."""

    def sums(self, model, *batch, alone=False):
        sums, counts = super().sums(model, *batch, alone=alone)
        return torch.where(batch[0][:, 0] == 1, torch.inf, 1.0) * sums, counts


def test_no_operation_of_a_pair_s_layers_is_left():
    """Else the pair would be computed twice, or not in one step."""
    model = adapted()
    called = []
    for name, layer in model.named_modules():
        if name.rpartition(".")[2] in {"base_layer", "default"}:
            layer.register_forward_pre_hook(lambda _layer, _inputs, name=name: called.append(name))
    made = BACKENDS["hooks"](
        model=model, parameters=factors(model), loss=tiny.RowSums(), probe=tiny.PROBE
    )
    called.clear()
    list(made.unit_gradients(UNITS))
    assert called == []


@pytest.mark.filterwarnings("ignore:`lora_bias=True` was passed")
@pytest.mark.parametrize(
    "changes",
    [{"use_dora": True}, {"lora_dropout": 0.1}, {"lora_bias": True}],
    ids=["dora", "dropout", "bias"],
)
def test_layers_of_another_kind_are_left_to_themselves(changes):
    model = adapted(**changes)
    assert pairs_of(model) == []
    if "use_dora" not in changes:
        agree(gradients("hooks", model), gradients("loop", model))


def test_with_a_second_adapter_or_16_bit_weights_nothing_is_a_pair():
    model = adapted()
    for layer in model.modules():
        if hasattr(layer, "lora_A"):
            layer.lora_A["second"] = layer.lora_A["default"]
    assert pairs_of(model) == []
    model = adapted()
    for layer in model.modules():
        if hasattr(layer, "base_layer"):
            layer.base_layer.bfloat16()
    assert pairs_of(model) == []


def test_where_the_weight_beside_it_is_trained_a_layer_is_no_pair():
    model = adapted()
    beside = model.blocks[0].out.base_layer.weight.requires_grad_()
    assert len(pairs_in(model, [*factors(model).values(), beside])) == LAYERS - 1


class AgainstTheBase(tiny.RowSums):
    """A loss that looks at the model without its adapter as well."""

    def __init__(self, model):
        self._layers = [layer for layer in model.modules() if hasattr(layer, "lora_A")]

    def sums(self, model, *batch, alone=False):
        sums, counts = super().sums(model, *batch, alone=alone)
        for layer in self._layers:
            layer.enable_adapters(enabled=False)
        try:
            base, _ = super().sums(model, *batch, alone=alone)
        finally:
            for layer in self._layers:
                layer.enable_adapters(enabled=True)
        return (sums - base.detach()) ** 2, counts


def test_a_layer_whose_adapter_is_switched_off_is_the_base_s():
    model = adapted()
    loss = AgainstTheBase(model)
    agree(gradients("hooks", model, loss=loss), gradients("loop", model, loss=loss), 1e-4)


def test_a_layer_that_is_used_twice_adds_both_uses():
    model = adapted()
    model.blocks[1] = model.blocks[0]
    agree(gradients("hooks", model), gradients("loop", model))


class MergesRows(torch.nn.Module):
    """Gives its layer the rows of a batch as one row."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.reshape(1, -1, x.shape[-1])).view_as(x)


def test_a_layer_that_gets_merged_rows_is_refused_and_nothing_is_left_on_the_model():
    model = adapted()
    model.blocks[1].out = MergesRows(model.blocks[1].out)
    with pytest.raises(CouplingError, match="rows of a batch apart"):
        gradients("hooks", model)
    assert not any("forward" in vars(layer) for layer in model.modules())
    assert all(parameter.requires_grad for parameter in factors(model).values())
    assert isinstance(model(torch.tensor([[1, 2, 3]])), SimpleNamespace)
