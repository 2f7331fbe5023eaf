import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.cli.main import app
from lab.experiment import runner
from lab.experiment.rows import run_row
from lab.experiment.runner import Outcome
from tests.kit.lab.experiment_samples import HEAD, SILOS, base, setting, silo, write

ROWS = setting("first", "pretrained") + setting("second", "pretrained")
SMALL = HEAD.replace("held_out = 16", "held_out = 4")


def invoke(*arguments):
    return CliRunner().invoke(app, ["run", *map(str, arguments)])


def kinds(out):
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    return [(row["setting"], row["kind"]) for row in rows if row["kind"] == "run"]


@pytest.fixture
def small(tmp_path):
    base(tmp_path)
    return write(tmp_path, SMALL + SILOS + ROWS)


@pytest.mark.long
def test_a_grid_is_run_continued_and_never_repeated(small, tmp_path):
    out = tmp_path / "out"
    first = invoke(small, "--out", out, "--only", "first")
    assert first.exit_code == 0, first.output
    assert kinds(out) == [("first", "run")]
    before = (out / "results.jsonl").read_bytes()
    rest = invoke(small, "--out", out, "--workers", 2)
    assert "1 runs finished, 1 were finished before, 0 failed" in rest.output
    assert (out / "results.jsonl").read_bytes().startswith(before)
    assert kinds(out) == [("first", "run"), ("second", "run")]
    assert (out / "experiment.toml").read_bytes() == small.read_bytes()
    assert "0 runs finished, 2 were finished before" in invoke(small, "--out", out).output


@pytest.mark.long
def test_a_grid_that_is_told_to_end_leaves_no_worker_and_can_go_on(tmp_path):
    base(tmp_path)
    text = SMALL.replace("rounds = 2", "rounds = 1000") + SILOS + setting("long", "fedse")
    out = tmp_path / "out"
    command = [sys.executable, "-c", "from lab.cli.main import main; main()", "run"]
    command += [str(write(tmp_path, text)), "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as grid:
        for line in grid.stderr:
            if "round 1/1000" in line:
                break
        threads = Path(f"/proc/{grid.pid}/task").iterdir()
        (worker,) = "".join((thread / "children").read_text() for thread in threads).split()
        grid.terminate()
        said = grid.stderr.read()
    assert "the same command goes on" in said
    assert grid.returncode == 130
    assert not Path(f"/proc/{worker}").exists()
    assert not (out / "results.jsonl").exists()
    assert "long seed 0" in invoke(tmp_path / "experiment.toml", "--out", out, "--check").output


@pytest.mark.long
def test_a_failed_run_is_reported_with_its_reason(tmp_path):
    base(tmp_path)
    text = SMALL + SILOS + silo(3, tasks=2) + setting("bad", "fedit")
    out = tmp_path / "out"
    done = invoke(write(tmp_path, text), "--out", out)
    assert done.exit_code == 1
    assert (
        "failed: bad, seed 0: exit code 1: lab.experiment.errors.DemonstrationError" in done.output
    )
    assert not (out / "results.jsonl").exists()


def test_a_changed_experiment_is_refused_until_it_is_set_aside(small, tmp_path, monkeypatch):
    def finish(runs, results, **_):
        for run in runs:
            row = run_row(run, wall_s=1.0, episodes=0, adapter_sha256="", versions={}, panels={})
            results.append([row])
        return Outcome(finished=len(runs), skipped=0, failed=())

    monkeypatch.setattr(runner, "run_all", finish)
    out = tmp_path / "out"
    assert invoke(small, "--out", out, "--only", "first").exit_code == 0
    small.write_text(small.read_text().replace("held_out = 4", "held_out = 8"))
    refused = invoke(small, "--out", out, "--only", "first")
    assert refused.exit_code == 1
    assert "first, seed 0: judge.held_out" in refused.output
    anew = invoke(small, "--out", out, "--only", "first", "--force-new")
    assert anew.exit_code == 0
    assert (out / "results.1.jsonl").exists()
    assert kinds(out) == [("first", "run")]


def test_wrong_files_and_names_end_with_what_to_do(small, tmp_path):
    out = tmp_path / "out"
    unknown = invoke(small, "--out", out, "--only", "frist")
    assert unknown.exit_code == 1
    assert "error: --only: there is no setting 'frist'; the nearest is 'first'" in unknown.output
    assert "the file has the seeds [0], not 5" in invoke(small, "--out", out, "--seed", 5).output
    bad = setting("x", "fedse", 'aggregation = { method = "fedavgg" }')
    small.write_text(small.read_text() + bad)
    refused = invoke(small, "--out", out)
    assert refused.exit_code == 1
    assert "setting 'x': aggregation: " in refused.output
    small.write_text(small.read_text().replace("[judge]", "[jugde]"))
    assert (
        "jugde: unknown key; the nearest valid key is 'judge'" in invoke(small, "--out", out).output
    )
    assert not out.exists()


def test_check_says_what_would_run_and_writes_nothing(small, tmp_path):
    done = invoke(small, "--out", tmp_path / "out", "--check")
    assert done.output.splitlines() == [
        "first seed 0: pretrained, 0 rounds",
        "second seed 0: pretrained, 0 rounds",
    ]
    assert not (tmp_path / "out").exists()
