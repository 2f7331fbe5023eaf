"""The rollout engines by name. No torch until an engine that needs it is made."""

from __future__ import annotations

from pathlib import Path

from silo_agent.rollout.engine import RolloutEngine
from silo_agent.rollout.spec import EngineSpec

__all__ = ["make_engine"]


def make_engine(
    base_dir: Path, *, alpha: float, dtype: str, threads: int, spec: EngineSpec
) -> RolloutEngine:
    """Make the engine a silo asked for.

    Args:
        base_dir: The base model.
        alpha: LoRA α.
        dtype: Of the base weights.
        threads: Of torch.
        spec: Which engine.

    Returns:
        An engine with the bare base model.
    """
    from silo_agent.rollout.hf import HfEngine

    del spec
    return HfEngine(base_dir, alpha=alpha, dtype=dtype, threads=threads)
