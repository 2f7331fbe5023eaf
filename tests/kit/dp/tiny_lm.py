"""A tiny causal LM of plain torch layers, rows of tokens for it, and the gradient by the book."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import torch

VOCABULARY = 11
Row = tuple[tuple[int, ...], tuple[bool, ...]]
"""Token ids, and where the agent spoke."""


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x_BTD)).chunk(3, dim=-1)
        mixed = torch.nn.functional.scaled_dot_product_attention(
            q[:, None], k[:, None], v[:, None], is_causal=True
        )
        return x_BTD + self.out(mixed[:, 0])


class TinyLM(torch.nn.Module):
    """Answers like a Hugging Face causal LM, as far as a loss looks."""

    def __init__(self, width: int = 8, last: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, width)
        self.blocks = torch.nn.ModuleList([Block(width), Block(width)])
        self.last = last
        self.head = torch.nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, input_ids: torch.Tensor) -> SimpleNamespace:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        if self.last is not None:
            x = self.last(x)
        return SimpleNamespace(logits=self.head(x))


class RowSums:
    """The loss a backend wants: a sum and a count per row."""

    def length(self, row: Row) -> int:
        return len(row[0])

    def collate(self, rows: Sequence[Row]) -> tuple[torch.Tensor, ...]:
        width = max(len(ids) for ids, _ in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        agent = torch.zeros(len(rows), width, dtype=torch.bool)
        for index, (tokens, mask) in enumerate(rows):
            ids[index, : len(tokens)] = torch.tensor(tokens)
            agent[index, : len(tokens)] = torch.tensor(mask)
        return ids, agent

    def sums(self, model, *batch, alone=False):
        ids, agent = batch
        logits = model(input_ids=ids).logits[:, :-1]
        nll = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), ids[:, 1:], reduction="none"
        )
        return (nll * agent[:, 1:]).sum(1), agent[:, 1:].sum(1)


def model(seed: int = 0, **changes) -> TinyLM:
    torch.manual_seed(seed)
    made = TinyLM(**changes).eval().requires_grad_(requires_grad=False)
    for parameter in trained(made).values():
        parameter.requires_grad = True
    return made


def trained(made: TinyLM) -> dict[str, torch.nn.Parameter]:
    """The weights of all attention layers, in an order that is not the model's own."""
    return {
        name: parameter
        for name, parameter in sorted(made.named_parameters(), reverse=True)
        if name.startswith("blocks") and ".norm" not in name
    }


def row(seed: int, length: int) -> Row:
    rng = np.random.default_rng([seed, length])
    mask = rng.random(length) < 0.5
    mask[-1] = True
    return tuple(rng.integers(0, VOCABULARY, length).tolist()), tuple(mask.tolist())


PROBE = (row(1000, 5), row(1001, 9))


def naive(made: TinyLM, unit: Sequence[Row]) -> np.ndarray:
    """−∇ℓ_u: every row by itself, every token's loss written out."""
    total, tokens = torch.zeros(()), 0
    for ids, mask in unit:
        logits = made(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        for position in range(1, len(ids)):
            if mask[position]:
                total = total - logits[position - 1, ids[position]]
                tokens += 1
    parameters = list(trained(made).values())
    if not tokens:
        return np.zeros(sum(p.numel() for p in parameters), dtype=np.float32)
    gradients = torch.autograd.grad(-total / tokens, parameters)
    return torch.cat([g.reshape(-1) for g in gradients]).numpy()
