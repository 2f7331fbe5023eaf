"""What trains an adapter, wherever it runs: the seam between a method and its trainer.

Invariants: ``train`` is a function of the adapter, the set of trajectories and its arguments; it
changes the factors named ``trainable`` and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evolution.train.settings import SftSettings
from evolution.trajectory import Trajectory

if TYPE_CHECKING:
    from dp.steps.grads import GradientBackend

__all__ = ["SftReport", "Trainer"]


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


class Trainer(ABC):
    """A base model with a trainable adapter."""

    @abstractmethod
    def reset(self, adapter: Mapping[str, np.ndarray]) -> None:
        """Become this adapter, bit for bit; all factors by name."""

    @abstractmethod
    def adapter(self) -> dict[str, np.ndarray]:
        """The adapter as it is now: all factors by name, float32."""

    @abstractmethod
    def train(
        self,
        trajectories: Sequence[Trajectory],
        settings: SftSettings,
        *,
        trainable: frozenset[str],
        anchor: Mapping[str, np.ndarray] | None = None,
        correction: Mapping[str, np.ndarray] | None = None,
    ) -> SftReport:
        """Imitate trajectories with AdamW (arXiv 1711.05101, without weight decay).

        Each step is ``g ← clip(∇(loss + μ/2·‖φ − anchor‖²)); φ ← AdamW(φ, g + correction)``: the
        first term is FedProx's objective (arXiv 1812.06127, eq. 2), the last line SCAFFOLD's
        (arXiv 1910.06378, algorithm 1, whose step is plain SGD). The clip stands before the
        correction: a clipped gradient is what the silo's control variate is a mean of, so the
        correction removes exactly that.

        Args:
            trajectories: What to imitate; with none nothing changes.
            settings: How.
            trainable: Names of the factors to train.
            anchor: What FedProx's term pulls to, at least the trainable factors; by default the
                adapter as it is before the first step.
            correction: SCAFFOLD's c − c_k, at least for the trainable factors.

        Returns:
            What was done.
        """

    @abstractmethod
    def gradients(self, names: Sequence[str], *, backend: str) -> GradientBackend[Trajectory]:
        """Per-unit gradients by these factors, at whatever values they have when asked."""

    @abstractmethod
    def descend(
        self,
        names: Sequence[str],
        direction: Callable[[], np.ndarray],
        *,
        steps: int,
        learning_rate: float,
    ) -> None:
        """Take Adam steps along noisy directions."""
