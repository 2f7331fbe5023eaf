"""Training an adapter in this process: any objective over rows.

A recipe's objective gives terms token by token (``evolution/train/objective.py``). Imitation is the
simplest, minus the log-probability of what the agent sampled (Fed-SE, arXiv 2512.08870, §3; a lower
bound of the expected binary reward by Jensen).

Per row the sum and the count are computed first (``RowTerms``) and combined afterwards: a privacy
unit is then a set of rows whose loss stands alone. With record-level privacy
(``SftTrainer.descend``) the objective of a unit is its own mean, its gradient is clipped and noised
(``dp.steps.sgd``), and Adam (Kingma and Ba, arXiv 1412.6980) runs on the noisy gradients, with
fresh state per round. Epochs, batch size and gradient clip play no part there: steps, sampling rate
and C come from the plan's privacy settings. Those gradients are computed on the CPU, where
micro-batches and checkpointing play no part either.

Invariants:

1. Tokens outside a row's mask carry no loss and get no gradient through the labels.
2. Only the factors named ``trainable`` change; the base weights never do.
3. The order of batches depends on the seed alone.

Batches are cut from the rows sorted by length, so that little is padded, and then shuffled. Padding
stands to the right of everything real, and causal attention never looks right.

Covered: one process, on the CPU or on one GPU. Not covered: several processes (``launched.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from dp.steps.backends import BACKENDS
from dp.steps.grads import GradientBackend
from evolution.errors import EvolverSetupError
from evolution.model.allocator import give_back
from evolution.model.causal_lm import load_base
from evolution.model.lora import (
    attach_lora,
    lora_parameters,
    read_adapter,
    trainable_parameters,
    without_adapter,
    write_adapter,
)
from evolution.model.value_head import head_on
from evolution.part import Part
from evolution.train.loop import Loop, OneProcess, checkpointed, step_groups
from evolution.train.loss import PROBE_ROWS, Batch, as_batch, keeps_agent_logits, row_sums
from evolution.train.objective import Batchwise, RowTensors, TokenOut
from evolution.train.openings import goes_on, reads_openings_once
from evolution.train.rows import Row, in_order
from evolution.train.trainer import SftReport, SftSettings, Trainer, TrainerSpec
from federation.adapter.target import ALL_LINEAR, Target
from federation.adapter.value_head import VALUE_HEAD
from federation.plan.methods import VALUE
from ops.logs.logger import get_logger

__all__ = [
    "RowTerms",
    "SftReport",
    "SftTrainer",
    "adapted_base",
    "autocast",
    "choose",
    "ready_head",
    "resolve_device",
    "saves_memory",
]

_DEFAULT_SPEC: Final = TrainerSpec()
_NO_SETTINGS: Final = SftSettings(
    epochs=1, batch_size=1, learning_rate=0.0, grad_clip_l2=1.0, seed=0
)
"""Of a pass that trains nothing."""
_Asked = tuple[tuple[str, ...], Part, str, float | None, float]
_log = get_logger(__name__)


class RowTerms:
    """An objective's terms, a row at a time (``dp.steps.grads.RowLoss``).

    Each row meets an instance of its own, so that none can leave anything for another.
    """

    def __init__(
        self,
        objective: Part,
        *,
        temperature: float = 1.0,
        progress: Callable[[], float] = float,
        keep: bool = False,
    ) -> None:
        """Take the objective, the temperature of what it sees, how far its training has come, and
        whether the model computes logits only where it is asked to (``keeps_agent_logits``).

        Raises:
            EvolverSetupError: It looks at whole batches, or cannot be loaded.
        """  # noqa: D205  # one sentence
        if issubclass(objective.load(), Batchwise):
            raise EvolverSetupError(f"{objective} looks at whole batches: no row stands alone")
        self._objective = objective
        # A value has a gradient: it is the model's own word in the very pass.
        self._needs = sorted(objective.needs - {VALUE})
        self._temperature = temperature
        self._progress = progress
        self._keep = keep

    def length(self, row: Row) -> int:
        """Tokens of a row."""
        return len(row)

    def collate(self, rows: Sequence[Row]) -> tuple[torch.Tensor, ...]:
        """The rows, padded on the right: tokens, mask, weights, log-probabilities, and what is
        known, by name.

        Each B×T.
        """  # noqa: D205  # one sentence
        batch = as_batch(rows)
        lacking = sorted(set(self._needs) - set(batch.known))
        if lacking:
            raise EvolverSetupError(f"{self._objective} needs {lacking[0]!r}, which no row knows")
        return (*batch[:4], *(batch.known[name] for name in self._needs))

    def sums(
        self, model: Callable[..., Any], *batch: torch.Tensor, alone: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums of the terms over each row's mask, and the masks' numbers of tokens.

        The batch is what ``collate`` returned. Beside rows of other units nothing is left out: how
        many logits there are decides how they are rounded.
        """
        ids_BT, mask_BT, weights_BT, logprobs_BT, *rest = batch
        known = dict(zip(self._needs, rest, strict=True))
        padded = Batch(ids_BT, mask_BT, weights_BT, logprobs_BT, known)
        sums_B = row_sums(
            model,
            padded,
            _Fresh(self._objective, self._progress()),
            keep=alone and self._keep,
            temperature=self._temperature,
        )
        return sums_B, padded.mask[:, 1:].sum(dim=1)


class _Fresh:
    """An instance of the objective for each call: for each row."""

    def __init__(self, objective: Part, progress: float) -> None:
        self._objective = objective
        self._progress = progress

    def terms(self, out: TokenOut, row: RowTensors) -> torch.Tensor:
        made = self._objective.make()
        made.progress = self._progress
        found: torch.Tensor = made.terms(out, row)
        return found


class SftTrainer(Trainer):
    """A base model with a trainable adapter, in this process.

    The spec's ``processes`` are of no concern here.

    Raises:
        EvolverSetupError: There is no such device.
        AdapterMismatchError: The base does not have the target's layers.
    """

    def __init__(
        self,
        base_dir: str | Path,
        *,
        rank: int,
        alpha: float,
        dtype: str,
        target: Target = ALL_LINEAR,
        spec: TrainerSpec = _DEFAULT_SPEC,
    ) -> None:
        self._spec = spec
        self._device = resolve_device(spec.device)
        model = adapted_base(base_dir, rank=rank, alpha=alpha, dtype=dtype, target=target)
        self._model = model.to(self._device)
        self._keep: bool | None = None
        self._goes_on: bool | None = None
        self._backend: tuple[_Asked, GradientBackend[Row]] | None = None
        self._progress = 0.0
        """Of the training that per-unit gradients are of."""

    def reset(self, adapter: Mapping[str, np.ndarray]) -> None:
        """Become the global adapter, bit for bit."""
        write_adapter(self._model, adapter)
        # Exploring has left much that is free.
        give_back()

    def adapter(self) -> dict[str, np.ndarray]:
        """The adapter as it is now."""
        return read_adapter(self._model)

    def train(
        self,
        rows: Sequence[Row],
        objective: Part,
        settings: SftSettings,
        *,
        trainable: frozenset[str],
        anchor: Mapping[str, np.ndarray] | None = None,
        correction: Mapping[str, np.ndarray] | None = None,
    ) -> SftReport:
        """Minimise the objective; see ``Trainer.train``.

        Raises:
            EvolverSetupError: The model, or the objective, does not allow what the spec asks for.
            ValueError: ``anchor`` or ``correction`` does not fit the trainable factors.
        """
        chosen = self._choose(trainable)
        ready_head(self._model, objective)
        with self._ready():
            return self._loop(settings, objective.needs).run(
                self._reader(),
                chosen,
                in_order(rows),
                objective.make(),
                device=self._device,
                processes=OneProcess(),
                anchor=anchor,
                correction=correction,
            )

    def logprobs(
        self, rows: Sequence[Row], *, temperature: float = 1.0, base: bool = False
    ) -> list[np.ndarray]:
        """Log-probability of every token of each row; see ``Trainer.logprobs``."""
        settings = replace(_NO_SETTINGS, temperature=temperature)
        without = without_adapter(self._model) if base else contextlib.nullcontext()
        with self._ready(), without:
            return self._loop(settings, frozenset()).logprobs(
                self._reader(), rows, device=self._device, processes=OneProcess()
            )

    def values(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """The value head's word before every token of each row; see ``Trainer.values``."""
        with self._ready():
            return self._loop(_NO_SETTINGS, frozenset()).values(
                self._reader(), rows, device=self._device, processes=OneProcess()
            )

    @contextlib.contextmanager
    def _ready(self) -> Iterator[None]:
        with (
            checkpointed(self._model, on=self._spec.gradient_checkpointing),
            autocast(self._model, self._device),
        ):
            yield

    def _keeps(self) -> bool:
        return saves_memory(self._spec, self._device) and self._can_keep()

    def _can_keep(self) -> bool:
        if self._keep is None:
            self._keep = keeps_agent_logits(self._model, self._device)
        return self._keep

    def _reader(self) -> Callable[..., Any]:
        """The model, reading what rows open with alike once where that can be done.

        Logits that nobody asked for would be of the whole row, and a layer whose activations are
        recomputed would write its keys and values down twice.
        """
        if self._spec.gradient_checkpointing or not self._keeps():
            return self._model  # type: ignore[no-any-return]  # peft ships no types
        if self._goes_on is None:
            self._goes_on = goes_on(self._model, self._device)
        return reads_openings_once(self._model) if self._goes_on else self._model

    def _loop(self, settings: SftSettings, needs: frozenset[str]) -> Loop:
        return Loop(
            settings=settings,
            micro_batch_tokens=self._spec.micro_batch_tokens,
            keep=self._keeps(),
            needs=needs,
            without_adapter=partial(without_adapter, self._model),
        )

    def gradients(
        self,
        names: Sequence[str],
        objective: Part,
        *,
        backend: str,
        divisor: float | None = None,
        temperature: float = 1.0,
        progress: float = 0.0,
    ) -> GradientBackend[Row]:
        """Per-unit gradients by these factors, at whatever values they have when asked.

        Raises:
            CouplingError: The model ties the rows of a batch together.
            EvolverSetupError: The silo asked for a GPU, or the objective looks at whole batches.
        """
        self._to_cpu()
        self._progress = progress
        key = (tuple(names), objective, backend, divisor, temperature)
        if self._backend is not None and self._backend[0] == key:
            return self._backend[1]
        chosen = self._choose(frozenset(names))
        ready_head(self._model, objective)
        made = BACKENDS[backend](
            model=self._model,
            parameters={name: chosen[name] for name in names},
            loss=RowTerms(
                objective,
                temperature=temperature,
                progress=lambda: self._progress,
                keep=self._can_keep(),
            ),
            probe=PROBE_ROWS,
            divisor=divisor,
        )
        self._backend = (key, made)
        return made

    def descend(
        self,
        names: Sequence[str],
        direction: Callable[[], np.ndarray],
        *,
        steps: int,
        learning_rate: float,
        value_learning_rate: float | None = None,
    ) -> None:
        """Take Adam steps along noisy directions."""
        self._to_cpu()
        parameters = trainable_parameters(self._model)
        chosen = [parameters[name] for name in names]
        optimiser = torch.optim.Adam(
            step_groups(
                {name: parameters[name] for name in names},
                learning_rate=learning_rate,
                value_learning_rate=value_learning_rate,
            )
        )
        for taken in range(steps):
            self._progress = taken / steps
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
    """Whether logits without a loss are left out (``loss.py``).

    A product of another shape rounds differently, so a silo that trains on the CPU and asks for no
    memory to be saved keeps the plain arithmetic.
    """
    return bool(device.type != "cpu" or spec.micro_batch_tokens or spec.gradient_checkpointing)


def adapted_base(
    base_dir: str | Path, *, rank: int, alpha: float, dtype: str, target: Target = ALL_LINEAR
) -> Any:
    """A frozen base with an adapter of float32, in evaluation mode, on the CPU.

    Raises:
        AdapterMismatchError: The base does not have the target's layers.
    """
    base = load_base(base_dir, dtype=dtype)
    model = attach_lora(base, rank=rank, alpha=alpha, target=target).eval()
    # The adapter is always trained in float32: it is what is averaged, clipped and noised.
    for parameter in lora_parameters(model).values():
        parameter.data = parameter.data.float()
    return model


def choose(model: Any, trainable: frozenset[str]) -> dict[str, torch.nn.Parameter]:
    """Let the named factors have gradients and no other; returns them in the model's order.

    A value head is one of them, the last.
    """
    chosen: dict[str, torch.nn.Parameter] = {}
    for name, parameter in trainable_parameters(model).items():
        parameter.requires_grad = name in trainable
        parameter.grad = None
        if name in trainable:
            chosen[name] = parameter
    return chosen


def ready_head(model: Any, objective: Part) -> None:
    """Let the value's gradient reach as far as the objective's options say.

    Raises:
        EvolverSetupError: The objective learns a value, and the adapter has no head for it.
    """
    if VALUE not in objective.needs:
        return
    head = head_on(model)
    if head is None:
        raise EvolverSetupError(
            f"{objective} learns a value, and the adapter that the trainer was reset to has no "
            f"{VALUE_HEAD!r}"
        )
    head.trains_adapter = bool(getattr(objective.options, "value_trains_adapter", False))


def autocast(model: Any, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """On a GPU with a bfloat16 base, products with the float32 factors in bfloat16 too.

    Parameters, gradients and the optimiser stay in float32. On the CPU, and for a float32 base,
    everything is computed as it is stored.
    """
    half = any(p.dtype == torch.bfloat16 for p in model.parameters())
    if device.type != "cuda" or not half:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
