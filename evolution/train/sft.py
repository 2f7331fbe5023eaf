"""Imitating successes: supervised training of the adapter on agent tokens only.

Objective (Fed-SE, arXiv 2512.08870, §3; a lower bound of the expected binary reward by Jensen)::

    L(φ) = − Σ_{τ∈batch} Σ_{j: agent} log π_{Θ,φ}(x_j | x_{<j})  /  number of agent tokens in batch

Per trajectory the sum and the count are computed first (``TrajectoryLoss``) and combined
afterwards: a privacy unit is then a set of trajectories whose loss stands alone.

With record-level privacy (``SftTrainer.descend``) the objective of a unit is its own mean, its
gradient is clipped and noised (``dp.steps.sgd``), and Adam (Kingma and Ba, arXiv 1412.6980) runs on
the noisy gradients, with fresh state per round. Epochs, batch size and gradient clip play no part
there: steps, sampling rate and C come from the plan's privacy settings. Those gradients are
computed on the CPU, where micro-batches and checkpointing play no part either.

Invariants:

1. Observation tokens carry no loss and get no gradient through the labels.
2. Only the factors named ``trainable`` change; the base weights never do.
3. The order of batches depends on the seed alone.

Batches are cut from the trajectories sorted by length, so that little is padded, and then shuffled.
Padding stands to the right of everything real, and causal attention never looks right.

Covered: one process, on the CPU or on one GPU. Not covered: several processes (``launched.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import structlog
import torch

from dp.steps.grads import BACKENDS, GradientBackend
from evolution.errors import EvolverSetupError
from evolution.model.causal_lm import load_base
from evolution.model.lora import attach_lora, lora_parameters, read_adapter, write_adapter
from evolution.train.loop import Loop, OneProcess, checkpointed
from evolution.train.loss import keeps_agent_logits, pad
from evolution.train.rows import rows_of
from evolution.train.trainer import SftReport, SftSettings, Trainer, TrainerSpec
from evolution.trajectory import Step, Task, Trajectory

__all__ = [
    "SftReport",
    "SftTrainer",
    "TrajectoryLoss",
    "adapted_base",
    "autocast",
    "choose",
    "resolve_device",
    "saves_memory",
]

_DEFAULT_SPEC: Final = TrainerSpec()
_log = structlog.get_logger(__name__)


class TrajectoryLoss:
    """Negative log-likelihood of the agent's tokens, a trajectory a row (``dp.steps.grads``)."""

    def length(self, row: Trajectory) -> int:
        """Tokens of a trajectory."""
        return row.token_count

    def collate(self, rows: Sequence[Trajectory]) -> tuple[torch.Tensor, ...]:
        """Token ids and agent mask, padded on the right: integers B×T and booleans B×T."""
        return pad([(row.token_ids, row.agent_mask) for row in rows])

    def nll(
        self, model: Callable[..., Any], *batch: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums of −log π over each row's agent tokens, and their numbers.

        The batch is what ``collate`` returned.
        """
        ids_BT, agent_BT = batch
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1]
        target_BT = ids_BT[:, 1:].masked_fill(~agent_BT[:, 1:], -100)
        nll_BT = torch.nn.functional.cross_entropy(
            logits_BTV.float().transpose(1, 2), target_BT, reduction="none", ignore_index=-100
        )
        return nll_BT.sum(dim=1), agent_BT[:, 1:].sum(dim=1)


class SftTrainer(Trainer):
    """A base model with a trainable adapter, in this process.

    The spec's ``processes`` are of no concern here.

    Raises:
        EvolverSetupError: There is no such device.
    """

    def __init__(
        self,
        base_dir: str | Path,
        *,
        rank: int,
        alpha: float,
        dtype: str,
        spec: TrainerSpec = _DEFAULT_SPEC,
    ) -> None:
        self._spec = spec
        self._device = resolve_device(spec.device)
        self._model = adapted_base(base_dir, rank=rank, alpha=alpha, dtype=dtype).to(self._device)
        self._keep: bool | None = None
        self._loss = TrajectoryLoss()
        self._backend: tuple[tuple[str, ...], str, GradientBackend[Trajectory]] | None = None

    def reset(self, adapter: Mapping[str, np.ndarray]) -> None:
        """Become the global adapter, bit for bit."""
        write_adapter(self._model, adapter)

    def adapter(self) -> dict[str, np.ndarray]:
        """The adapter as it is now."""
        return read_adapter(self._model)

    def train(
        self,
        trajectories: Sequence[Trajectory],
        settings: SftSettings,
        *,
        trainable: frozenset[str],
        anchor: Mapping[str, np.ndarray] | None = None,
        correction: Mapping[str, np.ndarray] | None = None,
    ) -> SftReport:
        """Imitate trajectories; see ``Trainer.train``.

        Raises:
            EvolverSetupError: The model does not allow what the spec asks for.
            ValueError: ``anchor`` or ``correction`` does not fit the trainable factors.
        """
        chosen = self._choose(trainable)
        if self._keep is None:
            self._keep = saves_memory(self._spec, self._device) and keeps_agent_logits(
                self._model, self._device
            )
        loop = Loop(
            settings=settings,
            micro_batch_tokens=self._spec.micro_batch_tokens,
            keep=self._keep,
        )
        rows = rows_of(trajectories, max_sequence_tokens=settings.max_sequence_tokens)
        with (
            checkpointed(self._model, on=self._spec.gradient_checkpointing),
            autocast(self._model, self._device),
        ):
            report = loop.run(
                self._model,
                chosen,
                rows,
                device=self._device,
                processes=OneProcess(),
                anchor=anchor,
                correction=correction,
            )
        return replace(report, too_long=len(trajectories) - len(rows))

    def gradients(self, names: Sequence[str], *, backend: str) -> GradientBackend[Trajectory]:
        """Per-unit gradients by these factors, at whatever values they have when asked.

        Raises:
            CouplingError: The model ties the rows of a batch together.
            EvolverSetupError: The silo asked for a GPU.
        """
        self._to_cpu()
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
        """Take Adam steps along noisy directions."""
        self._to_cpu()
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
        return choose(self._model, trainable)

    def _to_cpu(self) -> None:
        """Where ``dp.steps.grads`` computes; its integers and its noise are made there as well."""
        if self._device.type == "cpu":
            return
        if self._spec.device != "auto":
            raise EvolverSetupError(
                "record-level privacy computes its gradients on the CPU: set device to cpu or auto"
            )
        _log.warning("trainer_moved", device="cpu", why="per-unit gradients")
        self._device = torch.device("cpu")
        self._model = self._model.to(self._device)


def resolve_device(wanted: str) -> torch.device:
    """The device that a spec names; ``auto`` is a GPU if there is one.

    Raises:
        EvolverSetupError: There is no GPU.
    """
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise EvolverSetupError("device is cuda, but torch sees no GPU")
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


def saves_memory(spec: TrainerSpec, device: torch.device) -> bool:
    """Whether logits without a loss are left out (``sft_loss``).

    A product of another shape rounds differently, so a silo that trains on the CPU and asks for no
    memory to be saved keeps the plain arithmetic.
    """
    return bool(device.type != "cpu" or spec.micro_batch_tokens or spec.gradient_checkpointing)


def adapted_base(base_dir: str | Path, *, rank: int, alpha: float, dtype: str) -> Any:
    """A frozen base with an adapter of float32, in evaluation mode, on the CPU."""
    model = attach_lora(load_base(base_dir, dtype=dtype), rank=rank, alpha=alpha).eval()
    # The adapter is always trained in float32: it is what is averaged, clipped and noised.
    for parameter in lora_parameters(model).values():
        parameter.data = parameter.data.float()
    return model


def choose(model: Any, trainable: frozenset[str]) -> dict[str, torch.nn.Parameter]:
    """Let the named factors have gradients and no other; returns them in the model's order."""
    chosen: dict[str, torch.nn.Parameter] = {}
    for name, parameter in lora_parameters(model).items():
        parameter.requires_grad = name in trainable
        parameter.grad = None
        if name in trainable:
            chosen[name] = parameter
    return chosen


def autocast(model: Any, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """On a GPU with a bfloat16 base, products with the float32 factors in bfloat16 too.

    Parameters, gradients and the optimiser stay in float32. On the CPU, and for a float32 base,
    everything is computed as it is stored.
    """
    half = any(p.dtype == torch.bfloat16 for p in model.parameters())
    if device.type != "cuda" or not half:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


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
