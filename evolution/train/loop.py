"""The training loop, the same in one process and in several.

With D the whole batch of a step and m its micro-batches over all processes, the gradient is ::

    ∇L = Σ_m Σ_{agent tokens of m} −∇ log π  /  number of agent tokens of D

Every micro-batch is divided by the count of the whole batch before its backward pass, so the sum of
the parts is the token-weighted mean, however the batch was divided: equal up to rounding, and the
bits of one pass where it was not divided.

Invariants: what follows the sum (proximal term, clip, correction, AdamW) sees the whole gradient,
and on every process the same; the order of batches depends on the seed alone.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from evolution.errors import EvolverSetupError
from evolution.local_time import require_time, require_wanted
from evolution.train.loss import as_batch, row_sums
from evolution.train.rows import Row, cut, deal
from evolution.train.trainer import SftReport, SftSettings, share_of_step

__all__ = ["Loop", "OneProcess", "Processes", "checkpointed"]

Tensors = Mapping[str, np.ndarray]


class Processes(ABC):
    """The processes that share a step's batch, seen from one of them."""

    rank: int
    """This one."""
    count: int
    """All of them."""
    averages: int
    """By how much ``settle`` divides the sum of gradients."""

    @abstractmethod
    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Around the backward passes of a step but the last: nothing is exchanged."""

    @abstractmethod
    def settle(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """After the last: every process has the same gradients."""

    @abstractmethod
    def total(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of a number over all processes."""


class OneProcess(Processes):
    """Nobody else."""

    rank, count, averages = 0, 1, 1

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Nothing to hold back."""
        return contextlib.nullcontext()

    def settle(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Nothing to exchange."""

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """The number itself."""
        return value


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """How to train: the plan's part and the silo's."""

    settings: SftSettings
    """The plan's."""
    micro_batch_tokens: int = 0
    """See ``TrainerSpec``."""
    keep: bool = False
    """The model computes only the logits it is asked for (``sft_loss.keeps_agent_logits``)."""

    def run(
        self,
        model: Callable[..., Any],
        chosen: Mapping[str, torch.nn.Parameter],
        rows: Sequence[Row],
        *,
        device: torch.device,
        processes: Processes,
        anchor: Tensors | None = None,
        correction: Tensors | None = None,
    ) -> SftReport:
        """Train on this process's share of the rows, which are all given and sorted by length.

        The rows are the same on every process, and the chosen factors are whole on each, float32.
        For anchor and correction see ``Trainer.train``.
        """
        plan, parameters = self.settings, list(chosen.values())
        optimiser = torch.optim.AdamW(parameters, lr=plan.learning_rate, weight_decay=0.0)
        start = self._anchor(chosen, anchor)
        shift = None if correction is None else _like(chosen, correction)
        sums = None if correction is None else [torch.zeros_like(p) for p in parameters]
        batches = [
            _Dealt(batch, processes, most_tokens=self.micro_batch_tokens)
            for batch in cut(rows, plan.batch_size)
        ]
        rng = np.random.default_rng(plan.seed)
        steps, all_tokens = 0, 0
        all_steps = plan.epochs * len(batches)
        epoch_losses: list[float] = []
        for _ in range(plan.epochs if batches else 0):
            loss_sum = torch.zeros((), dtype=torch.float64, device=device)
            for index in rng.permutation(len(batches)):
                require_wanted()
                require_time()
                optimiser.zero_grad()
                loss_sum += self._backward(model, batches[index], device, processes)
                processes.settle(parameters)
                if start is not None:
                    _pull(parameters, start, plan.proximal_mu)
                torch.nn.utils.clip_grad_norm_(parameters, plan.grad_clip_l2)
                if sums is not None and shift is not None:
                    _correct(parameters, sums, shift)
                optimiser.param_groups[0]["lr"] = plan.learning_rate * share_of_step(
                    plan.schedule, done=steps, steps=all_steps
                )
                optimiser.step()
                steps += 1
            tokens = sum(batch.tokens for batch in batches)
            all_tokens += tokens
            epoch_losses.append(float(processes.total(loss_sum)) / tokens)
        optimiser.zero_grad()
        return SftReport(
            optimiser_steps=steps,
            agent_tokens=all_tokens,
            first_loss=epoch_losses[0] if epoch_losses else 0.0,
            last_loss=epoch_losses[-1] if epoch_losses else 0.0,
            mean_gradient=None
            if sums is None
            else {
                name: (total / max(1, steps)).cpu().numpy()
                for name, total in zip(chosen, sums, strict=True)
            },
        )

    def _backward(
        self,
        model: Callable[..., Any],
        batch: _Dealt,
        device: torch.device,
        processes: Processes,
    ) -> torch.Tensor:
        """Add this process's part of the gradient; return its part of the loss."""
        loss = torch.zeros((), dtype=torch.float64, device=device)
        last = len(batch.passes) - 1
        for turn, (ids_BT, agent_BT, real) in enumerate(batch.passes):
            with processes.alone() if turn < last else contextlib.nullcontext():
                sums_B = row_sums(model, ids_BT.to(device), agent_BT.to(device), keep=self.keep)
                total = sums_B.sum() if real else sums_B.sum() * 0.0
                part = total / (batch.tokens / processes.averages)
                part.backward()  # type: ignore[no-untyped-call]  # untyped in torch
            loss += total.detach()
        return loss

    def _anchor(
        self, chosen: Mapping[str, torch.nn.Parameter], anchor: Tensors | None
    ) -> list[torch.Tensor] | None:
        if self.settings.proximal_mu == 0.0:
            return None
        if anchor is not None:
            return _like(chosen, anchor)
        return [parameter.detach().clone() for parameter in chosen.values()]


class _Dealt:
    """This process's part of a batch, padded once for all epochs."""

    def __init__(self, rows: Sequence[Row], processes: Processes, *, most_tokens: int) -> None:
        self.tokens = sum(row.loss_tokens for row in rows)
        mine = deal(rows, processes=processes.count, most_tokens=most_tokens)[processes.rank]
        self.passes = [(*as_batch(part), bool(part)) for part in mine]


@contextlib.contextmanager
def checkpointed(model: torch.nn.Module, *, on: bool) -> Iterator[None]:
    """Recompute the activations of each decoder layer in the backward pass, while this lasts.

    transformers' own switch works in training mode alone, which would also switch dropout on; this
    wraps the same layers and leaves the mode as it is. The model is not wrapped for several
    processes yet.

    Raises:
        EvolverSetupError: The model has no layer that can be recomputed.
    """
    if not on:
        yield
        return
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise EvolverSetupError("this model has no layers for gradient_checkpointing: set it off")
    for layer in layers:
        layer.forward = _recomputed(layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        # Evaluation mode draws no random numbers, so there is no generator's state to keep.
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return wrapped


def _like(chosen: Mapping[str, torch.nn.Parameter], tensors: Tensors) -> list[torch.Tensor]:
    """Arrays beside their parameters.

    Raises:
        ValueError: A factor is missing or has another shape.
    """
    found: list[torch.Tensor] = []
    for name, parameter in chosen.items():
        if name not in tensors or tensors[name].shape != tuple(parameter.shape):
            raise ValueError(f"{name} is missing beside the trainable factors, or of another shape")
        array = np.ascontiguousarray(tensors[name], dtype=np.float32)
        found.append(torch.tensor(array, device=parameter.device))
    return found


def _pull(
    parameters: Sequence[torch.nn.Parameter], start: Sequence[torch.Tensor], mu: float
) -> None:
    """Add ∇ μ/2·‖φ − anchor‖² (FedProx, arXiv 1812.06127, eq. 2)."""
    for parameter, anchor in zip(parameters, start, strict=True):
        _gradient(parameter).add_(parameter.detach() - anchor, alpha=mu)


def _correct(
    parameters: Sequence[torch.nn.Parameter],
    sums: Sequence[torch.Tensor],
    shift: Sequence[torch.Tensor],
) -> None:
    """Sum g as it is, then g ← g − c_k + c (SCAFFOLD, arXiv 1910.06378, algorithm 1)."""
    for parameter, total, correction in zip(parameters, sums, shift, strict=True):
        gradient = _gradient(parameter)
        total.add_(gradient)
        gradient.add_(correction)


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The gradient; zero for a layer that had no part in the loss."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
