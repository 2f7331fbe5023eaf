"""The training loop, the same in one process and in several.

With D the whole batch of a step and m its micro-batches over all processes, the gradient is ::

    ∇L = Σ_m Σ_{rows r of m} s_r · Σ_{mask of r} ∇ term  /  N(D)

    normaliser       s_r                          N(D)
    batch_tokens     1                            tokens of D's masks
    unit_tokens      1 / tokens of r's unit       Σ_{r of D} s_r · tokens of r
    constant         1                            a public number, the same for every batch

Every micro-batch is divided by the number of the whole batch before its backward pass, so the sum
of the parts is the same however the batch was divided: equal up to rounding, and the bits of one
pass where it was not divided.

Invariants: what follows the sum (proximal term, clip, correction, AdamW) sees the whole gradient,
and on every process the same; the order of batches depends on the seed alone.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from dp.steps.units import UnitId
from evolution.errors import EvolverSetupError
from evolution.local_time import require_time, require_wanted
from evolution.part import BasePart
from evolution.train.loss import Batch, as_batch, batch_total, logprobs_of, values_of
from evolution.train.objective import Batchwise, Objective, Watch
from evolution.train.rows import Row, cut, deal, in_order
from evolution.train.trainer import SftReport, SftSettings, share_of_step
from federation.adapter.value_head import VALUE_HEAD
from federation.plan.methods import Normaliser

__all__ = ["Loop", "OneProcess", "Processes", "checkpointed", "require_whole", "step_groups"]

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

    @abstractmethod
    def greatest(self, value: torch.Tensor) -> torch.Tensor:
        """The greatest of each number over all processes."""


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

    def greatest(self, value: torch.Tensor) -> torch.Tensor:
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
    """The model computes only the logits it is asked for (``loss.keeps_agent_logits``)."""
    needs: frozenset[str] = frozenset()
    """What the objective asks for."""
    without_adapter: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """While this lasts, the model is the base alone."""

    def run(
        self,
        model: Callable[..., Any],
        chosen: Mapping[str, torch.nn.Parameter],
        rows: Sequence[Row],
        objective: Objective | Batchwise,
        *,
        device: torch.device,
        processes: Processes,
        anchor: Tensors | None = None,
        correction: Tensors | None = None,
    ) -> SftReport:
        """Train on this process's share of the rows, which are all given and sorted by length.

        The rows are the same on every process, and the chosen factors are whole on each, float32.
        For anchor and correction see ``Trainer.train``.

        Raises:
            EvolverSetupError: The objective needs a whole batch in one pass, and batches are
                divided, or rows scaled.
        """
        plan, parameters = self.settings, list(chosen.values())
        if isinstance(objective, Batchwise):
            require_whole(
                micro_batch_tokens=self.micro_batch_tokens,
                processes=processes.count,
                normaliser=plan.normaliser,
            )
        groups = step_groups(
            chosen, learning_rate=plan.learning_rate, value_learning_rate=plan.value_learning_rate
        )
        optimiser = torch.optim.AdamW(groups, weight_decay=0.0)
        rates = [float(group["lr"]) for group in optimiser.param_groups]
        start = self._anchor(chosen, anchor)
        shift = None if correction is None else _like(chosen, correction)
        sums = None if correction is None else [torch.zeros_like(p) for p in parameters]
        scale_of = _scales(rows, plan.normaliser)
        batches = [_Dealt(batch, self, processes, scale_of) for batch in self._batches(rows)]
        self._look_back(model, chosen, batches, device, anchor)
        watch = _watching(objective)
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
                if isinstance(objective, BasePart):
                    objective.progress = steps / all_steps
                loss_sum += self._backward(model, batches[index], objective, device, processes)
                processes.settle(parameters)
                if start is not None:
                    _pull(parameters, start, plan.proximal_mu)
                for group in optimiser.param_groups:
                    torch.nn.utils.clip_grad_norm_(group["params"], plan.grad_clip_l2)
                if sums is not None and shift is not None:
                    _correct(parameters, sums, shift)
                share = share_of_step(plan.schedule, done=steps, steps=all_steps)
                for group, rate in zip(optimiser.param_groups, rates, strict=True):
                    group["lr"] = rate * share
                optimiser.step()
                steps += 1
                if watch is not None:
                    watch.first_step = False
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
            figures=_figures(objective, watch, processes),
        )

    def _batches(self, rows: Sequence[Row]) -> list[Sequence[Row]]:
        """The plan's batches: of rows alike in length, or by a public constant of any rows.

        How long a try is tells how good it is, and a batch of short tries alone would be one of
        successes: the gradient of a step would be of another objective than the whole's.
        """
        size = self.settings.batch_size
        if self.settings.normaliser is not Normaliser.CONSTANT or len(rows) <= size:
            return cut(rows, size)
        order = np.random.default_rng([self.settings.seed, 1]).permutation(len(rows))
        mixed = [rows[place] for place in order]
        batches = [in_order(mixed[start : start + size]) for start in range(0, len(mixed), size)]
        return [batch for batch in batches if any(row.loss_tokens for row in batch)]

    def logprobs(
        self,
        model: Callable[..., Any],
        rows: Sequence[Row],
        *,
        device: torch.device,
        processes: Processes,
    ) -> list[np.ndarray]:
        """Log-probabilities of this process's share of the rows: of every ``count``-th, in order.

        float32, one for each token of a row, zero outside its mask.
        """
        return self._of_rows(self._logprobs, model, rows, device, processes)

    def values(
        self,
        model: Callable[..., Any],
        rows: Sequence[Row],
        *,
        device: torch.device,
        processes: Processes,
    ) -> list[np.ndarray]:
        """The same of the value head's word before each token."""
        return self._of_rows(self._values, model, rows, device, processes)

    def _of_rows(
        self,
        said: Callable[[Callable[..., Any], Batch, torch.device], torch.Tensor],
        model: Callable[..., Any],
        rows: Sequence[Row],
        device: torch.device,
        processes: Processes,
    ) -> list[np.ndarray]:
        mine = deal(rows, processes=processes.count, most_tokens=self.micro_batch_tokens)
        found: list[np.ndarray] = []
        for part in mine[processes.rank]:
            values_BT = said(model, as_batch(part), device)
            for row, values in zip(part, values_BT.cpu().numpy(), strict=False):
                whole = np.zeros(len(row), dtype=np.float32)
                whole[1:] = values[: len(row) - 1]
                found.append(whole)
        return found

    @torch.no_grad()
    def _logprobs(
        self, model: Callable[..., Any], batch: Batch, device: torch.device
    ) -> torch.Tensor:
        require_wanted()
        require_time()
        return logprobs_of(
            model, batch.to(device), keep=self.keep, temperature=self.settings.temperature
        )

    @torch.no_grad()
    def _values(
        self, model: Callable[..., Any], batch: Batch, device: torch.device
    ) -> torch.Tensor:
        require_wanted()
        require_time()
        return values_of(model, batch.to(device), keep=self.keep)

    def _look_back(
        self,
        model: Callable[..., Any],
        chosen: Mapping[str, torch.nn.Parameter],
        batches: Sequence[_Dealt],
        device: torch.device,
        anchor: Tensors | None,
    ) -> None:
        """Note what the objective needs of the factors before the first step and of the anchor.

        What it needs of a row's first pass is noted when that comes (``_backward``).
        """
        passes = [one for batch in batches for one in batch.passes]
        if "old_value" in self.needs:
            self._note(model, passes, device, "old_value")
        if "old" in self.needs:
            self._note(model, passes, device, "old")
        if "reference" in self.needs:
            with _as_if(chosen, anchor):
                self._note(model, passes, device, "reference")
        if "base" in self.needs:
            with self.without_adapter():
                self._note(model, passes, device, "base")

    def _note(
        self,
        model: Callable[..., Any],
        passes: Sequence[_Pass],
        device: torch.device,
        name: str,
    ) -> None:
        """Note log-probabilities, or values, under the present factors where nobody has.

        Where the base is divided, every pass is one that all processes make: made-up rows know what
        the others know, no more (``_Dealt``).
        """
        said = self._values if name == "old_value" else self._logprobs
        for one in passes:
            if name not in one.batch.known:
                values_BT = said(model, one.batch, device).cpu()
                one.batch.known[name] = torch.nn.functional.pad(values_BT, (1, 0))

    def _backward(
        self,
        model: Callable[..., Any],
        batch: _Dealt,
        objective: Objective | Batchwise,
        device: torch.device,
        processes: Processes,
    ) -> torch.Tensor:
        """Add this process's part of the gradient; return its part of the loss."""
        loss = torch.zeros((), dtype=torch.float64, device=device)
        watch: Watch | None = getattr(objective, "watch", None)
        last = len(batch.passes) - 1
        if "first" in self.needs:
            self._note(model, batch.passes, device, "first")
        for turn, one in enumerate(batch.passes):
            with processes.alone() if turn < last else contextlib.nullcontext():
                scales_B = None if one.scales is None else one.scales.to(device)
                if watch is not None:
                    watch.paused = not one.real
                found = batch_total(
                    model,
                    one.batch.to(device),
                    objective,
                    keep=self.keep,
                    scales_B=scales_B,
                    temperature=self.settings.temperature,
                )
                found = found if one.real else found * 0.0
                part = found / (batch.divisor / processes.averages)
                part.backward()  # type: ignore[no-untyped-call]  # untyped in torch
            loss += found.detach()
        return loss

    def _anchor(
        self, chosen: Mapping[str, torch.nn.Parameter], anchor: Tensors | None
    ) -> list[torch.Tensor] | None:
        if self.settings.proximal_mu == 0.0:
            return None
        if anchor is not None:
            return _like(chosen, anchor)
        return [parameter.detach().clone() for parameter in chosen.values()]


def require_whole(*, micro_batch_tokens: int, processes: int, normaliser: Normaliser) -> None:
    """Refuse what leaves an objective over whole mini-batches no mini-batch that is whole.

    Raises:
        EvolverSetupError: Batches are divided, or each row has a scale of its own.
    """
    if micro_batch_tokens or processes > 1:
        raise EvolverSetupError(
            "this objective looks at a whole mini-batch: set training.micro_batch_tokens to 0 "
            "and training.processes to 1"
        )
    if normaliser is Normaliser.UNIT_TOKENS:
        raise EvolverSetupError(
            "this objective makes one loss of a whole mini-batch, and evolve.normaliser "
            "'unit_tokens' scales each task's part: set it to 'batch_tokens' or 'constant'"
        )


class _Pass(NamedTuple):
    """One forward pass."""

    batch: Batch
    """Padded rows, made up where this process has none left."""
    scales: torch.Tensor | None
    """s_r of each row; None is 1."""
    real: bool
    """Whether the rows are."""


class _Dealt:
    """This process's part of a batch, padded once for all epochs."""

    def __init__(
        self,
        rows: Sequence[Row],
        loop: Loop,
        processes: Processes,
        scale_of: Mapping[UnitId | None, float] | None,
    ) -> None:
        self.tokens = sum(row.loss_tokens for row in rows)
        self.divisor: float = self.tokens
        if loop.settings.normaliser is Normaliser.CONSTANT:
            self.divisor = loop.settings.constant
        elif scale_of is not None:
            self.divisor = sum(scale_of[row.unit] * row.loss_tokens for row in rows)
        dealt = deal(rows, processes=processes.count, most_tokens=loop.micro_batch_tokens)
        self.passes = [
            _Pass(
                as_batch(part) if part else _made_up(rows),
                None
                if scale_of is None
                else torch.tensor([scale_of[row.unit] for row in part] or [0.0]),
                bool(part),
            )
            for part in dealt[processes.rank]
        ]


def _made_up(rows: Sequence[Row]) -> Batch:
    """A pass without rows of its own; it knows what the rows of the others do."""
    found = as_batch(())
    common = set.intersection(*(set(row.known) for row in rows))
    return found._replace(known={name: found.known[name] for name in common})


def _scales(rows: Sequence[Row], normaliser: Normaliser) -> dict[UnitId | None, float] | None:
    """1 over the tokens of each unit, where units' means are averaged."""
    if normaliser is not Normaliser.UNIT_TOKENS:
        return None
    tokens: Counter[UnitId | None] = Counter()
    for row in rows:
        tokens[row.unit] += row.loss_tokens
    return {unit: 1.0 / max(1, count) for unit, count in tokens.items()}


def _watching(objective: Objective | Batchwise) -> Watch | None:
    """What the objective notes its figures in, if it has some."""
    if not isinstance(objective, BasePart) or not objective.watches:
        return None
    watch = Watch(objective.watches)
    objective.watch = watch
    return watch


def _figures(
    objective: Objective | Batchwise, watch: Watch | None, processes: Processes
) -> dict[str, float]:
    if watch is None or not isinstance(objective, BasePart):
        return {}
    return objective.concluded(watch.figures(processes.total, processes.greatest))


def step_groups(
    chosen: Mapping[str, torch.nn.Parameter],
    *,
    learning_rate: float,
    value_learning_rate: float | None,
) -> list[dict[str, Any]]:
    """What an optimiser steps on, with their rates: the factors, and a value head by itself."""
    rate = learning_rate if value_learning_rate is None else value_learning_rate
    factors = [one for name, one in chosen.items() if name != VALUE_HEAD]
    head = [one for name, one in chosen.items() if name == VALUE_HEAD]
    groups = ({"params": factors, "lr": learning_rate}, {"params": head, "lr": rate})
    return [group for group in groups if group["params"]]


@contextlib.contextmanager
def _as_if(chosen: Mapping[str, torch.nn.Parameter], anchor: Tensors | None) -> Iterator[None]:
    """Let the chosen factors be the anchor's while this lasts; without one they stay."""
    if anchor is None:
        yield
        return
    kept = {name: parameter.detach().clone() for name, parameter in chosen.items()}
    values = dict(zip(chosen, _like(chosen, anchor), strict=True))
    try:
        _write(chosen, values)
        yield
    finally:
        _write(chosen, kept)


@torch.no_grad()
def _write(chosen: Mapping[str, torch.nn.Parameter], values: Mapping[str, torch.Tensor]) -> None:
    for name, parameter in chosen.items():
        parameter.copy_(values[name])


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
