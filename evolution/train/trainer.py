"""What trains an adapter, wherever it runs: the seam between a method and its trainer.

``SftSettings`` is the plan's part of a training, the same wherever the silo trains. ``TrainerSpec``
is the silo's own: on what it trains, and how that fits into memory. None of it changes what is
computed beyond rounding: batch, rank, clip and steps are the plan's.

Invariants: ``train`` is a function of the adapter, the set of rows and its arguments; it changes
the factors named ``trainable`` and nothing else. A value head is one more factor, by its own name
(``federation.adapter.value_head``), with a step size and a clip of its own, so that what a critic
learns does not change how far the policy goes. An objective is made anew for each training, and
where units are protected for each row.

Covered: AdamW without weight decay, with FedProx's term and SCAFFOLD's correction; step sizes that
are constant or follow a cosine within a round. Not covered: a schedule over rounds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from evolution.part import Part
from evolution.train.rows import Row
from federation.plan.methods import Normaliser

if TYPE_CHECKING:
    from dp.steps.grads import GradientBackend

__all__ = ["Schedule", "SftReport", "SftSettings", "Trainer", "TrainerSpec", "share_of_step"]

Schedule = Literal["constant", "cosine"]
_MAX_PROCESSES: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class SftSettings:
    """One training of one adapter."""

    epochs: int
    """Passes."""
    batch_size: int
    """Rows per step, all processes together."""
    learning_rate: float
    """Step size at the start."""
    grad_clip_l2: float
    """Gradients are scaled down to this norm."""
    seed: int
    """Decides the order of batches."""
    schedule: Schedule = "constant"
    """What becomes of the step size (``share_of_step``)."""
    proximal_mu: float = 0.0
    """FedProx's μ (arXiv 1812.06127, eq. 2); 0 leaves the term out."""
    normaliser: Normaliser = Normaliser.BATCH_TOKENS
    """By what a batch's terms are divided (``evolution/train/loop.py``)."""
    constant: float = 1.0
    """Of the normaliser ``constant``."""
    temperature: float = 1.0
    """Of every distribution that the objective sees; above 0."""
    value_learning_rate: float | None = None
    """Of a value head, scheduled and clipped by itself; None is ``learning_rate``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerSpec:
    """On what a silo trains; read from ``[training]`` of ``silo.toml``.

    Raises:
        ValueError: A value is outside what its line says.
    """

    device: str = "auto"
    """``auto`` takes a GPU if there is one; else ``cpu`` or ``cuda``. Record-level privacy computes
    its gradients on the CPU, so it refuses ``cuda`` and leaves a GPU alone under ``auto``."""
    micro_batch_tokens: int = 0
    """Most padded tokens in one forward pass; 0 takes each batch of the plan whole. One trajectory
    that is longer goes alone."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    processes: int = 1
    """1 trains in the daemon; more, up to 64, start as many workers with torchrun, one GPU each."""
    sharding: Literal["ddp", "fsdp"] = "ddp"
    """With several processes: ``ddp`` copies the base to each, ``fsdp`` divides it."""

    def __post_init__(self) -> None:
        if self.device not in {"auto", "cpu", "cuda"}:
            raise ValueError(f"device is auto, cpu or cuda, not {self.device!r}")
        if self.micro_batch_tokens < 0:
            raise ValueError("micro_batch_tokens cannot be negative")
        if not 1 <= self.processes <= _MAX_PROCESSES:
            raise ValueError(f"processes is a number from 1 to {_MAX_PROCESSES}")
        if self.sharding not in {"ddp", "fsdp"}:
            raise ValueError(f"sharding is ddp or fsdp, not {self.sharding!r}")


def share_of_step(schedule: Schedule, *, done: int, steps: int) -> float:
    """What part of the learning rate the next step of a round takes, with 0 ≤ done < steps.

    Fed-SE trains with a cosine and no warm-up (arXiv 2512.08870, appendix B); SGDR (arXiv
    1608.03983, eq. 5) with η_min = 0: ½·(1 + cos(π·done/steps)). Each round begins at the full
    step again.
    """
    if schedule == "constant":
        return 1.0
    return 0.5 * (1.0 + math.cos(math.pi * done / steps))


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
    mean_gradient: dict[str, np.ndarray] | None = None
    """Mean over the steps of the clipped gradient before the correction, where one was given: the
    silo's next control variate. Zeros where there was nothing to imitate."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What the objective says of the training, for the silo's own operator."""


class Trainer(ABC):
    """A base model with a trainable adapter."""

    @abstractmethod
    def reset(self, adapter: Mapping[str, np.ndarray]) -> None:
        """Become this adapter, bit for bit; all factors by name, and a value head if it has one."""

    @abstractmethod
    def adapter(self) -> dict[str, np.ndarray]:
        """The adapter as it is now: all factors by name, float32."""

    @abstractmethod
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
        """Minimise an objective over rows with AdamW (arXiv 1711.05101, without weight decay).

        Each step is ``g ← clip(∇(loss + μ/2·‖φ − anchor‖²)); φ ← AdamW(φ, g + correction)``: the
        first term is FedProx's objective (arXiv 1812.06127, eq. 2), the last line SCAFFOLD's
        (arXiv 1910.06378, algorithm 1, whose step is plain SGD). The clip stands before the
        correction: a clipped gradient is what the silo's control variate is a mean of, so the
        correction removes exactly that.

        Without rows nothing changes. ``anchor`` has at least the trainable factors and is
        by default the adapter as it is before the first step; ``correction`` is c − c_k for at
        least the trainable factors.
        """

    @abstractmethod
    def logprobs(
        self, rows: Sequence[Row], *, temperature: float = 1.0, base: bool = False
    ) -> list[np.ndarray]:
        """Log-probability of every token of each row under the present factors.

        Under the base without an adapter, if that is asked for. float32, as long as the row; zero
        outside its mask and for its first token.
        """

    @abstractmethod
    def values(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """The value head's word before every token of each row; as ``logprobs``."""

    @abstractmethod
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

        The names are in the order of the flat vector; ``backend`` is a key of
        ``dp.steps.backends.BACKENDS``. A unit's terms are divided by its own tokens, or by
        ``divisor``; what the objective sees is at the temperature, and its training has come as far
        as ``progress`` says until ``descend`` takes steps. What is returned is good until another
        backend, or ``train``, chooses other factors.
        """

    @abstractmethod
    def descend(
        self,
        names: Sequence[str],
        direction: Callable[[], np.ndarray],
        *,
        steps: int,
        learning_rate: float,
        value_learning_rate: float | None = None,
    ) -> None:
        """Take Adam steps along noisy directions; a value head's have a size of their own.

        ``direction`` gives the next one at the factors' present values, in the order of the names.
        Before each the objective of ``gradients`` is told how many of the steps are taken. Nothing
        about the data changes how many there are.
        """
