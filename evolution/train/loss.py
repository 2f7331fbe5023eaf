"""The loss of a forward pass: −Σ log π over agent tokens, logits computed only where one follows.

A row of T tokens with a third of them the agent's needs a third of the logits; at a vocabulary of
152,000 these are most of a training step's memory. transformers' causal LMs take a boolean
``logits_to_keep`` of shape B×T and return the kept positions one after another, N×V. Whether a
model does is seen on public rows before it is relied on (``keeps_agent_logits``); for one that does
not, all logits are computed and the loss is the same.

Covered: decoder-only models. Not covered: fused linear and cross-entropy kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from evolution.train.rows import Row

__all__ = ["PROBE", "as_batch", "keeps_agent_logits", "pad", "row_sums"]

Batch = tuple[torch.Tensor, torch.Tensor]


def pad(rows: Sequence[tuple[Sequence[int], Sequence[bool]]]) -> Batch:
    """Token ids and agent mask of at least one row, padded on the right.

    Integers B×T and booleans B×T.
    """
    width = max(len(ids) for ids, _ in rows)
    ids_BT = torch.zeros(len(rows), width, dtype=torch.long)
    agent_BT = torch.zeros(len(rows), width, dtype=torch.bool)
    for index, (ids, agent) in enumerate(rows):
        ids_BT[index, : len(ids)] = torch.as_tensor(ids)
        agent_BT[index, : len(ids)] = torch.as_tensor(agent)
    return ids_BT, agent_BT


def row_sums(
    model: Callable[..., Any], ids_BT: torch.Tensor, agent_BT: torch.Tensor, *, keep: bool
) -> torch.Tensor:
    """Σ −log π over each row's agent tokens, float32 of length B.

    ``agent_BT`` is True where the agent sampled the token. With ``keep``, logits are computed only
    where there is a loss; see ``keeps_agent_logits``.
    """
    target_BT, loss_BT = ids_BT[:, 1:], agent_BT[:, 1:]
    if not keep:
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1]
        nll_BT = torch.nn.functional.cross_entropy(
            logits_BTV.float().transpose(1, 2),
            target_BT.masked_fill(~loss_BT, -100),
            reduction="none",
            ignore_index=-100,
        )
        return nll_BT.sum(dim=1)
    logits_NV = model(
        input_ids=ids_BT, use_cache=False, logits_to_keep=_before(agent_BT)
    ).logits.flatten(0, -2)
    nll_N = torch.nn.functional.cross_entropy(
        logits_NV.float(), target_BT[loss_BT], reduction="none"
    )
    return nll_N.new_zeros(loss_BT.shape).masked_scatter(loss_BT, nll_N).sum(dim=1)


@torch.no_grad()
def keeps_agent_logits(model: Callable[..., Any], device: torch.device | str) -> bool:
    """Whether a model computes only the logits it is asked for, tried on public rows.

    False where it ignores the question, refuses it, or answers it otherwise.
    """
    ids_BT, agent_BT = (t.to(device) for t in PROBE)
    keep_BT = _before(agent_BT)
    try:
        kept = model(input_ids=ids_BT, use_cache=False, logits_to_keep=keep_BT).logits
    except (TypeError, ValueError, IndexError, RuntimeError):
        return False
    full_NV = model(input_ids=ids_BT, use_cache=False).logits[keep_BT]
    if kept.numel() != full_NV.numel() or kept.shape[-1] != full_NV.shape[-1]:
        return False
    # 16-bit weights may round a product of another shape differently; another position is far off.
    scale = float(full_NV.float().abs().max())
    gap = float((kept.reshape(full_NV.shape).float() - full_NV.float()).abs().max())
    return gap <= 0.02 * scale


def _before(agent_BT: torch.Tensor) -> torch.Tensor:
    """True at each position whose next token is the agent's: there the loss looks."""
    keep_BT = torch.zeros_like(agent_BT)
    keep_BT[:, :-1] = agent_BT[:, 1:]
    return keep_BT


def _public(answer_tokens: int) -> tuple[list[int], list[bool]]:
    ids = [0, 1, *(index % 3 for index in range(answer_tokens))]
    return ids, [False, False] + [True] * answer_tokens


PROBE: Batch = pad([_public(3), _public(7)])
"""Two made-up rows of low token ids, which every vocabulary has."""


def as_batch(rows: Sequence[Row]) -> Batch:
    """The rows of one pass as one padded batch.

    No rows give a made-up one, whose loss the caller multiplies by 0.
    """
    if not rows:
        return pad([_public(3)])
    return pad([(row.token_ids, row.agent) for row in rows])  # type: ignore[misc]
