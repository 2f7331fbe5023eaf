"""``chorale-lab diagnose`` on small experiments, with models that really play and train."""

import json

import pytest
from typer.testing import CliRunner

from lab.cli.main import app
from lab.diagnose.setting import compared, task_chi2
from lab.experiment.errors import ExperimentError
from tests.kit.lab.experiment_samples import HEAD, SILOS, base, runs, setting, silo, write
from tests.kit.lab.lab_results import write as write_results
from tests.kit.paths import ROOT
from tests.lab.diagnose.test_observed import CENTRAL, FEDERATED

BANDITS = f"""
name = "bandits"
base = "{ROOT / "lab" / "base_model"}"
rounds = 1
seeds = [0]
rank = 4
alpha = 8.0

[evolve]
recipe = "grpo"
episodes = 32
tries_per_task = 8
batch_size = 32
epochs = 1
nominal_tokens = 12
learning_rate = 1e-2
max_new_tokens = 6
use_expert = false

[[silo]]
name = "left"
environments = ["bandit"]
count = 2

[[silo]]
name = "right"
environments = ["bandit-swapped"]
count = 2

[[setting]]
name = "silent"
method = "fedse"

[[setting]]
name = "told"
method = "fedse"
variants = {{ kind = "none", descriptor = true }}
"""


def invoke(*arguments):
    done = CliRunner().invoke(app, ["diagnose", *map(str, arguments)])
    return done.exit_code, done.output


def data(*arguments):
    code, output = invoke(*arguments, "--format", "json")
    assert code == 0, output
    return json.loads(output.splitlines()[-1])["data"]


def test_the_bandit_is_told_apart_by_its_line_alone(tmp_path):
    file, out = write(tmp_path, BANDITS), tmp_path / "out"
    options = ("--out", out, "--steps", 1, "--episodes", 12)
    said = data(file, "--setting", "silent", "--setting", "told", *options)
    found = {
        name: json.loads((out / name / "diagnose.json").read_text()) for name in ("silent", "told")
    }
    assert {name: one["locus"] for name, one in found.items()} == dict.fromkeys(
        found, "environments"
    )
    assert found["silent"]["worlds"] == ["left-001", "right-001"]
    for test in ("t1", "t2", "t3"):
        assert found["silent"][test]["passed"] is False, found["silent"][test]
    assert found["silent"]["floor"] is not None
    assert found["silent"]["predicted"]["pattern"] in "CD"
    assert found["told"]["t3"] | {"words": 0, "accuracy": 0, "why": 0} == {
        "passed": True, "why": 0, "accuracy": 0, "chance": 0.5, "t_star": 1, "eta_cls": 0.0,
        "eta_ker": 0.0, "words": 0,
    }  # fmt: skip
    assert found["told"]["floor"] is None
    assert said["patterns"]["told"] == {"predicted": "B", "observed": None}
    text = (out / "silent" / "report.md").read_text()
    for part in ("## Verdicts", "## Bounds", "## What to do", "## Under masks", "probes.png"):
        assert part in text
    assert (out / "silent" / "probes.png").stat().st_size > 1000


@pytest.mark.long
def test_what_was_trained_is_taken_up_and_half_of_a_file_is_made_again(tmp_path):
    file, out = write(tmp_path, BANDITS), tmp_path / "out"
    options = (file, "--setting", "told", "--out", out, "--steps", 1, "--episodes", 6)
    code, first = invoke(*options)
    assert code == 0, first
    assert first.count("steps alone") == 3
    before = (out / "told" / "diagnose.json").read_bytes()
    kept = sorted(out.glob("kept/*/*.safetensors"))
    whole = kept[0].read_bytes()
    assert len(kept) == 3
    kept[0].write_bytes(whole[:100])
    code, again = invoke(*options)
    assert code == 0, again
    assert again.count("steps alone") == 1
    assert kept[0].read_bytes() == whole
    assert (out / "told" / "diagnose.json").read_bytes() == before


def test_silos_that_differ_in_tasks_alone_pass_the_first_test(tmp_path):
    base(tmp_path)
    file = write(tmp_path, HEAD + SILOS + setting("shards", "fedse"))
    out = tmp_path / "out"
    data(file, "--setting", "shards", "--out", out, "--steps", 1, "--episodes", 8, "--silos", 3)
    found = json.loads((out / "shards" / "diagnose.json").read_text())
    assert found["locus"] == "tasks"
    assert len(found["worlds"]) == 3
    assert {pair["distance"]["count"] for pair in found["t1"]["pairs"]} == {0}
    assert found["t1"]["passed"] is True, found["t1"]["why"]
    assert found["t3"]["passed"] is None
    assert found["predicted"]["pattern"] == "A"
    # Three silos with a quarter of the labels each have no label in common.
    assert found["chi2"] == pytest.approx([2.0] * 3)


def test_one_silo_of_each_kind_is_compared(tmp_path):
    markets = "".join(
        silo(n, environment="market", count=1, shard_index=0, demonstrations=0) for n in range(6)
    )
    rows = setting("fields", "fedse", 'variants = { kind = "field-subset" }')
    rows += setting("plain", "fedse")
    fields, plain = runs(tmp_path, HEAD + markets + rows)
    found = compared(fields, most=8, tasks=4)
    # Places 0, 0, 3, 1, … of the pool: the first silo of each, in the order of the file.
    assert found.locus == "environments"
    assert found.kinds == len(found.worlds) == len({w.kind for w in found.worlds})
    assert [world.name for world in found.worlds[:3]] == ["silo-0", "silo-2", "silo-3"]
    same = compared(plain, most=3, tasks=4)
    assert (same.locus, same.kinds, len(same.worlds)) == ("tasks", 1, 3)
    assert task_chi2(plain) == pytest.approx([0.0] * 6, abs=1e-9)
    with pytest.raises(ExperimentError, match="nobody to be compared with"):
        compared(plain.model_copy(update={"silos": plain.silos[:1]}), most=3, tasks=4)


def test_results_are_observed_and_the_last_line_is_the_issues(tmp_path):
    base(tmp_path)
    file = write(tmp_path, HEAD + SILOS + setting("tasks", "fedse"))
    results = write_results(tmp_path / "results", CENTRAL + FEDERATED)
    code, output = invoke(file, "--results", results, "--out", tmp_path / "out")
    assert code == 0, output
    line = json.loads(output.strip().splitlines()[-1])
    assert set(line) == {"patterns", "federated_minus_best_local", "federated_minus_central"}
    assert line["patterns"]["split"] == {"predicted": None, "observed": "C"}
    assert (tmp_path / "out" / "observed.md").is_file()


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ((), 4, "nothing to do"),
        (("--setting", "tacks"), 1, "the nearest is 'tasks'"),
        (("--results", ".", "--dial", "tasks"), 4, "SETTING=VALUE"),
        (("--results", ".", "--dial", "tasks=far"), 4, "takes a number"),
        (("--results", ".", "--baseline", "tasks=none"), 1, "no finished setting 'none'"),
    ],
)
def test_what_cannot_be_asked_is_said(tmp_path, monkeypatch, options, code, said):
    base(tmp_path)
    file = write(tmp_path, HEAD + SILOS + setting("tasks", "fedse"))
    monkeypatch.chdir(write_results(tmp_path / "results", CENTRAL + FEDERATED))
    done, output = invoke(file, "--out", tmp_path / "out", *options)
    assert done == code
    assert said in " ".join(output.split())
