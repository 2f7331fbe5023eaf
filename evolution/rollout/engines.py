"""The rollout engines by name. No torch until an engine that needs it is made."""

from __future__ import annotations

from pathlib import Path

from evolution.errors import RolloutError
from evolution.rollout.engine import EngineSpec, RolloutEngine

__all__ = ["make_engine"]

_MAX_WORKERS = 256
_MAX_BATCH = 4096


def make_engine(
    base_dir: Path, *, alpha: float, dtype: str, threads: int, spec: EngineSpec
) -> RolloutEngine:
    """Make the engine a silo asked for, with the bare base model.

    ``dtype`` is that of the base weights, and a server has its own; ``threads`` are torch's, in
    each process that plays.

    Raises:
        RolloutError: The spec cannot be met.
    """
    if spec.kind == "openai":
        from evolution.rollout.openai.engine import OpenAIEngine

        return OpenAIEngine(base_dir, alpha=alpha, spec=spec)
    if spec.kind != "hf":
        raise RolloutError(f"rollout.kind is {spec.kind!r}; known: hf, openai")
    if not 1 <= spec.workers <= _MAX_WORKERS:
        raise RolloutError(f"rollout.workers must be from 1 to {_MAX_WORKERS}")
    if not 1 <= spec.rollout_batch <= _MAX_BATCH:
        raise RolloutError(f"rollout.rollout_batch must be from 1 to {_MAX_BATCH}")
    if spec.workers > 1:
        from evolution.rollout.workers import WorkerEngine

        return WorkerEngine(
            base_dir,
            alpha=alpha,
            dtype=dtype,
            threads=threads,
            device=spec.device,
            workers=spec.workers,
        )
    from evolution.rollout.hf import HfEngine

    return HfEngine(base_dir, alpha=alpha, dtype=dtype, threads=threads, device=spec.device)
