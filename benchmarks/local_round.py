"""What a silo's local round costs on this machine, with a model of real size: phases and tokens/s.

    load      the round's adapter is merged into the engine's weights
    explore   ``run_episodes`` on ``HfEngine``: all episodes of the round, at temperature 1
    train     ``SftTrainer`` on demonstrations and successes, one epoch
    encode    the delta is flattened, clipped, rounded and gets its share of noise

Without ``--base`` the model has the shape of ``--shape`` and random weights, and the tokenizer of
the small base model: its actions mean nothing, so that every answer and every episode is as long as
it may be, and the times are upper ends. ``--base`` takes a real model's directory. Masking is not
in it (``make bench-secagg``), nor what other silos and the network take.

On a GPU the most memory that was allocated while playing and while training stands beside what
``chorale run plan`` and the doctor expect of either (``federation/adapter/memory.py``). Engine and
trainer hold the base once each.

    make bench-local-round BENCH_ARGS="--device cuda --dtype bfloat16"          a GPU, 0.5B shape
    make bench-local-round BENCH_ARGS="--base DIR --device cuda --dtype bfloat16"

Prints a table and, as its last line, the figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

from dp.noise.grid import Grid
from dp.noise.share import add_noise, per_silo_sigma
from dp.noise.source import NoiseSource
from evolution.envs.catalogue import make
from evolution.envs.tasks import Split
from evolution.methods.expert import demonstrations
from evolution.model.causal_lm import load_tokenizer
from evolution.model.lora import initial_adapter
from evolution.part import Part
from evolution.rollout.episodes import run_episodes
from evolution.rollout.hf import HfEngine
from evolution.train.rows import Row
from evolution.train.sft import SftTrainer
from evolution.train.trainer import SftSettings, TrainerSpec
from evolution.trajectory import Task, Trajectory
from federation.adapter.memory import rollout_memory, training_memory
from federation.adapter.shapes import PRESETS, ModelShape, shape_from_config

SMALL = Path(__file__).parents[1] / "lab" / "base_model"
PHASES = ("load", "explore", "train", "encode")
RANK, ALPHA, BATCH = 8, 16.0, 8
CLIP_L2, GRID, NOISE_MULTIPLIER, SILOS = 1.0, 1 << 20, 1.0, 10


@dataclass(kw_only=True, slots=True)
class Round:
    """What one round took."""

    seconds: dict[str, float] = field(default_factory=dict)
    """By phase."""
    generated: int = 0
    """Tokens of the agent's answers."""
    read: int = 0
    """Tokens of whole conversations, each read once."""
    trained: int = 0
    """Tokens that went forward and back."""
    peaks: dict[str, int] = field(default_factory=dict)
    """Most bytes of the GPU that were in use, by phase."""
    longest: int = 0
    """Tokens of the longest conversation."""
    widest: int = 0
    """Padded tokens of the largest training batch."""


def random_base(shape: ModelShape, directory: Path, dtype: str) -> Path:
    """A model of this shape with random weights, and the small base model's tokenizer."""
    if shape.qk_norm or not shape.qkv_bias:
        raise SystemExit("--shape: random weights are made for Qwen2.5's shapes; use --base")
    disable_progress_bar()
    tokenizer = load_tokenizer(SMALL)
    tokenizer.save_pretrained(directory)
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        config: Any = Qwen2Config(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.mlp,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            tie_word_embeddings=shape.tied,
            max_position_embeddings=4096,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
        Qwen2ForCausalLM(config).save_pretrained(directory)
    finally:
        torch.set_default_dtype(torch.float32)
    return directory


def encoded(start: dict[str, np.ndarray], local: dict[str, np.ndarray]) -> np.ndarray:
    """The delta as ``dp`` prepares it for its mask: C, Δ and z as in the example plan."""
    delta = np.concatenate([(local[name] - start[name]).ravel() for name in sorted(start)])
    grid = Grid(clip_l2=CLIP_L2, steps=GRID, dimension=delta.size)
    share = np.zeros(grid.dimension, dtype="<u4")
    sigma = per_silo_sigma(NOISE_MULTIPLIER, GRID, t=SILOS, n_min=SILOS, c=1)
    add_noise(share, sigma, NoiseSource.fresh("benchmark"))
    grid.fit(delta).add_into(share)
    return share


def play_round(
    engine: HfEngine,
    trainer: SftTrainer,
    adapter: dict[str, np.ndarray],
    *,
    number: int,
    tasks: Sequence[Task],
    expert: Sequence[Trajectory],
    options: argparse.Namespace,
) -> tuple[Round, dict[str, np.ndarray]]:
    """One round; the adapter that it ends with is the next one's."""
    found, marks = Round(), [time.perf_counter()]
    engine.load_adapter(str(number), adapter)
    marks.append(time.perf_counter())
    forget_peak(options.device)
    played = run_episodes(
        engine,
        tasks,
        temperature=1.0,
        seed=number,
        max_new_tokens=options.max_new_tokens,
        batch_size=options.batch,
    )
    if played.dropped:
        raise RuntimeError(f"{played.dropped} episodes were dropped")
    marks.append(time.perf_counter())
    found.peaks["explore"] = peak_bytes(options.device)
    forget_peak(options.device)
    rows = [*expert, *(t for t in played.trajectories if t.success)]
    trainer.reset(adapter)
    trainer.train(
        [Row.of(one) for one in rows],
        Part.own("nll"),
        SftSettings(
            epochs=1,
            batch_size=BATCH,
            learning_rate=1e-4,
            grad_clip_l2=1.0,
            seed=number,
        ),
        trainable=frozenset(adapter),
    )
    local = trainer.adapter()
    marks.append(time.perf_counter())
    found.peaks["train"] = peak_bytes(options.device)
    encoded(adapter, local)
    marks.append(time.perf_counter())
    taken = zip(PHASES, marks[1:], marks, strict=False)
    found.seconds = {phase: end - start for phase, end, start in taken}
    found.generated = sum(sum(t.agent_mask) for t in played.trajectories)
    found.read = sum(t.token_count for t in played.trajectories)
    found.trained = sum(t.token_count for t in rows)
    found.longest = max(t.token_count for t in played.trajectories)
    found.widest = BATCH * max(t.token_count for t in rows)
    return found, local


def run(base: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All rounds on one base model; the figures."""
    shape = shape_from_config((base / "config.json").read_bytes())
    engine = HfEngine(
        base, alpha=ALPHA, dtype=options.dtype, threads=options.threads, device=options.device
    )
    trainer = SftTrainer(
        base,
        rank=RANK,
        alpha=ALPHA,
        dtype=options.dtype,
        spec=TrainerSpec(
            device=options.device,
            micro_batch_tokens=options.micro_batch_tokens,
            gradient_checkpointing=options.gradient_checkpointing,
        ),
    )
    ids = make(options.environment).task_ids(Split.TRAIN)
    tasks = [Task(environment=options.environment, task_id=i) for i in ids[: options.episodes]]
    expert = demonstrations(
        options.environment, ids[: options.demonstrations], chat=engine.chat, seed=0
    )
    adapter = initial_adapter(base, RANK, ALPHA, 0)
    print(
        f"{shape.parameters:,} parameters, {options.dtype}, {options.device}; rank {RANK}, "
        f"{sum(t.size for t in adapter.values()):,} numbers shared; {len(tasks)} episodes of "
        f"{options.environment}, {len(expert)} demonstrations"
    )
    print("round  phase    seconds   share   tokens/s", flush=True)
    rounds = []
    for number in range(1, options.rounds + 1):
        found, adapter = play_round(
            engine, trainer, adapter,
            number=number, tasks=tasks, expert=expert, options=options,
        )  # fmt: skip
        rounds.append(found)
        whole = sum(found.seconds.values())
        rates = {"explore": found.generated, "train": found.trained}
        for phase, seconds in found.seconds.items():
            rate = f"{rates[phase] / seconds:10.0f}" if phase in rates else ""
            print(f"{number:5d}  {phase:7s} {seconds:8.2f} {seconds / whole:7.1%} {rate}")
    total = {phase: sum(found.seconds[phase] for found in rounds) for phase in PHASES}
    whole = sum(total.values())
    return {
        "parameters": shape.parameters,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else options.device,
        "dtype": options.dtype,
        "round_s": round(whole / len(rounds), 2),
        "generated_tokens_per_s": round(sum(r.generated for r in rounds) / total["explore"], 1),
        "conversation_tokens_per_s": round(sum(r.read for r in rounds) / total["explore"], 1),
        "trained_tokens_per_s": round(sum(r.trained for r in rounds) / total["train"], 1),
        "share": {phase: round(seconds / whole, 3) for phase, seconds in total.items()},
        "peak_gib": {
            phase: in_gib(max(found.peaks[phase] for found in rounds))
            for phase in ("explore", "train")
        },
        "forecast_gib": forecast(shape, rounds, options),
    }


def forecast(
    shape: ModelShape, rounds: Sequence[Round], options: argparse.Namespace
) -> dict[str, float]:
    """What ``run plan`` and the doctor would say of such a round, by phase.

    Engine and trainer each hold the base, so that either phase holds the other's weights too.
    """
    playing = rollout_memory(
        shape,
        conversations=min(options.batch, options.episodes),
        tokens=max(found.longest for found in rounds),
        dtype=options.dtype,
    )
    training = training_memory(
        shape,
        rank=RANK,
        tokens=options.micro_batch_tokens or max(found.widest for found in rounds),
        dtype=options.dtype,
        gradient_checkpointing=options.gradient_checkpointing,
    )
    held = training.weights_bytes + training.adapter_bytes
    return {
        "explore": in_gib(playing.total_bytes + held),
        "train": in_gib(training.total_bytes + playing.weights_bytes),
    }


def in_gib(size_bytes: int) -> float:
    """To two places."""
    return round(size_bytes / 2**30, 2)


def forget_peak(device: str) -> None:
    """Begin a phase; a process's own peak cannot be forgotten."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(device: str) -> int:
    """Most memory in use: of the GPU since ``forget_peak``, or of this process so far."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    # KiB on Linux, bytes on macOS.
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", type=Path, help="a model's directory, instead of random weights")
    parser.add_argument("--shape", default="Qwen/Qwen2.5-0.5B", choices=sorted(PRESETS))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=1, help="of torch, on a CPU")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--demonstrations", type=int, default=32)
    parser.add_argument("--environment", default="craft")
    parser.add_argument("--batch", type=int, default=64, help="episodes at once")
    parser.add_argument("--max-new-tokens", type=int, default=16)
    parser.add_argument("--micro-batch-tokens", type=int, default=0)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no GPU here")
    if options.base is not None:
        figures = run(options.base, options)
    else:
        with tempfile.TemporaryDirectory(prefix="chorale-base-") as directory:
            print(f"making {options.shape} with random weights", flush=True)
            base = random_base(PRESETS[options.shape], Path(directory), options.dtype)
            figures = run(base, options)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
