"""The benchmark of a local round runs from end to end, at sizes that say nothing about speed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch

from federation.adapter.shapes import PRESETS
from tests.kit.paths import ROOT

# A library may be called ``benchmarks`` too.
SPEC = spec_from_file_location("local_round", ROOT / "benchmarks" / "local_round.py")
local_round = sys.modules["local_round"] = module_from_spec(SPEC)
SPEC.loader.exec_module(local_round)

TINY = replace(
    PRESETS["Qwen/Qwen2.5-0.5B"], hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, mlp=96,
    vocabulary=1024,
)  # fmt: skip
FEW = ["--episodes", "2", "--demonstrations", "2", "--max-new-tokens", "3"]


def figures_of(capsys, *arguments):
    local_round.main([*FEW, *arguments])
    lines = capsys.readouterr().out.splitlines()
    phases = [line.split()[:2] for line in lines if line[:5].strip().isdigit()]
    return json.loads(lines[-1]), [(int(number), phase) for number, phase in phases]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_random_weights_of_a_shape_play_train_and_encode(dtype, monkeypatch, capsys):
    monkeypatch.setattr(local_round, "PRESETS", {"Qwen/Qwen2.5-0.5B": TINY})
    figures, phases = figures_of(capsys, "--dtype", dtype)
    assert phases == [(n, phase) for n in (1, 2) for phase in local_round.PHASES]
    assert figures["parameters"] == TINY.parameters
    assert figures["dtype"] == dtype
    assert sum(figures["share"].values()) == pytest.approx(1.0, abs=0.01)
    for name in ("generated", "conversation", "trained"):
        assert figures[f"{name}_tokens_per_s"] > 0
    assert torch.get_default_dtype() == torch.float32


def test_a_real_model_is_taken_from_its_directory(capsys):
    figures, _ = figures_of(capsys, "--base", str(local_round.SMALL), "--rounds", "1")
    assert figures["parameters"] == 465_984
    for phase in ("explore", "train"):
        assert figures["peak_gib"][phase] > 0.1
        assert figures["forecast_gib"][phase] > 0


def test_what_this_machine_lacks_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="sees no GPU"):
        local_round.main(["--device", "cuda"])
    with pytest.raises(SystemExit, match="use --base"):
        local_round.main(["--shape", "Qwen/Qwen3-8B"])
