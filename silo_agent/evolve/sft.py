"""Imitating successes: supervised training of the adapter on agent tokens only.

Objective (Fed-SE, arXiv 2512.08870, §3; a lower bound of the expected binary reward by Jensen)::

    L(φ) = − Σ_{τ∈batch} Σ_{j: agent} log π_{Θ,φ}(x_j | x_{<j})  /  number of agent tokens in batch

Per trajectory the sum and the count are computed first (``unit_losses``) and combined afterwards:
a privacy unit is then a set of trajectories whose loss stands alone.

Invariants:

1. Observation tokens carry no loss and get no gradient through the labels.
2. Only the factors named ``trainable`` change; the base weights never do.
3. The order of batches depends on the seed alone.

Batches are cut from the trajectories sorted by length, so that little is padded, and then shuffled.
Padding stands to the right of everything real, and causal attention never looks right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from silo_agent.adapter.causal_lm import load_base
from silo_agent.adapter.lora import attach_lora, lora_parameters, read_adapter, write_adapter
from silo_agent.trajectory import Trajectory

__all__ = ["SftReport", "SftTrainer", "unit_losses"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SftReport:
    """What a training run did."""

    optimiser_steps: int
    """Steps taken."""
    agent_tokens: int
    """Tokens with loss, over all epochs."""
    first_loss: float
    """Mean loss per agent token of the first epoch; 0 if there was none."""
    last_loss: float
    """The same of the last epoch."""


def unit_losses(model: Any, batch: Sequence[Trajectory]) -> tuple[torch.Tensor, torch.Tensor]:
    """Negative log-likelihood of the agent's tokens, per trajectory.

    Args:
        model: A causal LM.
        batch: Trajectories.

    Returns:
        Sums of −log π over each trajectory's agent tokens, and their numbers.
    """
    sequences = [trajectory.token_ids for trajectory in batch]
    width = max(map(len, sequences))
    ids_BT = torch.zeros(len(batch), width, dtype=torch.long)
    agent_BT = torch.zeros(len(batch), width, dtype=torch.bool)
    for row, (trajectory, ids) in enumerate(zip(batch, sequences, strict=True)):
        ids_BT[row, : len(ids)] = torch.tensor(ids)
        agent_BT[row, : len(ids)] = torch.tensor(trajectory.agent_mask)
    logits_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1]
    target_BT = ids_BT[:, 1:].masked_fill(~agent_BT[:, 1:], -100)
    nll_BT = torch.nn.functional.cross_entropy(
        logits_BTV.float().transpose(1, 2), target_BT, reduction="none", ignore_index=-100
    )
    return nll_BT.sum(dim=1), agent_BT[:, 1:].sum(dim=1)


class SftTrainer:
    """A base model with a trainable adapter."""

    def __init__(self, base_dir: str | Path, *, rank: int, alpha: float, dtype: str) -> None:
        self._model = attach_lora(load_base(base_dir, dtype=dtype), rank=rank, alpha=alpha)
        # The adapter is always trained in float32: it is what is averaged, clipped and noised.
        for parameter in lora_parameters(self._model).values():
            parameter.data = parameter.data.float()

    def reset(self, adapter: Mapping[str, np.ndarray]) -> None:
        """Become the global adapter, bit for bit.

        Args:
            adapter: All factors by name.
        """
        write_adapter(self._model, adapter)

    def adapter(self) -> dict[str, np.ndarray]:
        """The adapter as it is now.

        Returns:
            All factors by name.
        """
        return read_adapter(self._model)

    def train(
        self,
        trajectories: Sequence[Trajectory],
        *,
        trainable: frozenset[str],
        epochs: int,
        batch_size: int,
        learning_rate: float,
        grad_clip_l2: float,
        max_sequence_tokens: int,
        seed: int,
    ) -> SftReport:
        """Imitate trajectories with AdamW (arXiv 1711.05101, without weight decay).

        Args:
            trajectories: What to imitate; with none nothing changes.
            trainable: Names of the factors to train.
            epochs: Passes.
            batch_size: Trajectories per step.
            learning_rate: Constant step size.
            grad_clip_l2: Gradients are scaled down to this norm.
            max_sequence_tokens: Longer trajectories are left out.
            seed: Decides the order.

        Returns:
            What was done.
        """
        chosen: list[torch.nn.Parameter] = []
        for name, parameter in lora_parameters(self._model).items():
            parameter.requires_grad = name in trainable
            parameter.grad = None
            if name in trainable:
                chosen.append(parameter)
        optimiser = torch.optim.AdamW(chosen, lr=learning_rate, weight_decay=0.0)
        rng = np.random.default_rng(seed)
        by_length = sorted(
            (t for t in trajectories if t.token_count <= max_sequence_tokens),
            key=lambda t: (t.token_count, t.conversation_sha256),
        )
        batches = [
            by_length[start : start + batch_size] for start in range(0, len(by_length), batch_size)
        ]
        steps, all_tokens = 0, 0
        epoch_losses: list[float] = []
        for _ in range(epochs if batches else 0):
            loss_sum, token_sum = 0.0, 0
            for index in rng.permutation(len(batches)):
                sums_B, counts_B = unit_losses(self._model, batches[index])
                total, count = sums_B.sum(), int(counts_B.sum())
                optimiser.zero_grad()
                (total / count).backward()  # type: ignore[no-untyped-call]  # untyped in torch
                torch.nn.utils.clip_grad_norm_(chosen, grad_clip_l2)
                optimiser.step()
                loss_sum, token_sum = loss_sum + float(total.detach()), token_sum + count
                steps += 1
            all_tokens += token_sum
            epoch_losses.append(loss_sum / token_sum)
        return SftReport(
            optimiser_steps=steps,
            agent_tokens=all_tokens,
            first_loss=epoch_losses[0] if epoch_losses else 0.0,
            last_loss=epoch_losses[-1] if epoch_losses else 0.0,
        )
