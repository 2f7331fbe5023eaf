"""Merging: the same logits and the same greedy tokens as base and adapter, shard by shard."""

import json
import math
import shutil
import warnings

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from evolution.model.lora import initial_adapter
from federation.adapter.encoding import encode_adapter
from federation.adapter.export import write_peft_adapter
from federation.adapter.value_head import VALUE_HEAD
from lab.cli.main import app
from lab.serving.merge import MergeError, merge, read_adapter_at
from tests.kit.paths import ROOT

BASE = ROOT / "lab" / "base_model"
RANK, ALPHA = 4, 6.0


@pytest.fixture(scope="module")
def tensors():
    """An adapter that changes something: B is not zero."""
    stream = np.random.default_rng(3)
    return {
        name: stream.normal(0, 0.03, value.shape).astype(np.float32)
        for name, value in initial_adapter(BASE, RANK, ALPHA, 0).items()
    }


@pytest.fixture(scope="module")
def exported(tensors, tmp_path_factory):
    return write_peft_adapter(
        tensors, tmp_path_factory.mktemp("adapter") / "x", base=str(BASE), rank=RANK, alpha=ALPHA,
        provenance={"run": "r"},
        card="---\nbase_model_relation: adapter\nlibrary_name: peft\n---\n\n# A card\n",
    )  # fmt: skip


def with_peft(base, directory):
    from peft import PeftModel

    with warnings.catch_warnings():
        # peft 0.21 reads a property that transformers has deprecated.
        warnings.filterwarnings("ignore", category=FutureWarning)
        return PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(base), directory
        ).eval()


def prompts():
    return torch.arange(3 * 12).reshape(3, 12) % 97 + 3


def test_a_value_head_is_nothing_to_merge(tensors, exported, tmp_path):
    file = tmp_path / "adapter.safetensors"
    head = {VALUE_HEAD: np.ones((1, 128), dtype=np.float32)}
    file.write_bytes(encode_adapter({**tensors, **head}))
    one, other = (
        merge(read_adapter_at(path, alpha=ALPHA), BASE, tmp_path / name).directory
        for path, name in ((file, "one"), (exported, "other"))
    )
    weights = "model.safetensors"
    assert (one / weights).read_bytes() == (other / weights).read_bytes()


def test_the_merged_model_is_the_base_with_its_adapter(exported, tmp_path):
    out = merge(read_adapter_at(exported), BASE, tmp_path / "merged").directory
    merged = AutoModelForCausalLM.from_pretrained(out).eval()
    both, base = with_peft(BASE, exported), AutoModelForCausalLM.from_pretrained(BASE).eval()
    ids = prompts()
    with torch.no_grad():
        expected, found, plain = both(ids).logits, merged(ids).logits, base(ids).logits
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert (plain - expected).abs().max() > 0.1
    options = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    mask = torch.ones_like(ids)
    assert torch.equal(
        merged.generate(ids, attention_mask=mask, **options),
        both.generate(input_ids=ids, attention_mask=mask, **options),
    )
    text = "goal 2 down"
    assert AutoTokenizer.from_pretrained(out)(text) == AutoTokenizer.from_pretrained(BASE)(text)


def test_dtype_and_shards_are_kept(exported, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "base", max_shard_size="300KB")
    index = json.loads((tmp_path / "base" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    out = merge(read_adapter_at(exported), tmp_path / "base", tmp_path / "out").directory
    assert json.loads((out / "model.safetensors.index.json").read_text()) == index
    adapter = read_adapter_at(exported)
    changed = 0
    for name, shard in index["weight_map"].items():
        with (
            safe_open(tmp_path / "base" / shard, "pt") as before,
            safe_open(out / shard, "pt") as after,
        ):
            old, new = before.get_tensor(name), after.get_tensor(name)
        assert new.dtype == torch.bfloat16
        pair = adapter.factors.get(name.removesuffix(".weight"))
        if pair is None:
            assert torch.equal(old, new)
        else:
            A, B = (torch.tensor(factor) for factor in pair)
            expected = (old.float() + ALPHA / RANK * (B @ A)).to(torch.bfloat16)
            assert torch.equal(new, expected)
            changed += 1
    assert changed == len(adapter.factors)
    AutoModelForCausalLM.from_pretrained(out)


def test_what_rounding_loses_of_a_small_adapter_is_counted_and_said(tensors, tmp_path):
    half = tmp_path / "half"
    AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.bfloat16).save_pretrained(half)
    found = {}
    for size in (1.0, 0.01):
        scaled = {
            name: value * np.float32(size if ".lora_B." in name else 1.0)
            for name, value in tensors.items()
        }
        file = tmp_path / f"{size}.safetensors"
        file.write_bytes(encode_adapter(scaled))
        adapter = read_adapter_at(file, alpha=ALPHA)
        found[size] = [
            merge(adapter, base, tmp_path / f"{size}-{base.name}") for base in (BASE, half)
        ]
    for whole, _ in found.values():
        assert whole.moved > 0.95
        assert whole.error < 1e-3
    (_, large), (_, small) = found.values()
    assert large.moved > 2 * small.moved
    assert small.error > 5 * large.error > 0
    arguments = ["adapter", "merge", str(file), "--alpha", str(ALPHA), "--base"]
    warned, silent = (
        CliRunner().invoke(
            app, [*arguments, str(base), "--out", str(tmp_path / f"cli-{base.name}")]
        )
        for base in (half, BASE)
    )
    assert f"moved {small.moved:.0%} of the weights" in warned.stdout
    assert "serve base and adapter apart" in warned.stdout
    assert "WARNING" not in silent.stdout


def test_the_card_goes_with_it_and_says_what_it_is(exported, tmp_path):
    out = merge(read_adapter_at(exported), BASE, tmp_path / "out").directory
    card = (out / "README.md").read_text()
    assert "library_name: transformers\n" in card
    assert "base_model_relation: finetune\n" in card
    assert "# A card" in card
    assert read_adapter_at(exported).sha256 in card
    assert json.loads((out / "provenance.json").read_text()) == {"run": "r"}
    assert not (out / "build.json").exists()


def test_a_bare_file_takes_alpha(tensors, exported, tmp_path):
    file = tmp_path / "adapter.safetensors"
    file.write_bytes(encode_adapter(tensors))
    with pytest.raises(MergeError, match="α"):
        read_adapter_at(file)
    with pytest.raises(MergeError, match="not 3"):
        read_adapter_at(exported, alpha=3.0)
    for alpha in (math.nan, math.inf, 0.0):
        with pytest.raises(MergeError, match="α is"):
            read_adapter_at(file, alpha=alpha)
    one = merge(read_adapter_at(file, alpha=ALPHA), BASE, tmp_path / "one").directory
    two = merge(read_adapter_at(exported), BASE, tmp_path / "two").directory
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()


def test_the_command_merges_and_refuses_what_is_not_empty(exported, tmp_path):
    arguments = ["adapter", "merge", str(exported), "--base", str(BASE), "--out"]
    done = CliRunner().invoke(app, [*arguments, str(tmp_path / "out")], catch_exceptions=False)
    assert (done.exit_code, done.stdout) == (0, f"wrote {tmp_path / 'out'}\n"), done.output
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept.txt").write_text("mine")
    for taken in ("full", "out"):
        done = CliRunner().invoke(app, [*arguments, str(tmp_path / taken)])
        assert done.exit_code == 1
        assert "not an empty directory" in done.stderr
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["kept.txt"]


def test_a_base_that_does_not_fit_leaves_nothing_behind(exported, tensors, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(BASE, base)
    weights = load_file(base / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    for broken, reason in (
        ({**weights, name: weights[name][:, :-1].contiguous()}, "the adapter's is"),
        ({k: v for k, v in weights.items() if k != name}, "has no model.layers.0.mlp.up_proj"),
        ({**weights, name: weights[name].to(torch.int8)}, "cannot be merged into"),
    ):
        save_file(broken, base / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(MergeError, match=reason):
            merge(read_adapter_at(exported), base, tmp_path / "out")
    (base / "model.safetensors").write_bytes(b"no")
    with pytest.raises(MergeError, match="not safetensors"):
        merge(read_adapter_at(exported), base, tmp_path / "out")
    (base / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x"}}')
    with pytest.raises(MergeError, match="no weights"):
        merge(read_adapter_at(exported), base, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base"]


@pytest.mark.parametrize(
    "changed",
    [{"use_dora": True}, {"r": 8}, {"peft_type": "IA3"}, {"lora_alpha": "6"}, {"lora_alpha": 0}],
)
def test_other_adapters_are_refused(exported, tmp_path, changed):
    shutil.copytree(exported, tmp_path / "x")
    path = tmp_path / "x" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(MergeError):
        read_adapter_at(tmp_path / "x")


def test_incomplete_factors_are_refused(tensors, tmp_path):
    file = tmp_path / "a.safetensors"
    file.write_bytes(
        encode_adapter({n: v for n, v in tensors.items() if "up_proj.lora_B" not in n})
    )
    with pytest.raises(MergeError, match="A and B"):
        read_adapter_at(file, alpha=1.0)
    file.write_bytes(b"\0" * 100)
    with pytest.raises(MergeError, match="not an adapter"):
        read_adapter_at(file, alpha=1.0)
