"""A small adapter keeps its effect in 16 bits, and a layer without one is the base's."""

from functools import partial

import numpy as np
import pytest
import torch
from peft.tuners import lora

from evolution.model.adapted import FactorsBeside, MergedWeights
from evolution.model.beside import TrainedBeside
from evolution.model.causal_lm import load_base, load_tokenizer
from evolution.model.lora import attach_lora, initial_adapter, read_adapter, write_adapter
from evolution.rollout.hf import HfEngine
from evolution.train.rows import Row
from evolution.train.sft import SftTrainer
from federation.adapter.memory import rollout_memory
from federation.adapter.shapes import shape_from_config
from tests.kit.evolution import smollm2

KINDS = {"merged": MergedWeights, "beside": FactorsBeside}
TEXT = """\
The committee met on Tuesday to discuss the budget for next year. Several members argued that
spending on roads should rise, while others wanted more money for schools and hospitals. In the end
they agreed to write a report and to meet again in a month. In spring the river rises, and the
fields near the bridge are wet for weeks. The farmer keeps his sheep on the hill until the grass is
dry, and his daughter walks up every morning with bread and a bottle of milk."""


def layer(kind, *, seed=0, inputs=96, outputs=64, bias=True):
    generator = torch.Generator().manual_seed(seed)
    linear = torch.nn.Linear(inputs, outputs, bias=bias)
    for parameter in linear.parameters():
        parameter.requires_grad_(requires_grad=False)
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    linear = linear.to(torch.bfloat16)
    adapted = KINDS[kind](linear)
    return adapted, adapted if kind == "beside" else linear


def factors(rank, *, seed=1, inputs=96, outputs=64):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rank, inputs, generator=generator),
        torch.randn(outputs, rank, generator=generator),
    )


def kept(kind, size):
    """The part of a change that a layer's outputs show: slope against the exact change."""
    adapted, play = layer(kind)
    x = torch.randn(2000, 96, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    before = play(x).double()
    A, B = factors(4)
    adapted.set_factors(A, B, scale=size)
    exact = size * (x.double() @ A.T.double() @ B.T.double())
    return float(((play(x).double() - before) * exact).sum() / exact.square().sum())


def test_what_is_smaller_than_a_step_of_the_weights_is_kept_beside_them():
    assert kept("beside", 1e-4) == pytest.approx(1.0, abs=0.05)
    assert kept("merged", 1e-4) < 0.5
    assert kept("merged", 1.0) == pytest.approx(1.0, abs=0.01)
    assert kept("beside", 1.0) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_was_set_before_leaves_no_trace(kind, bias):
    x = torch.randn(7, 3, 96, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    used, play = layer(kind, bias=bias)
    base = play(x)
    found = []
    for rank, seed in ((4, 1), (2, 5), (4, 1)):
        used.set_factors(*factors(rank, seed=seed), scale=0.5)
        found.append(play(x))
    fresh, other = layer(kind, bias=bias)
    fresh.set_factors(*factors(4), scale=0.5)
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[0], other(x))
    assert not torch.equal(found[0], found[1])
    used.clear()
    assert torch.equal(play(x), base)
    assert used.shape == (64, 96)


@pytest.mark.parametrize("target", ["all-linear", ("v_proj",)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_forecast_knows_what_an_engine_holds(tiny_base, dtype, target):
    engine = HfEngine(tiny_base, dtype=dtype)
    if dtype == "float32":
        engine.load_adapter("one", initial_adapter(tiny_base, 1, 1.0, 0, target))
    layers = engine._linears.values()
    copies = (layer._base if dtype == "float32" else layer._weights for layer in layers)
    held = [*engine._model.parameters(), *(copy for copy in copies if copy is not None)]
    shape = shape_from_config((tiny_base / "config.json").read_bytes())
    forecast = rollout_memory(shape, target=target, conversations=1, tokens=1, dtype=dtype)
    assert sum(tensor.nbytes for tensor in held) == forecast.weights_bytes


def played(engine, ids, adapter):
    """Log-probabilities of a text's tokens, as an engine that plays with an adapter has them."""
    engine.load_adapter("one", adapter)
    with torch.inference_mode():
        logits = engine._model(input_ids=ids).logits[0, :-1].double()
    return torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None])[:, 0]


def seen_in_training(trainer, ids, adapter):
    """The same, as a trainer has them."""
    tokens = ids[0].numpy()
    row = Row(
        token_ids=tokens,
        mask=np.arange(len(tokens)) > 0,
        weights=np.ones(len(tokens), np.float32),
        logprobs=np.zeros(len(tokens), np.float32),
    )
    trainer.reset(adapter)
    return torch.from_numpy(trainer.logprobs([row])[0][1:]).double()


def with_pefts_layers(trainer):
    """Give a trainer peft's own forward pass: two products, of which the first is rounded."""
    layers = [m for m in trainer._model.modules() if isinstance(m, TrainedBeside)]
    assert layers
    for layer in layers:
        layer.__class__ = lora.Linear


@pytest.mark.long
def test_a_tenth_of_a_trained_adapter_keeps_its_effect_on_a_real_model(tmp_path):
    base = smollm2.base(tmp_path)
    ids = torch.tensor([load_tokenizer(base)(TEXT)["input_ids"]])
    model = attach_lora(load_base(base), rank=8, alpha=16.0)
    write_adapter(model, initial_adapter(base, 8, 16.0, 0))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-3)
    for _ in range(12):
        model(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    adapter = read_adapter(model)
    del model, trained, optimiser
    whole, half = (HfEngine(base, alpha=16.0, dtype=name) for name in ("float32", "bfloat16"))
    trainer = SftTrainer(base, rank=8, alpha=16.0, dtype="bfloat16")
    plain = SftTrainer(base, rank=8, alpha=16.0, dtype="bfloat16")
    with_pefts_layers(plain)
    parties = {
        "float32": partial(played, whole),
        "engine": partial(played, half),
        "trainer": partial(seen_in_training, trainer),
        "trainer with peft's layers": partial(seen_in_training, plain),
    }
    without = {
        name: said(ids, {key: 0 * tensor for key, tensor in adapter.items()})
        for name, said in parties.items()
    }
    for size in (1.0, 0.3, 0.1):
        scaled = {
            name: tensor * np.float32(size if ".lora_B." in name else 1.0)
            for name, tensor in adapter.items()
        }
        found = {name: said(ids, scaled) for name, said in parties.items()}
        effects = {name: found[name] - without[name] for name in parties}
        exact = effects["float32"]
        left = {
            name: float((one * exact).sum() / exact.square().sum()) for name, one in effects.items()
        }
        apart = {name: float((found["engine"] - one).abs().mean()) for name, one in found.items()}
        print(f"\nfigure: {size}: effect left {left}; nats from the engine {apart}")
        assert 0.95 <= left["engine"] <= 1.05, size
        assert 0.95 <= left["trainer"] <= 1.05, size
        assert apart["trainer"] < 0.005, size
        assert apart["trainer with peft's layers"] > 2 * apart["trainer"], size
    assert left["trainer with peft's layers"] < 0.95
