"""What a silo says of its GPU, and rounds under masks whose members work on one."""

import json
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from prometheus_client import generate_latest

from evolution.model.identity import base_sha256
from lab.experiment.config import load_experiment
from ops.doctor.checkup import Outcome
from silo_agent.config import SiloConfig
from silo_agent.daemon.process import Scrape
from silo_agent.doctor.dry_round import dry_round
from silo_agent.doctor.machine import judge_gpu, judge_memory
from silo_agent.machine.machine import look
from silo_agent.metrics import SiloMetrics
from tests.kit.lab.experiment_samples import HEAD, SILOS, base, setting, write
from tests.kit.paths import ROOT

BASE = ROOT / "lab" / "base_model"


@pytest.fixture
def config(tmp_path):
    (tmp_path / "silo.toml").write_text(
        f'base_model = "{BASE}"\nenvironments = ["craft"]\n'
        '[rollout]\ndevice = "cuda"\n[training]\ndevice = "cuda"\n'
    )
    return SiloConfig.load(tmp_path)


def test_the_doctor_names_the_gpu_and_what_is_free_on_it(config):
    found = judge_gpu(config)
    assert found.outcome == Outcome.OK
    assert torch.cuda.get_device_name(0) in found.found
    memory = judge_memory(config)
    assert memory.outcome == Outcome.OK
    assert "free on the GPU" in memory.found
    free = torch.cuda.mem_get_info(0)[0]
    (first, *_) = look(config).gpus
    assert first.name == torch.cuda.get_device_name(0)
    assert abs(first.memory_bytes - free) < 1 << 30


def test_a_dry_round_plays_and_trains_on_the_gpu(config):
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    tried = dry_round(config)
    assert tried.episodes > 0
    assert torch.cuda.max_memory_allocated() > before


def test_a_scrape_has_the_memory_of_a_gpu_that_is_used(tmp_path):
    torch.cuda.init()
    metrics = SiloMetrics()
    audit = SimpleNamespace(head_index=0)
    Scrape(metrics=metrics, audit=audit, data_dir=tmp_path, answered_unix_s=float).refresh()
    text = generate_latest(metrics.registry).decode()
    (line,) = (
        one
        for one in text.splitlines()
        if one.startswith('chorale_silo_gpu_memory_total_bytes{device="0"}')
    )
    assert float(line.split()[1]) == torch.cuda.mem_get_info(0)[1]


def run_of(directory, table, *arguments):
    """A whole run in a process of its own; its rows."""
    directory.mkdir()
    where = f'[rollout]\ndevice = "{table}"\n[training]\ndevice = "{table}"\n'
    made = base(directory)
    text = HEAD + where + SILOS + setting("x", "fedse", 'sums = "masked"\n')
    (run,) = load_experiment(write(directory, text)).runs(
        base_dir=made, base_sha256=base_sha256(made)
    )
    (directory / "tmp").mkdir()
    (directory / "run.json").write_text(run.model_dump_json())
    done = subprocess.run(
        [sys.executable, "-m", "lab.experiment.worker", str(directory), *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (directory / "rows.jsonl").read_text().splitlines()]


def test_rounds_under_masks_come_to_the_same_on_a_gpu(tmp_path):
    here, there = (run_of(tmp_path / device, device) for device in ("cpu", "cuda"))
    assert [row["kind"] for row in here] == [row["kind"] for row in there]
    rounds = [(a, b) for a, b in zip(here, there, strict=True) if a["kind"] == "round"]
    assert rounds
    for mine, theirs in rounds:
        assert mine["delta_l2_mean"] > 0
        assert theirs["delta_l2_mean"] == pytest.approx(mine["delta_l2_mean"], rel=1e-2)
        assert theirs["successes"] == mine["successes"]


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_actors_share_a_gpu_and_come_to_the_same(tmp_path):
    """Two members at a time, half a card each."""
    alone = run_of(tmp_path / "process", "cuda")
    shared = run_of(
        tmp_path / "ray", "cuda", "--engine", "ray", "--actors", "2", "--gpus-per-actor", "0.5"
    )
    for mine, theirs in zip(alone, shared, strict=True):
        assert {**mine, "wall_s": 0} == {**theirs, "wall_s": 0}
