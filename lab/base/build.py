"""Build the small base model: behaviour cloning from weak scripted players.

Every step takes a few episodes of each environment. The loss is cross-entropy on the next token,
weighted 1 where the player wrote it and 0.1 where the environment did (learning to predict what
happens helps a small model to see what matters), divided by the sum of the weights. Muon moves the
weight matrices of the blocks (Jordan et al. 2024; ``torch.optim.Muon``), AdamW everything else,
both on one cosine schedule after a short warm-up.

Invariants:

1. The same seed, steps and versions give bitwise the same weights on the same machine: one thread,
   generators of its own, and the caller's global random state and thread count are left as found.
2. The result is an ordinary Hugging Face directory, written as safetensors, plus ``build.json``
   with the recipe, the versions, the SHA-256 of the weights and the measured success.

Covered: a base that knows the formats and is noisy. Not covered: a good player; that is what silos
are for.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from evolution.envs import Split, make
from evolution.rollout.conversation import ChatFormat, RenderedEpisode
from lab.base.data import SKILL, demonstrations
from lab.base.evaluate import solved_tasks
from lab.base.model import INITIAL_STD, build_model
from lab.base.tokenizer import build_tokenizer, environment_words

__all__ = ["DEFAULT_STEPS", "BuildProgress", "Recipe", "build_base", "weights_sha256"]

DEFAULT_STEPS = 700
WEIGHTS = "model.safetensors"
_VERSIONS = ("torch", "transformers", "tokenizers", "numpy", "minigrid")
_MUON_MOMENTUM = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Everything that decides the weights, beside the versions."""

    seed: int = 0
    """Decides the initial weights, the episodes and their order."""
    steps: int = DEFAULT_STEPS
    """Optimiser steps."""
    episodes: tuple[tuple[str, int], ...] = (
        ("babyai", 4),
        ("craft", 6),
        ("maze", 6),
        ("shop", 4),
        ("wordle", 15),
    )
    """Episodes per step, by environment."""
    reuse: int = 2
    """How often an episode is used."""
    observation_weight: float = 0.1
    """Loss weight of the environment's tokens; the player's have 1."""
    muon_lr: float = 0.02
    """Peak learning rate of the matrices."""
    adamw_lr: float = 3e-3
    """Peak learning rate of everything else."""
    warmup_steps: int = 20
    """Steps to the peak."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildProgress:
    """How far a build is."""

    phase: str
    """``demonstrations``, ``training`` or ``measuring``."""
    done: float
    """The share of the phase that is done, from 0 to 1."""
    loss: float | None = None
    """The last step's loss, while training."""


Progress = Callable[[BuildProgress], None]


def build_base(
    out_dir: Path,
    *,
    seed: int = 0,
    steps: int = DEFAULT_STEPS,
    evaluation_tasks: int = 200,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Build the model, write its directory, and return what ``build.json`` says.

    The seed decides everything random. Success is measured on ``evaluation_tasks`` held-out tasks
    per environment; 0 measures nothing. Progress is told now and then.
    """
    recipe = Recipe(seed=seed, steps=steps)
    tokenizer = build_tokenizer(environment_words())
    with _one_thread():
        model = build_model(tokenizer, seed=seed)
        _train(model, tokenizer, recipe, progress)
        measured = _measure(model, tokenizer, evaluation_tasks, seed, progress)
    out_dir.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out_dir, safe_serialization=True)
    tokenizer.save_pretrained(out_dir)
    # The safetensors writer leaves the weights readable by their owner alone; they are no secret.
    (out_dir / WEIGHTS).chmod(0o644)
    record = {
        "recipe": asdict(recipe) | {"episodes": dict(recipe.episodes)},
        "skill": {name: list(bounds) for name, bounds in SKILL.items()},
        "initial_std": INITIAL_STD,
        "parameters": sum(p.numel() for p in model.parameters()),
        "vocabulary": len(tokenizer),
        "versions": {name: metadata.version(name) for name in _VERSIONS},
        "weights_sha256": weights_sha256(out_dir),
        "held_out_success": measured,
    }
    (out_dir / "build.json").write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
    return record


def weights_sha256(model_dir: Path) -> str:
    """The SHA-256 of the weights in a directory that ``build_base`` wrote, in hexadecimal."""
    return hashlib.sha256((model_dir / WEIGHTS).read_bytes()).hexdigest()


def _train(model: Any, tokenizer: Any, recipe: Recipe, progress: Progress) -> None:
    chat = ChatFormat.from_tokenizer(tokenizer)
    pools = {}
    for index, (name, per_step) in enumerate(recipe.episodes):
        progress(BuildProgress(phase="demonstrations", done=index / len(recipe.episodes)))
        count = math.ceil(per_step * recipe.steps / recipe.reuse)
        pools[name] = demonstrations(name, count, seed=recipe.seed, chat=chat)
    progress(BuildProgress(phase="demonstrations", done=1.0))
    optimizers = _optimizers(model, recipe)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _schedule(step, recipe))
        for optimizer in optimizers
    ]
    batches = {
        name: _batches(pools[name], per_step, seed=recipe.seed)
        for name, per_step in recipe.episodes
    }
    model.train()
    for step in range(recipe.steps):
        chosen = [next(batches[name]) for name, _ in recipe.episodes]
        total_weight = sum(_weight(batch, recipe) for batch in chosen)
        total_loss = 0.0
        for batch in chosen:
            loss = _weighted_loss(model, batch, recipe) / total_weight
            torch.autograd.backward(loss)
            total_loss += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
        progress(BuildProgress(phase="training", done=(step + 1) / recipe.steps, loss=total_loss))
    model.eval()


def _optimizers(model: Any, recipe: Recipe) -> list[torch.optim.Optimizer]:
    matrices: list[torch.nn.Parameter] = []
    rest: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim == 2 and ".layers." in name
        (matrices if is_matrix else rest).append(parameter)
    muon = torch.optim.Muon(
        matrices, lr=recipe.muon_lr, momentum=_MUON_MOMENTUM, nesterov=True, weight_decay=0.0
    )
    adamw = torch.optim.AdamW(rest, lr=recipe.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0)
    return [muon, adamw]


def _schedule(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine to a twentieth of the peak."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    left = max(1, recipe.steps - recipe.warmup_steps)
    turn = min(1.0, (step - recipe.warmup_steps) / left)
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * turn))


def _batches(
    pool: list[RenderedEpisode], size: int, *, seed: int
) -> Iterator[list[RenderedEpisode]]:
    """Batches in a new order on each pass, without end."""
    generator = torch.Generator().manual_seed(seed)
    queue: list[int] = []
    while True:
        while len(queue) < size:
            queue += torch.randperm(len(pool), generator=generator).tolist()
        yield [pool[index] for index in queue[:size]]
        del queue[:size]


def _weight(batch: list[RenderedEpisode], recipe: Recipe) -> float:
    agent = sum(sum(episode.agent_mask) for episode in batch)
    # The first token of an episode is predicted from nothing, so it is not trained on.
    others = sum(len(episode.token_ids) - 1 for episode in batch) - agent
    return agent + recipe.observation_weight * others


def _weighted_loss(model: Any, batch: list[RenderedEpisode], recipe: Recipe) -> torch.Tensor:
    """The weighted sum of the token losses of right-padded episodes.

    Padding comes after everything that counts and attention is causal, so no mask is needed.
    """
    longest = max(len(episode.token_ids) for episode in batch)
    ids_BT = torch.zeros((len(batch), longest), dtype=torch.long)
    weights_BT = torch.zeros((len(batch), longest))
    for row, episode in enumerate(batch):
        n = len(episode.token_ids)
        ids_BT[row, :n] = torch.tensor(episode.token_ids)
        agent = torch.tensor(episode.agent_mask)
        weights_BT[row, :n] = torch.where(agent, 1.0, recipe.observation_weight)
    logits_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(
        logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="none"
    )
    return (losses * weights_BT[:, 1:].flatten()).sum()


def _measure(
    model: Any, tokenizer: Any, count: int, seed: int, progress: Progress
) -> dict[str, dict[str, float]]:
    measured: dict[str, dict[str, float]] = {}
    if count == 0:
        return measured
    for index, name in enumerate(SKILL):
        progress(BuildProgress(phase="measuring", done=index / len(SKILL)))
        environment = make(name)
        tasks = environment.task_ids(Split.HELD_OUT)[:count]
        environment.close()
        measured[name] = {"tasks": count}
        for label, temperature in (("temperature_1", 1.0), ("greedy", 0.0)):
            solved = solved_tasks(model, tokenizer, name, tasks, temperature=temperature, seed=seed)
            measured[name][label] = sum(solved) / len(solved)
    progress(BuildProgress(phase="measuring", done=1.0))
    return measured


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums over several threads may differ in the last bit from run to run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
