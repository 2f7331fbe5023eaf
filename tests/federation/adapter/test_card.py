"""The model card: front matter that parses, facts that are there, names that stay text."""

import json
import math
from dataclasses import replace

import pytest

from dp.accounting.compose import Epsilon
from dp.config import Mode, RecordSpec
from federation.adapter.card import FamilySuccess, render_card
from federation.adapter.export import write_peft_adapter
from federation.aggregate.registry import INCOMPLETE_ADAPTERS
from federation.text import escaped
from tests.kit.federation.cards import CARD, SILO

NONE = replace(SILO, mode=Mode.NONE, noise_multiplier=0.0, metrics_noise_multiplier=0.0)
DISTRIBUTED = replace(
    SILO,
    mode=Mode.RECORD_DISTRIBUTED,
    record=RecordSpec(sampling_rate=0.1, expected_units=64, steps_per_round=4),
)


def front_matter(text):
    head, body = text.removeprefix("---\n").split("\n---\n", 1)
    return head.splitlines(), body


def test_the_front_matter_names_base_library_and_tags():
    lines, body = front_matter(render_card(CARD))
    assert lines[:3] == [
        'base_model: "Qwen/Qwen2.5-7B-Instruct"', "base_model_relation: adapter",
        "library_name: peft",
    ]  # fmt: skip
    assert {"- lora", "- federated-learning", "- differential-privacy"} <= set(lines)
    assert "---" not in lines
    assert body.startswith("\n# shards, round 7\n")


def test_every_digest_and_count_is_there():
    text = render_card(CARD)
    for value in (
        CARD.adapter_sha256, CARD.plan_sha256, CARD.base_sha256, CARD.record_sha256,
        CARD.head_sha256, "clinics", "run-1", "| silos in its sum | 9 |",
        "| one silo | 5.432 | 1e-05 |", "| 6 | craft | 50.0 ± 1.0 % |",
        "| 7 | craft | below noise |", "--max-lora-rank 8 ",
    ):  # fmt: skip
        assert value in text
    assert render_card(CARD) == text


def test_without_noise_it_says_that_there_is_no_privacy():
    text = render_card(replace(CARD, privacy=NONE, epsilon={"silo": Epsilon(math.inf)}, success=()))
    assert "there is no differential privacy" in text
    assert "- differential-privacy" not in text
    assert "Not reported: no masked sum" in text


@pytest.mark.parametrize(
    ("spec", "epsilon", "said"),
    [
        (
            DISTRIBUTED,
            {"task": Epsilon(3.0)},
            "one task with all its trajectories, against everybody who",
        ),
        (
            replace(
                DISTRIBUTED,
                mode=Mode.RECORD_LOCAL,
                unit="user",
                record=replace(DISTRIBUTED.record, delta_clip_l2=1.0),
            ),
            {"user": Epsilon(math.inf)},
            "all tasks of one user, against everybody outside the silo",
        ),
    ],
)
def test_the_statement_follows_the_mode(spec, epsilon, said):
    text = render_card(replace(CARD, privacy=spec, epsilon=epsilon))
    assert said in text
    assert f"Mode `{spec.mode.value}`" in text
    assert "| unit | ε (zero-out adjacency) | δ |" in text
    if "user" in epsilon:
        assert "| one user | infinite |" in text


def test_an_adapter_that_is_not_the_whole_result_says_so_before_its_use():
    said = INCOMPLETE_ADAPTERS["fedsa"]
    text = render_card(replace(CARD, incomplete=said))
    line = f"**Not the whole result of the run:** {escaped(said)}.\n"
    assert text.index(line) < text.index("from peft import PeftModel")
    assert text.replace(line + "\n", "") == render_card(CARD)


def test_hostile_names_stay_text():
    evil = 'x"\n---\nlicense: mit\n# <script>alert(1)</script> | [a](javascript:x) `$y$`'
    family = FamilySuccess(round=7, family=evil, ratio=0.1, standard_error=0.1)
    text = render_card(
        replace(CARD, run_name=evil, federation=evil, run_id=evil, base=evil, success=(family,))
    )
    lines, body = front_matter(text)
    assert not any("license" in line or "base_model" in line for line in lines)
    assert "<script>" not in body
    assert "[a](" not in body.replace("\\[a\\]\\(", "")
    rows = [line for line in body.splitlines() if line.startswith("| federation")]
    assert rows == [f"| federation | {escaped(evil)} |"]
    assert "\nlicense" not in body


def test_a_directory_is_no_model_id():
    for base in ("/srv/models/base", "../base", "a/b/c", ""):
        lines, _ = front_matter(render_card(replace(CARD, base=base)))
        assert not any(line.startswith("base_model:") for line in lines)


def test_only_the_last_rounds_are_shown():
    figures = tuple(
        FamilySuccess(round=n, family="craft", ratio=0.5, standard_error=0.1) for n in range(1, 31)
    )
    text = render_card(replace(CARD, success=figures))
    assert "| 21 | craft" in text
    assert "| 20 | craft" not in text


def test_the_layers_are_named_as_the_plan_names_them():
    assert "Rank 8, α 16, all linear layers." in render_card(CARD)
    some = render_card(replace(CARD, target=("q_proj", "v_proj")))
    assert "Rank 8, α 16, on the linear layers q\\_proj, v\\_proj." in some


def test_the_export_is_what_vllm_reads(tmp_path):
    """vLLM's PEFTHelper: r and lora_alpha integers, target_modules, bias none, no saved modules."""
    import numpy as np

    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {
        f"{prefix}.lora_A.weight": np.ones((8, 4), np.float32),
        f"{prefix}.lora_B.weight": np.ones((6, 8), np.float32),
    }
    written = write_peft_adapter(
        tensors, tmp_path, base="b", rank=8, alpha=16.0, provenance={}, card=render_card(CARD)
    )
    config = json.loads((written / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (8, 16)
    assert type(config["lora_alpha"]) is int
    assert config["target_modules"] == ["q_proj"]
    assert (config["bias"], config["modules_to_save"]) == ("none", None)
    assert (config["peft_type"], config["task_type"]) == ("LORA", "CAUSAL_LM")
    assert (written / "README.md").read_text() == render_card(CARD)
    half = write_peft_adapter(
        tensors, tmp_path / "half", base="b", rank=8, alpha=0.5, provenance={}
    )
    assert json.loads((half / "adapter_config.json").read_text())["lora_alpha"] == 0.5
    assert not (half / "README.md").exists()
