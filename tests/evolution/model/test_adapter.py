from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel

from evolution.errors import AdapterMismatchError, BaseModelError
from evolution.model.causal_lm import load_base
from evolution.model.identity import base_sha256
from evolution.model.lora import (
    attach_lora,
    initial_adapter,
    lora_parameters,
    read_adapter,
    write_adapter,
)
from evolution.rollout.engine import Prompt, Sampling
from evolution.rollout.hf import HfEngine
from federation.adapter.export import ExportError, write_peft_adapter
from tests.kit.evolution.tiny_base import writable_copy

RANK, ALPHA = 4, 8.0


def trained(base: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    first = initial_adapter(base, RANK, ALPHA, 0)
    return {k: (v + rng.normal(0, 0.1, v.shape)).astype(np.float32) for k, v in first.items()}


def test_initial_adapter_has_exactly_the_names_and_shapes_of_all_linear(tiny_base):
    first = initial_adapter(tiny_base, RANK, ALPHA, 0)
    model = attach_lora(load_base(tiny_base), rank=RANK, alpha=ALPHA)
    assert {k: v.shape for k, v in first.items()} == {
        k: tuple(v.shape) for k, v in lora_parameters(model).items()
    }
    assert not any("lm_head" in name or "embed" in name for name in first)


def test_initial_adapter_is_a_function_of_the_seed(tiny_base):
    one, again, other = (initial_adapter(tiny_base, RANK, ALPHA, seed) for seed in (5, 5, 6))
    for name, tensor in one.items():
        assert tensor.dtype == np.float32
        assert tensor.tobytes() == again[name].tobytes()
        if "lora_B" in name:
            assert not tensor.any()
        else:
            assert (tensor != other[name]).all()
            expected = 0.08 * np.sqrt(128 / tensor.shape[1])
            assert 0.6 * expected < tensor.std() < 1.4 * expected
    A = np.concatenate([t.ravel() for n, t in one.items() if "lora_A" in n and t.shape[1] == 32])
    assert abs(A.std() / 0.16 - 1) < 0.1


def test_write_then_read_is_bit_for_bit(tiny_base):
    tensors = trained(tiny_base)
    model = attach_lora(load_base(tiny_base), rank=RANK, alpha=ALPHA)
    write_adapter(model, tensors)
    back = read_adapter(model)
    assert {k: v.tobytes() for k, v in back.items()} == {k: v.tobytes() for k, v in tensors.items()}


def test_foreign_tensors_are_refused(tiny_base):
    tensors = trained(tiny_base)
    model = attach_lora(load_base(tiny_base), rank=RANK, alpha=ALPHA)
    before = read_adapter(model)
    name = next(iter(tensors))
    with pytest.raises(AdapterMismatchError, match="1 names differ"):
        write_adapter(model, {k: v for k, v in tensors.items() if k != name})
    with pytest.raises(AdapterMismatchError, match="shape"):
        write_adapter(model, {**tensors, name: tensors[name][:1]})
    assert all((before[k] == v).all() for k, v in read_adapter(model).items())


def test_exported_adapter_loads_in_peft_and_gives_our_logits(tiny_base, tmp_path):
    tensors = trained(tiny_base)
    out = write_peft_adapter(
        tensors,
        tmp_path / "out",
        base=str(tiny_base),
        rank=RANK,
        alpha=ALPHA,
        provenance={"run": "r1", "base_sha256": base_sha256(tiny_base)},
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        model = PeftModel.from_pretrained(load_base(tiny_base), out).eval()
    engine = HfEngine(tiny_base, alpha=ALPHA)
    engine.load_adapter("v", tensors)
    prompt = engine.chat.opening("craft", "goal plank .")
    with torch.no_grad():
        theirs = torch.log_softmax(model(input_ids=torch.tensor([prompt])).logits[0, -1], -1)
        bare = torch.log_softmax(load_base(tiny_base)(torch.tensor([prompt])).logits[0, -1], -1)
    greedy = Sampling(temperature=0.0, max_new_tokens=1, seed=0)
    ours = engine.generate([Prompt(key=0, token_ids=prompt)], greedy)[0]
    assert ours.token_ids[0] == int(theirs.argmax())
    drawn = engine.generate([Prompt(key=0, token_ids=prompt)], replace(greedy, temperature=1.0))[0]
    assert abs(drawn.logprobs[0] - float(theirs[drawn.token_ids[0]])) < 1e-5
    assert (bare - theirs).abs().max() > 0.1
    back = read_adapter(model)
    assert all(back[k].tobytes() == v.tobytes() for k, v in tensors.items())
    provenance = json.loads((out / "provenance.json").read_text())
    assert provenance == {"run": "r1", "base_sha256": base_sha256(tiny_base)}


def test_an_adapter_on_some_layers_is_attached_exported_and_played_on_just_those(
    tiny_base, tmp_path
):
    target = ("v_proj", "layers.0.mlp.up_proj")
    first = initial_adapter(tiny_base, RANK, ALPHA, 0, target)
    layers = {name.removeprefix("base_model.model.").rpartition(".lora_")[0] for name in first}
    assert layers == {
        *(f"model.layers.{n}.self_attn.v_proj" for n in range(len(layers) - 1)),
        "model.layers.0.mlp.up_proj",
    }
    model = attach_lora(load_base(tiny_base), rank=RANK, alpha=ALPHA, target=target)
    write_adapter(model, first)
    rng = np.random.default_rng(1)
    tensors = {k: (v + rng.normal(0, 0.3, v.shape)).astype("f4") for k, v in first.items()}
    whole = trained(tiny_base)
    with pytest.raises(AdapterMismatchError, match="names differ"):
        write_adapter(model, whole)
    arguments = {"base": str(tiny_base), "rank": RANK, "alpha": ALPHA, "provenance": {}}
    out = write_peft_adapter(tensors, tmp_path / "out", target=target, **arguments)
    config = json.loads((out / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(target)
    with pytest.raises(ExportError, match="does not name"):
        write_peft_adapter(whole, tmp_path / "whole", target=target, **arguments)
    with warnings.catch_warnings():
        # peft says so of a factor that a file lacks, or that a model lacks.
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        loaded = PeftModel.from_pretrained(load_base(tiny_base), out).eval()
    assert {k: v.tobytes() for k, v in read_adapter(loaded).items()} == {
        k: v.tobytes() for k, v in tensors.items()
    }
    engine = HfEngine(tiny_base, alpha=ALPHA)
    prompt = engine.chat.opening("craft", "goal plank .")
    # What all layers played with before leaves nothing behind.
    engine.load_adapter("whole", whole)
    engine.load_adapter("some", tensors)
    sampling = Sampling(temperature=1.0, max_new_tokens=1, seed=0)
    ours = engine.generate([Prompt(key=0, token_ids=prompt)], sampling)[0]
    with torch.no_grad():
        theirs = torch.log_softmax(loaded(input_ids=torch.tensor([prompt])).logits[0, -1], -1)
        bare = torch.log_softmax(load_base(tiny_base)(torch.tensor([prompt])).logits[0, -1], -1)
    assert abs(ours.logprobs[0] - float(theirs[ours.token_ids[0]])) < 1e-5
    assert (bare - theirs).abs().max() > 0.05


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("w_proj", "names 'w_proj', and no linear layer.*q_proj, up_proj, v_proj"),
        ("lm_head", "no linear layer.*below its head"),
        ("self_attn", "no linear layer"),
        ("embed_tokens", "no linear layer"),
    ],
)
def test_a_target_that_the_model_lacks_says_what_it_has(tiny_base, name, says):
    with pytest.raises(AdapterMismatchError, match=says):
        initial_adapter(tiny_base, RANK, ALPHA, 0, ("v_proj", name))
    with pytest.raises(AdapterMismatchError, match=says):
        attach_lora(load_base(tiny_base), rank=RANK, alpha=ALPHA, target=("v_proj", name))


def test_a_name_that_means_another_module_too_is_refused(tiny_base):
    """peft goes by names alone, and would put factors on the embedding as well."""
    model = load_base(tiny_base)
    model.model.register_module("v_proj", torch.nn.Embedding(4, 4))
    with pytest.raises(AdapterMismatchError, match=r"'model.v_proj', which is no linear layer"):
        attach_lora(model, rank=RANK, alpha=ALPHA, target=("v_proj",))
    some = attach_lora(model, rank=RANK, alpha=ALPHA, target=("self_attn.v_proj",))
    assert all("self_attn.v_proj" in name for name in lora_parameters(some))


def test_export_is_reproducible(tiny_base, tmp_path):
    tensors = trained(tiny_base)
    arguments = {"base": "b", "rank": RANK, "alpha": ALPHA, "provenance": {}}
    one = write_peft_adapter(tensors, tmp_path / "1", **arguments)
    backwards = dict(reversed(list(tensors.items())))
    two = write_peft_adapter(backwards, tmp_path / "2", **arguments)
    for file in one.iterdir():
        assert file.read_bytes() == (two / file.name).read_bytes()


def test_incomplete_or_broken_adapters_are_not_exported(tiny_base, tmp_path):
    tensors = trained(tiny_base)
    name = next(iter(tensors))
    bad = [
        {},
        {k: v for k, v in tensors.items() if k != name},
        {**tensors, "base_model.model.lm_head.weight": tensors[name]},
        {**tensors, name: np.full_like(tensors[name], np.nan)},
        {**tensors, name: tensors[name][1:]},
    ]
    for index, broken in enumerate(bad):
        with pytest.raises(ExportError):
            write_peft_adapter(
                broken, tmp_path / str(index), base="b", rank=RANK, alpha=ALPHA, provenance={}
            )
        assert not (tmp_path / str(index)).exists()


def test_base_digest_sees_every_identifying_file_and_ignores_the_build_record(tiny_base, tmp_path):
    copy = writable_copy(tiny_base, tmp_path / "copy")
    digest = base_sha256(copy)
    assert digest == base_sha256(tiny_base)
    (copy / "build.json").write_text("{}")
    (copy / "README.md").write_text("about")
    assert base_sha256(copy) == digest
    for name in ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"):
        content = (copy / name).read_bytes()
        (copy / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert base_sha256(copy) != digest, name
        (copy / name).write_bytes(content)
    (copy / "config.json").rename(copy / "config2.json")
    with pytest.raises(BaseModelError, match="no config"):
        base_sha256(copy)


def test_base_digest_follows_links_and_refuses_pickles(tiny_base, tmp_path):
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in tiny_base.iterdir():
        (linked / file.name).symlink_to(file)
    assert base_sha256(linked) == base_sha256(tiny_base)
    (linked / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(BaseModelError, match="pickled"):
        base_sha256(linked)
    with pytest.raises(BaseModelError):
        base_sha256(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BaseModelError, match="no safetensors"):
        base_sha256(tmp_path / "empty")
