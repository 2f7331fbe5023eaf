"""What a local training step costs: ``SftTrainer`` against a bare PyTorch loop.

Both train a rank-8 adapter on every linear layer of the shipped base model, on the same batches in
the same order, with the same loss, clip and AdamW, on one thread. The bare loop gets its batches as
ready tensors; the trainer's time holds everything it does from trajectories to report: sorting,
hashing, padding, counting.

    bare           forward, loss on agent tokens, backward, clip, AdamW
    trainer        as a silo runs it by default: each batch of the plan in one pass
    micro          the same with micro-batches of 1,024 padded tokens
    checkpointing  the same with activations recomputed

In bfloat16 (``--dtype``, with ``--base`` another model) the bare loop has peft's own layers, which
add two products, and the trainer one product of both (``evolution/model/beside.py``): the ratio is
what that costs.

The arms take turns and the order rotates; a ratio is the median of the ratios of neighbours in
time, in CPU seconds of this process, so that a busy machine slows both sides. Before that, all arms
must end with the bare loop's adapter, computed in float64, or the run fails: in float32 a sum in
another order already ends 3e-3 of the way off, because AdamW divides small gradients by their own
size, and a clip off by 10 % only 2e-4.

Prints a table and, as its last line, the figures as JSON.
"""

from __future__ import annotations

import os

# Before numpy and torch: more threads would blur who uses how many cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft.tuners import lora

from evolution.model.beside import TrainedBeside
from evolution.model.causal_lm import load_base
from evolution.model.lora import (
    attach_lora,
    initial_adapter,
    lora_parameters,
    read_adapter,
    write_adapter,
)
from evolution.part import Part
from evolution.train.rows import Row
from evolution.train.sft import SftTrainer
from evolution.train.trainer import SftSettings, TrainerSpec
from evolution.trajectory import Step, Task, Trajectory

BASE = Path(__file__).parents[1] / "lab" / "base_model"
RANK, ALPHA = 8, 16.0
BATCH, EPOCHS, SEED = 16, 2, 7
LEARNING_RATE, CLIP = 3e-3, 1.0
MICRO_TOKENS = 1024
SAME = 1e-4
"""Difference that passes as rounding, as a share of how far the adapter moved. With --quick the
trainer ends 5e-5 off and the others 8e-6: parts of the model compute in float32 whatever it is."""

Train = Callable[[], tuple[dict[str, np.ndarray], float]]


def episode(index: int) -> Trajectory:
    """A made-up episode of 4 to 11 turns, a third of its tokens the agent's."""
    rng = np.random.default_rng([index, 1])
    steps = []
    for _ in range(4 + index % 8):
        tokens = tuple(int(t) for t in rng.integers(6, 130, 24))
        steps.append(
            Step(
                observation="",
                action="",
                context_ids=tokens[8:],
                action_ids=tokens[:8],
                action_logprobs=(0.0,) * 8,
            )
        )
    return Trajectory(
        task=Task(environment="made-up", task_id=index),
        steps=tuple(steps),
        final_observation="",
        success=True,
        adapter_sha256="",
        round=0,
    )


def batches_of(episodes: list[Trajectory]) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
    """Ids, targets and number of targets of each batch, by length as the trainer cuts them."""
    ordered = sorted(episodes, key=lambda t: (t.token_count, t.conversation_sha256))
    made = []
    for start in range(0, len(ordered), BATCH):
        rows = ordered[start : start + BATCH]
        width = max(row.token_count for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        target = torch.full((len(rows), width), -100)
        for index, row in enumerate(rows):
            ids[index, : row.token_count] = torch.tensor(row.token_ids)
            for position, own in enumerate(row.agent_mask):
                if own:
                    target[index, position] = ids[index, position]
        made.append((ids, target[:, 1:], int((target[:, 1:] >= 0).sum())))
    return made


def bare(
    episodes: list[Trajectory],
    adapter: Mapping[str, np.ndarray],
    *,
    double: bool = False,
    base: Path = BASE,
    dtype: str = "float32",
) -> Train:
    model: Any = attach_lora(load_base(base, dtype=dtype), rank=RANK, alpha=ALPHA).eval()
    for layer in model.modules():
        if isinstance(layer, TrainedBeside):
            layer.__class__ = lora.Linear
    if double:
        model.double()
    parameters = list(lora_parameters(model).values())
    for parameter in parameters:
        parameter.requires_grad = True
    batches = batches_of(episodes)

    def train() -> tuple[dict[str, np.ndarray], float]:
        write_adapter(model, adapter)
        started = time.process_time()
        optimiser = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0)
        rng = np.random.default_rng(SEED)
        for _ in range(EPOCHS):
            for index in rng.permutation(len(batches)):
                ids, target, count = batches[index]
                logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
                loss = torch.nn.functional.cross_entropy(
                    (logits if double else logits.float()).transpose(1, 2),
                    target,
                    reduction="sum",
                    ignore_index=-100,
                )
                optimiser.zero_grad()
                (loss / count).backward()
                torch.nn.utils.clip_grad_norm_(parameters, CLIP)
                optimiser.step()
        spent = time.process_time() - started
        return read_adapter(model), spent

    return train


def ours(
    episodes: list[Trajectory],
    adapter: Mapping[str, np.ndarray],
    *,
    double: bool = False,
    base: Path = BASE,
    dtype: str = "float32",
    **changes: Any,
) -> Train:
    trainer = SftTrainer(
        base,
        rank=RANK,
        alpha=ALPHA,
        dtype=dtype,
        spec=TrainerSpec(device="cpu", **changes),
    )
    if double:
        trainer._model.double()  # noqa: SLF001 - no silo trains in float64, so there is no setting

    def train() -> tuple[dict[str, np.ndarray], float]:
        trainer.reset(adapter)
        started = time.process_time()
        trainer.train(
            [Row.of(one) for one in episodes],
            Part.own("nll"),
            SftSettings(
                epochs=EPOCHS,
                batch_size=BATCH,
                learning_rate=LEARNING_RATE,
                grad_clip_l2=CLIP,
                seed=SEED,
            ),
            trainable=frozenset(adapter),
        )
        spent = time.process_time() - started
        return trainer.adapter(), spent

    return train


def norm(end: dict[str, np.ndarray], start: dict[str, np.ndarray]) -> float:
    """Length of the way from one adapter to another."""
    return math.sqrt(sum(float(np.square(end[k] - start[k], dtype=np.float64).sum()) for k in end))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run everything once, at small sizes")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--base", type=Path, default=BASE, help="what is timed; the check is not")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.episodes = 1, 8
    torch.set_num_threads(1)
    episodes = [episode(index) for index in range(options.episodes)]
    adapter = initial_adapter(BASE, RANK, ALPHA, SEED)
    kinds: dict[str, dict[str, Any]] = {
        "trainer": {},
        "micro": {"micro_batch_tokens": MICRO_TOKENS},
        "checkpointing": {"gradient_checkpointing": True},
    }
    expected = bare(episodes, adapter, double=True)()[0]
    for name, changes in kinds.items():
        result = ours(episodes, adapter, double=True, **changes)()[0]
        apart = norm(result, expected) / norm(expected, adapter)
        if not apart <= SAME:
            sys.exit(f"{name} ends {apart:.2e} of the way off the bare loop's: other arithmetic")
    timed = {"base": options.base, "dtype": options.dtype}
    adapter = initial_adapter(options.base, RANK, ALPHA, SEED)
    arms = {"bare": bare(episodes, adapter, **timed)}
    arms |= {name: ours(episodes, adapter, **timed, **changes) for name, changes in kinds.items()}
    for arm in arms.values():
        arm()
    names = list(arms)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(options.repeats):
        shift = repeat % len(names)
        for name in names[shift:] + names[:shift]:
            seconds[name].append(arms[name]()[1])
    steps = EPOCHS * -(-options.episodes // BATCH)
    ratios = {
        name: statistics.median(a / b for a, b in zip(spent, seconds["bare"], strict=True))
        for name, spent in seconds.items()
    }
    tokens = EPOCHS * sum(row.token_count for row in episodes)
    print(f"{options.episodes} episodes, {tokens} tokens, {steps} steps, {options.repeats} repeats")
    for name, spent in seconds.items():
        median = statistics.median(spent)
        print(
            f"  {name:14s} {median / steps * 1e3:8.1f} ms a step   {tokens / median:8.0f} tokens/s"
            f"   x{ratios[name]:.3f} of bare"
        )
    print(
        json.dumps(
            {
                "sft_step_ratio": round(ratios["trainer"], 3),
                "micro_ratio": round(ratios["micro"], 3),
                "checkpointing_ratio": round(ratios["checkpointing"], 3),
                "step_ms": round(statistics.median(seconds["trainer"]) / steps * 1e3, 2),
                "repeats": options.repeats,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
