"""How a training set is imitated: the plan's part of it, the same wherever the silo trains.

Covered: AdamW without weight decay, with FedProx's term. Not covered: what to train and where
(``trainer.py``, ``spec.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from evolution.train.schedule import Schedule

__all__ = ["SftSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SftSettings:
    """One training of one adapter."""

    epochs: int
    """Passes."""
    batch_size: int
    """Trajectories per step, all processes together."""
    learning_rate: float
    """Step size at the start."""
    grad_clip_l2: float
    """Gradients are scaled down to this norm."""
    max_sequence_tokens: int
    """Longer trajectories are left out."""
    seed: int
    """Decides the order of batches."""
    schedule: Schedule = "constant"
    """What becomes of the step size (``schedule.py``)."""
    proximal_mu: float = 0.0
    """FedProx's μ (arXiv 1812.06127, eq. 2); 0 leaves the term out."""
