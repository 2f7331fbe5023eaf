"""How often a model solves held-out tasks, for tuning and recording the small base model.

Plays many tasks at once with one key-value cache: each turn's tokens are left-padded to one width,
the padding is masked out of the cache, and positions are counted per row. Rows whose episode ended
are dropped from the cache.

Invariants:

1. The same model, tasks and seed give the same episodes.
2. A row's probabilities do not depend on the rows beside it, up to rounding.

Covered: measuring success at a temperature, or greedily. Not covered: keeping log-probabilities and
training on the episodes; that is the silo's rollout engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache

from evolution.envs import Environment, make
from evolution.rollout.conversation import ChatFormat

__all__ = ["solved_tasks"]

_MAX_NEW_TOKENS = 12


@dataclass(kw_only=True, slots=True)
class _Row:
    """One episode in the batch."""

    number: int
    environment: Environment
    chunk: list[int]
    position: int = 0
    answer: list[int] = field(default_factory=list)


def solved_tasks(
    model: Any,
    tokenizer: Any,
    name: str,
    task_ids: Sequence[int],
    *,
    temperature: float,
    seed: int,
    batch: int = 64,
) -> list[bool]:
    """Play tasks, ``batch`` at once, and say of each whether it was solved.

    The model is a Hugging Face causal language model. Temperature 0 takes the most likely token;
    the seed decides the sampling.
    """
    chat = ChatFormat.from_tokenizer(tokenizer)
    generator = torch.Generator().manual_seed(seed)
    solved: list[bool] = []
    environments = [make(name) for _ in range(min(batch, len(task_ids)))]
    with torch.inference_mode():
        for start in range(0, len(task_ids), batch):
            tasks = task_ids[start : start + batch]
            solved += _play(
                model, chat, environments, tasks, temperature=temperature, generator=generator
            )
    for environment in environments:
        environment.close()
    return solved


def _play(
    model: Any,
    chat: ChatFormat,
    environments: Sequence[Environment],
    task_ids: Sequence[int],
    *,
    temperature: float,
    generator: torch.Generator,
) -> list[bool]:
    solved = [False] * len(task_ids)
    rows = []
    for number, (environment, task_id) in enumerate(zip(environments, task_ids, strict=False)):
        first, _ = environment.reset(task_id)
        chunk = chat.opening(environment.told, first, environment.examples)
        rows.append(_Row(number=number, environment=environment, chunk=chunk))
    cache = DynamicCache(config=model.config)
    seen_BT = torch.zeros((len(rows), 0), dtype=torch.long)
    while rows:
        logits_BV, seen_BT = _forward(model, rows, cache, seen_BT)
        if temperature == 0:
            sampled = logits_BV.argmax(-1)
        else:
            probabilities = torch.softmax(logits_BV.float() / temperature, dim=-1)
            sampled = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
        kept = []
        for index, (row, token) in enumerate(zip(rows, sampled.tolist(), strict=True)):
            row.answer.append(token)
            row.chunk = [token]
            answered = token in chat.end_ids or len(row.answer) >= _MAX_NEW_TOKENS
            if not (answered and _finish_turn(row, chat, solved)):
                kept.append(index)
        if len(kept) < len(rows):
            rows = [rows[index] for index in kept]
            picked = torch.tensor(kept, dtype=torch.long)
            cache.batch_select_indices(picked)
            seen_BT = seen_BT[picked]
    return solved


def _finish_turn(row: _Row, chat: ChatFormat, solved: list[bool]) -> bool:
    """Play the finished answer; queue the next turn, or record the verdict and return True."""
    action = chat.parse_action(row.answer)
    observation, _, terminated, truncated, info = row.environment.step(action)
    if terminated or truncated:
        solved[row.number] = row.environment.success(info)
        return True
    if row.answer[-1] not in chat.end_ids:
        row.chunk.append(chat.turn_end_id)
    row.chunk += chat.next_turn(observation)
    row.answer = []
    return False


def _forward(
    model: Any, rows: Sequence[_Row], cache: Any, seen_BT: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Feed every row's chunk; return the next token's logits and the grown mask."""
    width = max(len(row.chunk) for row in rows)
    ids_BT = torch.zeros((len(rows), width), dtype=torch.long)
    new_BT = torch.zeros_like(ids_BT)
    positions_BT = torch.zeros_like(ids_BT)
    for index, row in enumerate(rows):
        n = len(row.chunk)
        ids_BT[index, width - n :] = torch.tensor(row.chunk)
        new_BT[index, width - n :] = 1
        positions_BT[index, width - n :] = torch.arange(row.position, row.position + n)
        row.position += n
    seen_BT = torch.cat([seen_BT, new_BT], dim=1)
    output = model(
        input_ids=ids_BT,
        attention_mask=seen_BT,
        position_ids=positions_BT,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return output.logits[:, -1], seen_BT
