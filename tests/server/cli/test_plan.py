"""``chorale run plan``: the figures, the table of modes, the refusals; without a coordinator."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from evolution.model.identity import base_sha256
from federation.adapter.encoding import encode_adapter
from federation.adapter.initial import initial_adapter
from federation.adapter.shapes import shape_from_config
from federation.aggregate.registry import INCOMPLETE_ADAPTERS
from federation.forecast.forecast import forecast_plan
from federation.plan.read import read_plan
from ops.cli.envelope import run_app
from server.cli.main import app
from tests.kit.paths import ROOT

EXAMPLES = ROOT / "deploy" / "examples"
DISTRIBUTED = EXAMPLES / "plan-record-distributed.toml"
TEN = ("--silos", "10", "--colluding", "1")
MODES = ["none", "silo", "record_local", "record_distributed"]


def call(monkeypatch, capsys, *arguments: object) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["chorale", *map(str, arguments)])
    try:
        run_app(app)
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def edited(tmp_path: Path, old: str, new: str, base: Path = DISTRIBUTED) -> Path:
    text = base.read_text()
    assert text.count(old) == 1
    path = tmp_path / "plan.toml"
    path.write_text(text.replace(old, new))
    return path


def test_the_envelope_holds_the_forecast_and_every_mode(monkeypatch, capsys):
    code, out, err = call(
        monkeypatch, capsys, "run", "plan", DISTRIBUTED, *TEN, "--dimension", 3072, "--format",
        "json",
    )  # fmt: skip
    assert code == 0, err
    data = json.loads(out)["data"]
    plan = read_plan(DISTRIBUTED.read_bytes())
    shown = forecast_plan(plan, silos=10, colluding=1, dimension=3072)
    assert data["epsilon_total"] == {
        unit: asdict(found) for unit, found in shown.epsilon_total.items()
    }
    assert data["epsilon_round"] == {
        unit: asdict(found) for unit, found in shown.epsilon_round.items()
    }
    assert data["predicted_cosine"] == shown.predicted_cosine
    assert (data["releases"], data["charged_releases"], data["max_units"]) == (160, 192, 128)
    assert [row["mode"] for row in data["alternatives"]] == MODES
    assert data["alternatives"][0]["epsilon_total"] == "inf"
    assert data["alternatives"][1]["unit"] == "silo"
    assert data["alternatives"][3]["steps_per_round"] == 16


def test_people_get_a_table_of_the_modes(monkeypatch, capsys):
    code, out, err = call(
        monkeypatch, capsys, "run", "plan", DISTRIBUTED, *TEN, "--dimension", 3072
    )
    assert code == 0
    assert "task-level ε: 3.119 a round, 7.574 for 192 charged attempts at δ = 1e-05" in out
    lines = [line.split() for line in out.splitlines()]
    table = {line[0]: line for line in lines if line and line[0] in MODES}
    assert list(table) == MODES
    assert all(len(row) == 8 for row in table.values())
    assert table["none"][1:5] == ["-"] * 4
    assert float(table["record_distributed"][4]) == pytest.approx(8.0, rel=5e-3)
    assert float(table["silo"][5]) < 0.1
    assert err.splitlines()[-1].startswith("next: chorale run start")


def test_what_was_hardly_meant_is_warned_of_beside_the_result(monkeypatch, capsys, tmp_path):
    plan = edited(tmp_path, "expected_units = 64", "expected_units = 80")
    size = ("--dimension", 3072)
    base = ("--base-config", ROOT / "lab" / "base_model")

    def asked(*more: object) -> tuple[list[str], str]:
        arguments = ("run", "plan", plan, *TEN, *size, *more)
        code, out, err = call(monkeypatch, capsys, *arguments, "--format", "json")
        assert code == 0, err
        return json.loads(out)["data"]["warnings"], err

    # Relative to the working directory the plan's own base may be here, and is then compared too.
    monkeypatch.chdir(tmp_path)
    (units, zeros), err = asked()
    assert units.startswith("privacy.record.expected_units: ")
    assert "zeros are no model's digest" in zeros
    assert f"warning: {units}\n" in err
    for found in (asked(*base)[0], asked("--base-config", base[1] / "config.json")[0]):
        assert "it is all zeros, and that of" in found[1]
        digest = found[1].partition(" is ")[2].partition(f"{base[1]} is ")[2][:64]
        assert digest == base_sha256(base[1])
    # A config.json without the weights tells a shape and no digest.
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "config.json").write_bytes((base[1] / "config.json").read_bytes())
    assert asked("--base-config", alone)[0] == [units, zeros]
    plan.write_text(plan.read_text().replace("0" * 64, digest).replace("units = 80", "units = 64"))
    assert asked(*base)[0] == []
    assert "warning" not in asked(*base)[1]


def test_a_refusal_has_its_warnings_beside_it(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    arguments = ("run", "plan", DISTRIBUTED, *TEN, "--dimension", 100_000_000, "--format", "json")
    code, out, err = call(monkeypatch, capsys, *arguments)
    assert code == 4
    (warning,) = json.loads(out)["data"]["warnings"]
    assert f"warning: {warning}\n" in err


def test_below_the_gate_it_is_refused_with_what_would_help(monkeypatch, capsys, tmp_path):
    arguments = (*TEN, "--dimension", 100_000_000)
    code, out, _ = call(
        monkeypatch, capsys, "run", "plan", DISTRIBUTED, *arguments, "--format", "json"
    )
    assert code == 4
    answer = json.loads(out)
    assert answer["error_code"] == "plan_refused"
    assert "privacy.min_cosine is 0.5" in answer["message"]
    assert "silos" in answer["message"]
    assert "expected_units to" in answer["message"]
    # The table is shown all the same: it is where a way out is found.
    code, out, err = call(monkeypatch, capsys, "run", "plan", DISTRIBUTED, *arguments)
    assert code == 4
    assert all(f"\n{mode} " in out for mode in MODES)
    assert "refused: privacy.min_cosine is 0.5" in out
    assert "error: this plan cannot start" in err
    accepted = edited(tmp_path, "min_cosine = 0.5", "min_cosine = 0.5\naccept_low_cosine = true")
    code, _, _ = call(monkeypatch, capsys, "run", "plan", accepted, *arguments)
    assert code == 0


def test_a_mode_that_cannot_be_had_has_a_reason_in_its_row(monkeypatch, capsys):
    path = EXAMPLES / "plan-constant.toml"
    code, out, _ = call(
        monkeypatch, capsys, "run", "plan", path, "--silos", 4, "--colluding", 1, "--dimension", 9
    )
    assert code == 0
    assert out.count("nothing is explored, so there are no units to sample") == 2


def test_a_plan_with_problems_names_each_of_them(monkeypatch, capsys, tmp_path):
    path = edited(tmp_path, 'server_optimiser = "adam"', 'server_optimiser = "fedavg"')
    path.write_text(path.read_text().replace("expected_units = 64", "expected_units = 2"))
    code, out, _ = call(
        monkeypatch, capsys, "run", "plan", path, *TEN, "--dimension", 9, "--format", "json"
    )
    assert code == 4
    message = json.loads(out)["message"]
    assert "aggregation.server_optimiser" in message
    assert "privacy.record.expected_units" in message


def test_a_plan_too_deep_to_be_one_is_a_refusal_and_no_bug(monkeypatch, capsys, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(f"{'.'.join('a' * 1200)} = 1")
    code, out, err = call(
        monkeypatch, capsys, "run", "plan", path, *TEN, "--dimension", 9, "--format", "json"
    )
    assert code == 4
    answer = json.loads(out)
    assert answer["error_code"] == "plan_refused"
    assert "a key of more than 8 parts at line 1" in answer["message"]
    assert "Traceback" not in err


QWEN = EXAMPLES / "qwen2.5-7b" / "plan.toml"


def test_a_known_base_says_its_memory_and_needs_no_dimension(monkeypatch, capsys):
    arguments = ("run", "plan", QWEN, "--silos", 10, "--colluding", 2)
    code, out, err = call(monkeypatch, capsys, *arguments, "--format", "json")
    assert code == 0, err
    data = json.loads(out)["data"]
    memory = data["memory"]
    assert memory["parameters"] == 7_615_616_512
    assert memory["kv_bytes_per_token"] == 57_344
    assert data["bytes_up"] >= 4 * memory["lora_b_parameters"]
    assert [row["processes"] for row in memory["training"]] == [1, 1, 8]
    for row in memory["training"]:
        parts = ("weights_bytes", "adapter_bytes", "activations_bytes", "logits_bytes")
        assert row["total_bytes"] == sum(row[part] for part in parts)
    code, out, err = call(monkeypatch, capsys, *arguments)
    assert code == 0
    assert "7.62 billion parameters; adapter at r = 8: A 9.06" in out
    assert "77.0 MiB in float32 (B alone 42.4)" in out
    assert sum("GiB" in line or "training" in line for line in out.splitlines()) >= 4


def test_a_target_decides_the_dimension_and_the_memory(monkeypatch, capsys, tmp_path):
    plan = edited(tmp_path, "lora_rank = 8", 'lora_rank = 8\ntarget = ["v_proj"]', QWEN)
    # With so few numbers the aggregation need not be refused for its noise; only sizes count here.
    arguments = ("run", "plan", plan, "--silos", 10, "--colluding", 2)
    code, out, err = call(monkeypatch, capsys, *arguments, "--format", "json")
    assert code == 0, err
    data = json.loads(out)["data"]
    memory = data["memory"]
    assert (memory["lora_a_parameters"], memory["lora_b_parameters"]) == (
        28 * 8 * 3584,
        28 * 8 * 512,
    )
    # rolora uploads the larger factor: four bytes a number, and the protocol's own.
    assert 0 <= data["bytes_up"] - 4 * 28 * 8 * 3584 < 20_000
    code, out, _ = call(monkeypatch, capsys, *arguments)
    assert "adapter at r = 8 on v_proj: A 802,816, B 114,688 numbers" in out


def test_a_target_of_layers_that_the_base_lacks_is_refused_with_those_it_has(
    monkeypatch, capsys, tmp_path
):
    plan = edited(tmp_path, "lora_rank = 1", 'lora_rank = 1\ntarget = ["c_attn"]')
    base = ("--base-config", ROOT / "lab" / "base_model")
    for size in ((), ("--dimension", 3072)):
        code, out, err = call(
            monkeypatch, capsys, "run", "plan", plan, *TEN, *base, *size, "--format", "json"
        )
        assert code == 4, err
        answer = json.loads(out)
        assert answer["error_code"] == "plan_refused"
        assert "names 'c_attn'" in answer["message"]
        assert "q_proj, up_proj, v_proj" in answer["message"]
        assert answer["next_step"] == f"change [model] target in {plan}, and ask again"
    # The right one is a smaller upload than all layers are.
    plan.write_text(plan.read_text().replace("c_attn", "v_proj"))
    sizes = [
        json.loads(call(monkeypatch, capsys, "run", "plan", p, *TEN, *base, "--format", "json")[1])
        for p in (plan, DISTRIBUTED)
    ]
    assert sizes[0]["data"]["bytes_up"] < sizes[1]["data"]["bytes_up"]


def test_an_adapter_of_other_layers_is_refused_before_the_start(monkeypatch, capsys, tmp_path):
    plan = edited(tmp_path, "lora_rank = 1", 'lora_rank = 1\ntarget = ["v_proj"]')
    shape = shape_from_config((ROOT / "lab" / "base_model" / "config.json").read_bytes())
    answers = []
    for target in (("v_proj",), "all-linear"):
        adapter = tmp_path / "adapter.safetensors"
        adapter.write_bytes(encode_adapter(initial_adapter(shape, rank=1, seed=0, target=target)))
        arguments = ("run", "plan", plan, *TEN, "--adapter", adapter, "--format", "json")
        answers.append(call(monkeypatch, capsys, *arguments))
    assert answers[0][0] == 0
    assert answers[1][0] == 4
    assert "model.target does not name" in json.loads(answers[1][1])["message"]


def test_an_unknown_base_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    arguments = ("run", "plan", DISTRIBUTED, *TEN, "--dimension", 3072)
    code, out, _ = call(monkeypatch, capsys, *arguments, "--format", "json")
    assert code == 0
    assert json.loads(out)["data"]["memory"] is None
    assert "memory of a GPU: not estimated" in call(monkeypatch, capsys, *arguments)[1]


@pytest.mark.parametrize("method", ["fedsa", "fedavg"])
def test_a_method_whose_adapter_is_not_the_whole_result_is_said(
    monkeypatch, capsys, tmp_path, method
):
    plan = edited(
        tmp_path, '[aggregation]\nmethod = "fedavg"', f'[aggregation]\nmethod = "{method}"',
        EXAMPLES / "plan-fed-se.toml",
    )  # fmt: skip
    arguments = ("run", "plan", plan, *TEN, "--dimension", 9)
    code, out, err = call(monkeypatch, capsys, *arguments, "--format", "json")
    assert code == 0, err
    note = INCOMPLETE_ADAPTERS.get(method)
    assert json.loads(out)["data"]["adapter_note"] == note
    _, out, _ = call(monkeypatch, capsys, *arguments)
    assert (f"note: {note}" in out) == (method == "fedsa")
    assert ("note:" in out) == (method == "fedsa")
