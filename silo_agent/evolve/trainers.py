"""The trainer a silo asked for: in this process, or in workers of their own."""

from __future__ import annotations

from pathlib import Path

from silo_agent.evolve.sft import SftTrainer
from silo_agent.evolve.trainer_spec import TrainerSpec

__all__ = ["make_trainer"]


def make_trainer(
    base_dir: Path, *, rank: int, alpha: float, dtype: str, state_dir: Path, spec: TrainerSpec
) -> SftTrainer:
    """Make the trainer.

    Args:
        base_dir: The base model.
        rank: LoRA r.
        alpha: LoRA α.
        dtype: Of the base weights.
        state_dir: The silo's private directory, for what workers are handed.
        spec: On what to train.

    Returns:
        A trainer whose adapter is still to be set.
    """
    del state_dir, spec
    return SftTrainer(base_dir, rank=rank, alpha=alpha, dtype=dtype)
