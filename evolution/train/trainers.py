"""The trainer a silo asked for: in this process, or in workers of their own.

torch and what comes with it are imported when a trainer is made.
"""

from __future__ import annotations

from pathlib import Path

from evolution.train.trainer import Trainer, TrainerSpec
from federation.adapter.target import Target

__all__ = ["make_trainer"]


def make_trainer(
    base_dir: Path,
    *,
    rank: int,
    alpha: float,
    dtype: str,
    target: Target,
    state_dir: Path,
    spec: TrainerSpec,
) -> Trainer:
    """Make the trainer a silo asked for; its adapter is still to be set.

    Workers are handed their jobs in ``state_dir``, the silo's private directory.

    Raises:
        EvolverSetupError: This machine does not have what the spec names.
        AdapterMismatchError: The base does not have the target's layers; of workers it is what
            ends the first job.
    """
    if spec.processes > 1:
        from evolution.train.launched import LaunchedTrainer

        return LaunchedTrainer(
            base_dir,
            rank=rank,
            alpha=alpha,
            dtype=dtype,
            target=target,
            state_dir=state_dir,
            spec=spec,
        )
    from evolution.train.sft import SftTrainer

    return SftTrainer(base_dir, rank=rank, alpha=alpha, dtype=dtype, target=target, spec=spec)
