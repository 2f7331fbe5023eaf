"""Imitating successes: supervised training of the adapter on agent tokens only.

Objective (Fed-SE, arXiv 2512.08870, §3; a lower bound of the expected binary reward by Jensen)::

    L(φ) = − Σ_{τ∈batch} Σ_{j: agent} log π_{Θ,φ}(x_j | x_{<j})  /  number of agent tokens in batch

Per trajectory the sum and the count are computed first (``TrajectoryLoss``) and combined
afterwards: a privacy unit is then a set of trajectories whose loss stands alone.

With record-level privacy (``SftTrainer.descend``) the objective of a unit is its own mean, its
gradient is clipped and noised (``dp.sgd``), and Adam (Kingma and Ba, arXiv 1412.6980) runs on the
noisy gradients, with fresh state per round. Epochs, batch size and gradient clip play no part
there: steps, sampling rate and C come from the plan's privacy settings.

Invariants:

1. Observation tokens carry no loss and get no gradient through the labels.
2. Only the factors named ``trainable`` change; the base weights never do.
3. The order of batches depends on the seed alone.

Batches are cut from the trajectories sorted by length, so that little is padded, and then shuffled.
Padding stands to the right of everything real, and causal attention never looks right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dp.grads import BACKENDS, GradientBackend
from silo_agent.adapter.causal_lm import load_base
from silo_agent.adapter.lora import attach_lora, lora_parameters, read_adapter, write_adapter
from silo_agent.trajectory import Step, Task, Trajectory

__all__ = ["SftReport", "SftTrainer", "TrajectoryLoss"]


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


class TrajectoryLoss:
    """Negative log-likelihood of the agent's tokens, per trajectory (``dp.grads.RowLoss``)."""

    def length(self, row: Trajectory) -> int:
        """Tokens of a trajectory."""
        return row.token_count

    def collate(self, rows: Sequence[Trajectory]) -> tuple[torch.Tensor, ...]:
        """Token ids and agent mask, padded on the right.

        Args:
            rows: Trajectories.

        Returns:
            Integers B×T and booleans B×T.
        """
        sequences = [trajectory.token_ids for trajectory in rows]
        width = max(map(len, sequences))
        ids_BT = torch.zeros(len(rows), width, dtype=torch.long)
        agent_BT = torch.zeros(len(rows), width, dtype=torch.bool)
        for index, (trajectory, ids) in enumerate(zip(rows, sequences, strict=True)):
            ids_BT[index, : len(ids)] = torch.tensor(ids)
            agent_BT[index, : len(ids)] = torch.tensor(trajectory.agent_mask)
        return ids_BT, agent_BT

    def nll(
        self, model: Callable[..., Any], *batch: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of each row by itself.

        Args:
            model: A causal LM.
            batch: What ``collate`` returned.

        Returns:
            Sums of −log π over each trajectory's agent tokens, and their numbers.
        """
        ids_BT, agent_BT = batch
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1]
        target_BT = ids_BT[:, 1:].masked_fill(~agent_BT[:, 1:], -100)
        nll_BT = torch.nn.functional.cross_entropy(
            logits_BTV.float().transpose(1, 2), target_BT, reduction="none", ignore_index=-100
        )
        return nll_BT.sum(dim=1), agent_BT[:, 1:].sum(dim=1)


class SftTrainer:
    """A base model with a trainable adapter."""

    def __init__(self, base_dir: str | Path, *, rank: int, alpha: float, dtype: str) -> None:
        self._model = attach_lora(load_base(base_dir, dtype=dtype), rank=rank, alpha=alpha).eval()
        self._loss = TrajectoryLoss()
        self._backend: tuple[tuple[str, ...], str, GradientBackend[Trajectory]] | None = None
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
        chosen = list(self._choose(trainable).values())
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
                sums_B, counts_B = self._loss.nll(self._model, *self._loss.collate(batches[index]))
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

    def gradients(self, names: Sequence[str], *, backend: str) -> GradientBackend[Trajectory]:
        """Per-unit gradients by these factors, at whatever values they have when asked.

        Args:
            names: The trainable factors, in the order of the flat vector.
            backend: A key of ``dp.grads.BACKENDS``.

        Returns:
            The backend; it is good until another one, or ``train``, chooses other factors.

        Raises:
            CouplingError: The model ties the rows of a batch together.
        """
        key = (tuple(names), backend)
        if self._backend is not None and self._backend[:2] == key:
            return self._backend[2]
        chosen = self._choose(frozenset(names))
        made = BACKENDS[backend](
            model=self._model,
            parameters={name: chosen[name] for name in names},
            loss=self._loss,
            probe=_PROBE,
        )
        self._backend = (*key, made)
        return made

    def descend(
        self,
        names: Sequence[str],
        direction: Callable[[], np.ndarray],
        *,
        steps: int,
        learning_rate: float,
    ) -> None:
        """Take Adam steps along noisy directions.

        Args:
            names: The trainable factors, in the order of the flat vector.
            direction: Gives the next direction of descent at the factors' present values.
            steps: How many steps; nothing about the data changes it.
            learning_rate: Constant step size.
        """
        parameters = lora_parameters(self._model)
        chosen = [parameters[name] for name in names]
        optimiser = torch.optim.Adam(chosen, lr=learning_rate)
        for _ in range(steps):
            flat = torch.from_numpy(direction())
            start = 0
            for parameter in chosen:
                part = flat[start : start + parameter.numel()]
                parameter.grad = -part.view_as(parameter)
                start += parameter.numel()
            optimiser.step()
            optimiser.zero_grad()

    def _choose(self, trainable: frozenset[str]) -> dict[str, torch.nn.Parameter]:
        self._backend = None
        chosen: dict[str, torch.nn.Parameter] = {}
        for name, parameter in lora_parameters(self._model).items():
            parameter.requires_grad = name in trainable
            parameter.grad = None
            if name in trainable:
                chosen[name] = parameter
        return chosen


def _public_row(answer_tokens: int) -> Trajectory:
    """A made-up episode of low token ids, which every vocabulary has."""
    step = Step(
        observation="",
        action="",
        context_ids=(0, 1),
        action_ids=tuple(index % 3 for index in range(answer_tokens)),
        action_logprobs=(0.0,) * answer_tokens,
    )
    return Trajectory(
        task=Task(environment="", task_id=0),
        steps=(step,),
        final_observation="",
        success=True,
        adapter_sha256="",
        round=0,
    )


_PROBE = (_public_row(3), _public_row(7))
