"""``chorale plan new``: the file, stdout, the envelope; what is refused and what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evolution.model.identity import base_sha256
from federation.adapter.shapes import shape_from_config
from federation.forecast.forecast import shared_dimension
from federation.plan.read import read_plan
from ops.cli.envelope import run_app
from server.cli.main import app
from tests.kit.paths import ROOT

BASE = ROOT / "lab" / "base_model"
ASKED = ("plan", "new", "--silos", 3, "--episodes", 80, "--epsilon", 8)


@pytest.fixture
def chorale(monkeypatch, capsys, tmp_path):
    """Run a command in an empty directory; exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["chorale", *map(str, arguments)])
        code = 0
        try:
            run_app(app)
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_file_can_be_asked_about_as_it_stands(chorale):
    code, out, err = chorale(*ASKED, "-o", "first.toml", "--base", BASE)
    assert code == 0, err
    assert out.startswith("wrote first.toml")
    assert "z = 1.821: ε = 7.994 of 8" in out
    plan = read_plan(Path("first.toml").read_bytes())
    assert (plan.name, plan.privacy.mode) == ("first", "record_local")
    assert plan.model.base_sha256 == base_sha256(BASE)
    # What the coordinator's command says next is typed as it stands.
    (following,) = [line for line in err.splitlines() if line.startswith("next: chorale ")]
    code, out, err = chorale(*following.removeprefix("next: chorale ").split(), "--format", "json")
    assert code == 0, err
    answer = json.loads(out)["data"]
    assert answer["warnings"] == []
    assert answer["epsilon_total"]["task"]["epsilon"] <= 8.0
    assert "warning" not in err


def test_without_a_file_stdout_is_the_plan(chorale):
    code, out, err = chorale(*ASKED, "--mode", "record_distributed", "--environment", "maze")
    assert code == 0, err
    plan = read_plan(out.encode())
    assert plan.evolve.environments == ("maze",)
    assert plan.privacy.mode == "record_distributed"
    assert "base_sha256 is still zeros" in err
    code, out, _ = chorale(*ASKED, "--format", "json")
    data = json.loads(out)["data"]
    assert read_plan(data["plan_toml"].encode()).rounds.quorum == data["quorum"] == 3
    assert data["epsilon"] <= 8.0


def test_a_file_that_is_there_stays_unless_it_is_said(chorale):
    Path("plan.toml").write_text("mine")
    code, out, err = chorale(*ASKED, "-o", "plan.toml", "--format", "json")
    assert (code, json.loads(out)["error_code"]) == (4, "file_exists")
    assert "--force" in err
    assert Path("plan.toml").read_text() == "mine"
    assert chorale(*ASKED, "-o", "plan.toml", "--force")[0] == 0
    assert read_plan(Path("plan.toml").read_bytes()).name == "plan"


def test_what_cannot_fit_writes_nothing_and_says_what_would(chorale):
    code, out, _ = chorale(*ASKED, "--mode", "silo", "-o", "plan.toml", "--format", "json")
    answer = json.loads(out)
    assert (code, answer["error_code"]) == (4, "plan_refused")
    assert "use --silos 59, or --mode record_local" in answer["message"]
    assert not Path("plan.toml").exists()
    asked = ("plan", "new", "--silos", 59, "--episodes", 80, "--epsilon", 8, "--mode", "silo")
    assert chorale(*asked, "-o", "plan.toml")[0] == 0


@pytest.mark.parametrize("mode", ["none", "silo", "record_local"])
def test_the_upload_that_is_counted_is_the_one_that_is_made(chorale, mode):
    asked = ["plan", "new", "--silos", 100, "--episodes", 80, "--mode", mode, "--base", BASE]
    asked += [] if mode == "none" else ["--epsilon", 8]
    code, out, err = chorale(*asked, "--format", "json")
    assert code == 0, err
    data = json.loads(out)["data"]
    plan = read_plan(data["plan_toml"].encode())
    shape = shape_from_config((BASE / "config.json").read_bytes())
    layout = shape.lora_layout(plan.model.lora_rank, plan.model.target)
    assert data["dimension"] == shared_dimension(plan, layout)


def test_a_large_base_trains_fewer_layers_and_then_fits(chorale):
    few = ("plan", "new", "--silos", 4, "--episodes", 400, "--epsilon", 8)
    code, out, err = chorale(*few, "--base", "Qwen/Qwen2.5-7B-Instruct", "--format", "json")
    assert code == 0, err
    plan = read_plan(json.loads(out)["data"]["plan_toml"].encode())
    assert (plan.model.target, plan.model.dtype) == (("v_proj",), "bfloat16")
    assert plan.model.base_sha256 == "0" * 64
    code, out, _ = chorale(*ASKED, "--base", "Qwen/Qwen2.5-7B-Instruct", "--format", "json")
    assert code == 4
    assert "of 14,336 trained numbers" in json.loads(out)["message"]
