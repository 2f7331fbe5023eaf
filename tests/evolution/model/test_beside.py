"""In training too 16-bit weights feel a small adapter; the trainer sees what the engine sees."""

from dataclasses import replace

import pytest
import torch
from peft import LoraConfig
from peft.tuners import lora

from dp.config import SpecError
from evolution.model.adapted import FactorsBeside
from evolution.model.beside import TrainedBeside
from evolution.model.causal_lm import load_base
from evolution.model.lora import attach_lora, initial_adapter
from evolution.rollout.hf import HfEngine
from evolution.train.sft import SftTrainer
from evolution.train.trainer import TrainerSpec
from tests.kit.evolution.sft import ALPHA, NLL, PLAN, RANK, ROWS, apart

INPUTS, OUTPUTS, SCALE = 96, 64, 0.5


@pytest.fixture
def adapter(tiny_base):
    start = initial_adapter(tiny_base, RANK, ALPHA, 0)
    generator = torch.Generator().manual_seed(4)
    return {
        name: tensor + 0.05 * torch.randn(tensor.shape, generator=generator).numpy()
        for name, tensor in start.items()
    }


def tensors(*shapes, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def layer(kind=TrainedBeside, *, scale=SCALE, bias=True, seed=0):
    """One layer with factors of rank 4 that are all full."""
    linear = torch.nn.Linear(INPUTS, OUTPUTS, bias=bias, dtype=torch.bfloat16)
    values = tensors(*(p.shape for p in linear.parameters()), seed=seed)
    for parameter, value in zip(linear.parameters(), values, strict=True):
        parameter.requires_grad_(requires_grad=False)
        parameter.copy_(value)
    made = kind(linear, "default", config=LoraConfig(), r=4, lora_alpha=4 * scale)
    A, B = tensors((4, INPUTS), (OUTPUTS, 4))
    made.lora_A.float()
    made.lora_B.float()
    with torch.no_grad():
        made.lora_A["default"].weight.copy_(A)
        made.lora_B["default"].weight.copy_(B)
    return made, linear, A, B


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_says_what_the_engines_layer_says(bias):
    made, linear, A, B = layer(bias=bias)
    playing = FactorsBeside(linear)
    playing.set_factors(A, B, scale=SCALE)
    x = tensors((7, 3, INPUTS), seed=3)[0].bfloat16()
    assert torch.equal(made(x), playing(x))


def test_a_layer_that_is_switched_off_or_merged_is_one_product():
    made, linear, *_ = layer()
    x = tensors((9, INPUTS), seed=3)[0].bfloat16()
    base = linear(x)
    made.enable_adapters(enabled=False)
    assert torch.equal(made(x), base)
    made.enable_adapters(enabled=True)
    assert not torch.equal(made(x), base)
    made.merge()
    assert torch.equal(made(x), linear(x))
    assert not torch.equal(made(x), base)


def kept(kind, size):
    """The part of a change that a layer's outputs show: slope against the exact change."""
    made, linear, A, B = layer(kind, scale=size)
    x = tensors((2000, INPUTS), seed=2)[0].bfloat16()
    exact = size * (x.double() @ A.T.double() @ B.T.double())
    with torch.no_grad():
        change = made(x).double() - linear(x).double()
    return float((change * exact).sum() / exact.square().sum())


def test_what_is_smaller_than_a_step_of_the_outputs_is_kept():
    assert kept(TrainedBeside, 1e-4) == pytest.approx(1.0, abs=0.1)
    assert kept(lora.Linear, 1e-4) < 0.5
    assert kept(TrainedBeside, 1.0) == pytest.approx(1.0, abs=0.01)


def test_gradients_are_those_of_the_formula_and_the_weights_have_none():
    made, linear, A, B = layer()
    x, by_y = tensors((5, 9, INPUTS), (5, 9, OUTPUTS), seed=6)
    x = x.bfloat16().requires_grad_()
    by_y = by_y.bfloat16()
    made(x).backward(by_y)
    exact = [one.detach().double().requires_grad_() for one in (x, A, B)]
    y = exact[0] @ linear.weight.double().T + SCALE * (exact[0] @ exact[1].T @ exact[2].T)
    y.backward(by_y.double())
    found = (x, made.lora_A["default"].weight, made.lora_B["default"].weight)
    for one, expected, dtype in zip(
        found, exact, (torch.bfloat16, torch.float32, torch.float32), strict=True
    ):
        assert one.grad.dtype is dtype
        off = (one.grad.double() - expected.grad).norm() / expected.grad.norm()
        assert off < 0.005
    assert linear.weight.grad is None
    assert linear.bias.grad is None


@pytest.mark.parametrize("frozen", ["lora_A", "lora_B"])
def test_a_factor_that_is_not_trained_has_no_gradient_and_the_other_the_same(frozen):
    x = tensors((9, INPUTS), seed=6)[0].bfloat16()
    found = {}
    for still in (None, frozen):
        made, *_ = layer()
        if still:
            getattr(made, still)["default"].weight.requires_grad = False
        made(x).float().square().sum().backward()
        found[still] = {n: getattr(made, n)["default"].weight.grad for n in ("lora_A", "lora_B")}
    assert found[frozen].pop(frozen) is None
    ((name, gradient),) = found[frozen].items()
    assert torch.equal(gradient, found[None][name])


def trainer(base, adapter, dtype="bfloat16", **spec):
    made = SftTrainer(
        base, rank=RANK, alpha=ALPHA, dtype=dtype, spec=TrainerSpec(device="cpu", **spec)
    )
    made.reset(adapter)
    return made


def test_in_float32_the_layers_are_pefts_own(tiny_base):
    for dtype, kind in (("float32", lora.Linear), ("bfloat16", TrainedBeside)):
        model = attach_lora(load_base(tiny_base, dtype=dtype), rank=RANK, alpha=ALPHA)
        assert {type(m) for m in model.modules() if isinstance(m, lora.LoraLayer)} == {kind}


def test_the_trainer_sees_the_scores_that_the_engine_drew_from(tiny_base, adapter):
    engine = HfEngine(tiny_base, alpha=ALPHA, dtype="bfloat16")
    engine.load_adapter("x", adapter)
    ids = torch.tensor([[1, 5, 9, 2, 7, 11, 3]])
    with torch.no_grad():
        played = engine._model(input_ids=ids).logits
        trained = trainer(tiny_base, adapter)._model(input_ids=ids).logits
    assert torch.equal(played, trained)


def test_recomputed_activations_change_nothing(tiny_base, adapter):
    ends = []
    for spec in (
        {"micro_batch_tokens": 64},
        {"micro_batch_tokens": 64, "gradient_checkpointing": True},
    ):
        made = trainer(tiny_base, adapter, **spec)
        made.train(ROWS, NLL, replace(PLAN, epochs=1), trainable=frozenset(adapter))
        ends.append(made.adapter())
    assert apart(*ends) == 0.0
    assert apart(ends[0], adapter) > 1e-3


def test_units_have_the_gradients_of_float32_by_loop_and_are_refused_by_hooks(tiny_base, adapter):
    units = [ROWS[:2], ROWS[5:6]]
    found = []
    for dtype in ("float32", "bfloat16"):
        made = trainer(tiny_base, adapter, dtype)
        backend = made.gradients(sorted(adapter), NLL, backend="loop")
        found.append([torch.from_numpy(one) for one in backend.unit_gradients(units)])
    for whole, half in zip(*found, strict=True):
        assert torch.cosine_similarity(whole, half, dim=0) > 0.99
        assert float(half.norm() / whole.norm()) == pytest.approx(1.0, abs=0.05)
    with pytest.raises(SpecError, match="misses a part of the gradient"):
        made.gradients(sorted(adapter), NLL, backend="hooks")
