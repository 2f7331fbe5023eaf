"""Shapes against transformers and published counts; memory against what torch keeps."""

import warnings

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config, Qwen3Config
from transformers.models.llama import LlamaForCausalLM
from transformers.models.qwen2 import Qwen2ForCausalLM
from transformers.models.qwen3 import Qwen3ForCausalLM

from evolution.model.lora import adapted_linears
from federation.adapter.memory import rollout_memory, training_memory
from federation.adapter.shapes import PRESETS, ModelShape, shape_of

# Millions of parameters at r = 8, all linear layers: A, B, A + B; the publishers' totals.
SIZES = {
    "Qwen/Qwen2.5-0.5B": (1.97, 2.43, 4.40, 494_032_768),
    "Qwen/Qwen2.5-1.5B": (4.07, 5.16, 9.23, 1_543_714_304),
    "Qwen/Qwen2.5-3B": (6.71, 8.26, 14.97, 3_085_938_688),
    "Qwen/Qwen2.5-7B": (9.06, 11.13, 20.19, 7_615_616_512),
    "meta-llama/Llama-3.2-3B": (5.96, 6.19, 12.16, 3_212_749_824),
    "Qwen/Qwen3-1.7B": (4.13, 4.59, 8.72, 1_720_574_976),
    "Qwen/Qwen3-8B": (10.62, 11.21, 21.82, 8_190_735_360),
}


def built(shape, name):
    """The real architecture of that shape, without memory."""
    config, model = (
        (LlamaConfig, LlamaForCausalLM) if "Llama" in name
        else (Qwen3Config, Qwen3ForCausalLM) if "Qwen3" in name
        else (Qwen2Config, Qwen2ForCausalLM)
    )  # fmt: skip
    with torch.device("meta"):
        return model(
            config(
                hidden_size=shape.hidden, num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
                head_dim=shape.head_dim, intermediate_size=shape.mlp,
                vocab_size=shape.vocabulary, tie_word_embeddings=shape.tied,
            )
        )  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_sizes_are_the_published_ones(name):
    shape = PRESETS[name]
    A, B = shape.lora_parameters(8)
    millions = [count / 1e6 for count in (A, B, A + B)]
    assert millions == pytest.approx(SIZES[name][:3], abs=0.0065)
    assert shape.parameters == SIZES[name][3]
    layout = shape.lora_layout(8)
    assert layout.dimension == A + B


@pytest.mark.parametrize("name", PRESETS)
def test_shapes_are_those_of_the_architecture(name):
    shape = PRESETS[name]
    model = built(shape, name)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters
    linears = {
        module: tuple(linear.weight.shape) for module, linear in adapted_linears(model).items()
    }
    assert linears == {
        f"model.layers.{layer}.{linear}": sides
        for layer in range(shape.layers)
        for linear, sides in shape.linears.items()
    }


def test_a_base_is_known_by_its_id_only():
    assert shape_of("Qwen/Qwen2.5-7B-Instruct") is PRESETS["Qwen/Qwen2.5-7B"]
    assert shape_of("Qwen/Qwen3-8B-Base") is PRESETS["Qwen/Qwen3-8B"]
    for base in ("/srv/Qwen2.5-7B", "Qwen2.5-7B", "Qwen/Qwen2.5-72B", ""):
        assert shape_of(base) is None


SMALL = {"hidden": 256, "heads": 4, "kv_heads": 2, "mlp": 1024, "vocabulary": 1000, "tied": True}


def kept_bytes(shape, name, tokens):
    """What autograd keeps for the backward pass, beside parameters: bf16 base, float32 LoRA."""
    from peft import LoraConfig, get_peft_model

    model = built(shape, name).to_empty(device="cpu").to(torch.bfloat16)
    model.model.rotary_emb.inv_freq = torch.ones(shape.head_dim // 2)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
    for key, parameter in model.named_parameters():
        if "lora_" in key:
            parameter.data = parameter.data.float()
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            # The storage is held, so that no address is used twice.
            kept[storage.data_ptr()] = storage
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        ids = torch.zeros(1, tokens, dtype=torch.long)
        model(input_ids=ids, use_cache=False, logits_to_keep=1)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize(("name", "head_dim"), [("Qwen2", 32), ("Qwen2", 64), ("Qwen3", 64)])
def test_a_block_keeps_what_the_estimate_says(name, head_dim):
    tokens = 512
    one, three = (
        ModelShape(**SMALL, head_dim=head_dim, layers=layers, qk_norm=name == "Qwen3")
        for layers in (1, 3)
    )
    measured = kept_bytes(three, name, tokens) - kept_bytes(one, name, tokens)
    estimates = [
        training_memory(
            shape, rank=8, tokens=tokens, dtype="bfloat16", gradient_checkpointing=False
        )
        for shape in (one, three)
    ]
    estimated = estimates[1].activations_bytes - estimates[0].activations_bytes
    assert estimated == pytest.approx(measured, rel=0.05)


def test_the_estimate_of_qwen_7b():
    shape = PRESETS["Qwen/Qwen2.5-7B"]
    options = {"rank": 8, "tokens": 4096, "dtype": "bfloat16"}
    plain = training_memory(shape, **options, gradient_checkpointing=False)
    saving = training_memory(shape, **options, gradient_checkpointing=True)
    assert plain.weights_bytes == 2 * 7_615_616_512
    assert plain.adapter_bytes == 18 * sum(shape.lora_parameters(8))
    assert plain.logits_bytes == 4096 * 152_064 * 10
    assert saving.activations_bytes < plain.activations_bytes / 10
    divided = training_memory(
        shape, **options, gradient_checkpointing=True, processes=8, sharding="fsdp"
    )
    assert divided.weights_bytes == -(-plain.weights_bytes // 8) + 2 * shape.block_parameters
    third = training_memory(shape, **options, gradient_checkpointing=True, agent_share=1 / 3)
    assert third.logits_bytes == pytest.approx(saving.logits_bytes / 3, rel=1e-3)
    assert third.total_bytes < saving.total_bytes
    # 2 x 28 layers x 4 heads x 128 x 2 bytes.
    served = rollout_memory(shape, conversations=64, tokens=4096, dtype="bfloat16", paged=True)
    assert served.cache_bytes == 57_344 * 64 * 4096
    playing = rollout_memory(shape, conversations=64, tokens=4096, dtype="bfloat16")
    assert playing.cache_bytes == pytest.approx(2 * served.cache_bytes, rel=0.01)
    # A pass is bounded, whatever the number of conversations.
    many = rollout_memory(shape, conversations=128, tokens=4096, dtype="bfloat16")
    assert many.pass_bytes < 1.1 * playing.pass_bytes


def test_nonsense_is_refused():
    shape = PRESETS["Qwen/Qwen3-8B"]
    for change in ({"rank": 0}, {"tokens": 0}, {"dtype": "int4"}, {"agent_share": 0.0}):
        options = {"rank": 8, "tokens": 8, "dtype": "bfloat16", **change}
        with pytest.raises(ValueError):
            training_memory(shape, gradient_checkpointing=True, **options)
    with pytest.raises(ValueError):
        rollout_memory(shape, conversations=0, tokens=1, dtype="bfloat16")
