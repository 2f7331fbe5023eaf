"""Training on a GPU against the same on the CPU: one process, NCCL with DDP and FSDP, 16 bits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from evolution.envs.catalogue import make
from evolution.envs.tasks import Split
from evolution.errors import EvolverSetupError
from evolution.methods.expert import demonstrations
from evolution.model.lora import initial_adapter
from evolution.part import Part
from evolution.rollout.episodes import run_episodes
from evolution.rollout.hf import HfEngine
from evolution.train.launched import LaunchedTrainer
from evolution.train.rows import Row
from evolution.train.sft import SftTrainer
from evolution.train.trainer import SftSettings, TrainerSpec
from evolution.train.trainers import make_trainer
from evolution.trajectory import Task
from federation.adapter.target import ALL_LINEAR
from tests.kit.evolution import smollm2
from tests.kit.evolution.sft import NLL, apart
from tests.kit.paths import ROOT

BASE = ROOT / "lab" / "base_model"
RANK, ALPHA = 4, 8.0
PLAN = SftSettings(epochs=2, batch_size=8, learning_rate=3e-3, grad_clip_l2=1.0, seed=5)
ROUNDING = 1e-3
"""Of what is learned, as a part of its norm; a GPU adds in another order than a CPU."""
GPUS = torch.cuda.device_count()


@pytest.fixture(scope="module")
def rows():
    """Conversations of real length that open alike."""
    ids = make("craft").task_ids(Split.TRAIN)[:24]
    expert = demonstrations("craft", ids, chat=HfEngine(BASE).chat, seed=0)
    return [Row.of(one) for one in expert]


@pytest.fixture(scope="module")
def adapter():
    rng = np.random.default_rng(1)
    first = initial_adapter(BASE, RANK, ALPHA, 0)
    return {name: (v + rng.normal(0, 0.02, v.shape)).astype("f4") for name, v in first.items()}


def made(device, *, dtype="float32", **spec):
    return SftTrainer(
        BASE, rank=RANK, alpha=ALPHA, dtype=dtype, spec=TrainerSpec(device=device, **spec)
    )


def trained(trainer, adapter, rows, objective=NLL):
    trainer.reset(adapter)
    report = trainer.train(rows, objective, PLAN, trainable=frozenset(adapter))
    return trainer.adapter(), report


def credited(rows, adapter):
    """Tries with an advantage each, played by a policy a little way off."""
    by, rng = made("cpu"), np.random.default_rng(4)
    by.reset(adapter)
    return [
        replace(
            row,
            weights=np.full(len(row), rng.normal(), dtype=np.float32),
            logprobs=value + rng.normal(0, 0.1, len(row)).astype("f4"),
        )
        for row, value in zip(rows, by.logprobs(rows), strict=True)
    ]


def delta(one, start):
    return np.concatenate([(one[name] - start[name]).ravel() for name in sorted(start)])


def require_alike(one, two, start):
    mine, theirs = delta(one, start), delta(two, start)
    moved = np.linalg.norm(mine)
    assert apart(one, start) > 1e-3
    off = float(np.linalg.norm(mine - theirs) / moved)
    print(f"figure: {off:.1e} of what is learned")
    assert off < ROUNDING


@pytest.mark.parametrize(
    "spec", [{}, {"micro_batch_tokens": 512}, {"gradient_checkpointing": True}]
)
def test_a_gpu_learns_what_the_cpu_learns(rows, adapter, spec):
    here, expected = trained(made("cpu"), adapter, rows)
    there, report = trained(made("cuda", **spec), adapter, rows)
    require_alike(here, there, adapter)
    assert report.last_loss == pytest.approx(expected.last_loss, abs=1e-4)
    assert all(value.dtype == np.float32 for value in there.values())


def test_reinforcement_on_a_gpu_is_that_of_the_cpu(rows, adapter):
    rows = credited(rows, adapter)
    clipped = Part.own("clipped")
    here, there = (trained(made(device), adapter, rows, clipped)[0] for device in ("cpu", "cuda"))
    require_alike(here, there, adapter)


def test_what_a_gpu_says_of_a_row_is_what_the_cpu_says(rows, adapter):
    values = []
    for device in ("cpu", "cuda"):
        trainer = made(device)
        trainer.reset(adapter)
        values.append(trainer.logprobs(rows))
    for mine, theirs in zip(*values, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("base", "environment"),
    [
        (BASE, "craft"),
        pytest.param(
            smollm2.MADE,
            "words",
            marks=pytest.mark.skipif(not smollm2.MADE.is_dir(), reason="make base-smollm2"),
        ),
    ],
    ids=["small", "smollm2"],
)
def test_engine_and_trainer_say_the_same_of_what_was_played(base, environment, dtype):
    """As a ratio of policies needs it: as nearly as the trainer agrees with itself."""
    rng = np.random.default_rng(1)
    adapter = {
        name: (value + rng.normal(0, 0.005, value.shape)).astype("f4")
        for name, value in initial_adapter(base, RANK, ALPHA, 0).items()
    }
    engine = HfEngine(base, alpha=ALPHA, dtype=dtype, device="cuda")
    engine.load_adapter("1", adapter)
    ids = make(environment).task_ids(Split.TRAIN)[:32]
    played = run_episodes(
        engine,
        [Task(environment=environment, task_id=task_id) for task_id in ids],
        temperature=1.0,
        seed=5,
        max_new_tokens=12,
        batch_size=32,
    ).trajectories
    rows = [Row.of(one) for one in played]
    whole, single = (
        said(base, dtype, adapter, rows, micro_batch_tokens=tokens) for tokens in (0, 1)
    )
    off = gap(rows, [row.logprobs for row in rows], whole)
    # What a pass over rows one at a time and one over all of them differ by: rounding alone.
    rounding = gap(rows, whole, single)
    print(f"figure: {environment} {dtype}: {off:.4f} nats a token, rounding {rounding:.4f}")
    assert off <= 1.25 * rounding + (1e-4 if dtype == "float32" else 1e-3)


def said(base, dtype, adapter, rows, **spec):
    trainer = SftTrainer(
        base, rank=RANK, alpha=ALPHA, dtype=dtype, spec=TrainerSpec(device="cuda", **spec)
    )
    trainer.reset(adapter)
    return trainer.logprobs(rows)


def gap(rows, one, two):
    """Mean over the agent's tokens."""
    pairs = zip(rows, one, two, strict=True)
    return float(np.concatenate([np.abs((a - b)[row.mask]) for row, a, b in pairs]).mean())


def test_beside_16_bits_the_factors_are_float32_and_move_the_same_way(rows, adapter):
    here, _ = trained(made("cuda"), adapter, rows)
    there, report = trained(made("cuda", dtype="bfloat16"), adapter, rows)
    one, two = delta(here, adapter), delta(there, adapter)
    assert all(np.isfinite(value).all() for value in there.values())
    assert report.last_loss < report.first_loss
    assert one @ two / (np.linalg.norm(one) * np.linalg.norm(two)) > 0.9


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_workers_on_gpus_learn_the_same(rows, adapter, sharding, tmp_path):
    """NCCL between as many workers as there are GPUs; with one GPU it is a group of one."""
    here, _ = trained(made("cuda"), adapter, rows)
    workers = LaunchedTrainer(
        BASE, rank=RANK, alpha=ALPHA, dtype="float32", target=ALL_LINEAR, state_dir=tmp_path,
        spec=TrainerSpec(device="cuda", processes=GPUS, sharding=sharding),
    )  # fmt: skip
    there, _ = trained(workers, adapter, rows)
    require_alike(here, there, adapter)


def test_more_workers_than_gpus_are_refused(tmp_path):
    with pytest.raises(EvolverSetupError, match=f"{GPUS + 1} processes need as many GPUs"):
        make_trainer(
            BASE, rank=RANK, alpha=ALPHA, dtype="float32", target=ALL_LINEAR, state_dir=tmp_path,
            spec=TrainerSpec(device="cuda", processes=GPUS + 1),
        )  # fmt: skip
