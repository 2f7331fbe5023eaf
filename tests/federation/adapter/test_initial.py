"""φ₀ from a config.json: peft's names and shapes, and the silos' own bytes, without torch."""

import json
import warnings

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from evolution.model import lora
from federation.adapter.encoding import encode_adapter
from federation.adapter.initial import initial_adapter
from federation.adapter.layout import Layout
from federation.adapter.shapes import MAX_CONFIG_BYTES, PRESETS, shape_from_config, shape_of
from federation.errors import LayoutError, ModelShapeError
from tests.kit.paths import ROOT

BASE = ROOT / "lab" / "base_model"
SIZES = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 128,
}  # fmt: skip
TINY = {
    "llama": LlamaConfig(**SIZES),
    "llama-head-dim": LlamaConfig(**SIZES, head_dim=24),
    "llama-one-kind-of-heads": LlamaConfig(**{**SIZES, "num_key_value_heads": 4}),
    "mistral": MistralConfig(**SIZES),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True),
}


def state_dict_of(config, target="all-linear"):
    """What peft itself puts on such a model."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        model = get_peft_model(
            AutoModelForCausalLM.from_config(config),
            LoraConfig(r=4, lora_dropout=0.0, target_modules=target, task_type="CAUSAL_LM"),
        )
    return {name: part.detach().numpy() for name, part in lora.lora_parameters(model).items()}


@pytest.mark.parametrize("name", TINY)
def test_names_and_shapes_are_those_of_peft_and_the_values_those_of_a_silo(tmp_path, name):
    TINY[name].save_pretrained(tmp_path)
    shape = shape_from_config((tmp_path / "config.json").read_bytes())
    made = initial_adapter(shape, rank=4, seed=3)
    theirs = state_dict_of(TINY[name])
    assert {n: part.shape for n, part in made.items()} == {n: p.shape for n, p in theirs.items()}
    for tensor, part in made.items():
        assert part.dtype == np.float32
        if ".lora_B." in tensor:
            assert not part.any()
            assert not theirs[tensor].any()
            continue
        # Of at least 256 normal entries the spread is within a quarter: 5 standard errors.
        assert part.std() == pytest.approx(0.08 * (128 / part.shape[1]) ** 0.5, rel=0.25)
    silos = lora.initial_adapter(tmp_path, rank=4, alpha=8, seed=3)
    assert encode_adapter(made) == encode_adapter(silos)


@pytest.mark.parametrize(
    "target", [("v_proj",), ("q_proj", "mlp.down_proj"), ("layers.1.mlp.up_proj",)]
)
def test_on_the_targets_layers_it_is_what_peft_adapts_and_a_part_of_the_whole(tmp_path, target):
    TINY["qwen3"].save_pretrained(tmp_path)
    shape = shape_from_config((tmp_path / "config.json").read_bytes())
    made = initial_adapter(shape, rank=4, seed=3, target=target)
    theirs = state_dict_of(TINY["qwen3"], list(target))
    assert {n: part.shape for n, part in made.items()} == {n: p.shape for n, p in theirs.items()}
    whole = initial_adapter(shape, rank=4, seed=3)
    assert len(made) < len(whole)
    assert all(part.tobytes() == whole[name].tobytes() for name, part in made.items())
    silos = lora.initial_adapter(tmp_path, rank=4, alpha=8, seed=3, target=target)
    assert encode_adapter(made) == encode_adapter(silos)


def test_on_the_base_model_of_this_repository_it_is_named_as_the_silos_name_it():
    shape = shape_from_config((BASE / "config.json").read_bytes())
    made = initial_adapter(shape, rank=8, seed=0)
    theirs = lora.initial_adapter(BASE, rank=8, alpha=16, seed=0)
    assert encode_adapter(made) == encode_adapter(theirs)
    assert shape.lora_layout(8).sha256 == Layout.from_tensors(theirs).sha256


def test_a_silo_can_load_it():
    model = lora.attach_lora(
        AutoModelForCausalLM.from_pretrained(BASE, local_files_only=True), rank=8, alpha=16
    )
    shape = shape_from_config((BASE / "config.json").read_bytes())
    made = initial_adapter(shape, rank=8, seed=1)
    lora.write_adapter(model, made)
    for name, part in lora.read_adapter(model).items():
        np.testing.assert_array_equal(part, made[name])


def test_it_depends_on_seed_rank_and_name_alone():
    shape = shape_from_config((BASE / "config.json").read_bytes())
    first = initial_adapter(shape, rank=4, seed=5)
    assert encode_adapter(first) == encode_adapter(initial_adapter(shape, rank=4, seed=5))
    other = initial_adapter(shape, rank=4, seed=6)
    drawn = [name for name in first if ".lora_A." in name]
    assert len(drawn) == 21
    contents = {first[name].tobytes() for name in drawn} | {other[name].tobytes() for name in drawn}
    assert len(contents) == 2 * len(drawn)


def test_a_known_model_needs_no_config():
    shape = shape_of("Qwen/Qwen2.5-0.5B-Instruct")
    assert shape is PRESETS["Qwen/Qwen2.5-0.5B"]
    made = initial_adapter(shape, rank=1, seed=0)
    assert Layout.from_tensors(made).dimension == sum(shape.lora_parameters(1))


def config(**changes):
    content = {"model_type": "qwen2", **SIZES, **changes}
    return json.dumps({key: value for key, value in content.items() if value != "absent"}).encode()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[]", "not a JSON object"),
        (b" " * (MAX_CONFIG_BYTES + 1), "more than"),
        (config(model_type="absent"), "model_type 'None'"),
        (config(model_type="mixtral"), "'mixtral', whose adapters are not known"),
        (config(model_type=["qwen2"]), "not known"),
        (config(hidden_size="absent"), "hidden_size"),
        (config(hidden_size=0), "hidden_size"),
        (config(hidden_size=True), "hidden_size"),
        (config(hidden_size=64.0), "hidden_size"),
        (config(hidden_size="64"), "hidden_size"),
        (config(hidden_size=66), "multiple"),
        (config(num_hidden_layers=10**9), "num_hidden_layers"),
        (config(num_key_value_heads="absent"), "num_key_value_heads"),
        (config(num_key_value_heads=8), "num_key_value_heads"),
        (config(intermediate_size=-1), "intermediate_size"),
        (config(vocab_size=None), "vocab_size"),
        (config(model_type="qwen3"), "head_dim"),
        (config(head_dim=2**40), "head_dim"),
    ],
)
def test_what_does_not_say_its_shape_is_refused(content, match):
    with pytest.raises(ModelShapeError, match=match):
        shape_from_config(content)


def test_an_adapter_beyond_the_protocol_is_not_made():
    huge = shape_from_config(config(hidden_size=2**20, num_hidden_layers=2**10))
    with pytest.raises(LayoutError):
        initial_adapter(huge, rank=1024, seed=0)
