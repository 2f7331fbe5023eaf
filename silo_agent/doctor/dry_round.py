"""A round of local work that nobody hears of: the model, the environments and the trainer, once.

Invariants:

1. Nothing is asked of the coordinator, charged to the ledger, or written to the silo's buffer or
   state: the method works in a directory of its own, which is deleted, without the silo's
   demonstrations and without privacy, because nothing leaves.
2. It trains on whatever was played, solved or not: a dry round proves that training works, and says
   nothing about what is learned.
3. What is reported are durations and sizes, never what was played.

Covered: the methods of the registry. Not covered: the plan's sizes; a few episodes fit where a
round of hundreds may not.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from evolution.errors import EvolverSetupError
from evolution.methods.evolver import EvolverSetup, EvolveSettings, Work
from evolution.methods.registry import make_evolver
from federation.adapter.encoding import encode_adapter
from silo_agent.config import SiloConfig

__all__ = ["DryRound", "dry_round"]

_RANK: Final = 8
_ALPHA: Final = 16.0
_EPISODES: Final = 4
_SYNTHETIC: Final = (4, 32)
"""Rank and width of the one pair of factors of a silo without a base model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRound:
    """What was tried."""

    method: str
    """Of the registry."""
    dimension: int
    """Entries of the adapter."""
    episodes: int
    """Finished."""
    duration_s: float
    """Of everything, loading the model included."""


def dry_round(config: SiloConfig) -> DryRound:
    """Play a few episodes and train one step on them.

    Args:
        config: This silo.

    Returns:
        What was tried.

    Raises:
        EvolverSetupError: The method cannot run with this configuration, or learned nothing.
    """
    method = "constant" if config.base_model is None else "fed-se"
    options = dict(config.options(method))
    if method == "fed-se":
        for name in [name for name in options if name.startswith("personal")]:
            del options[name]
        options["success_filter"] = "off"
    started_s = time.monotonic()
    adapter = _initial(config)
    with tempfile.TemporaryDirectory(prefix="chorale-dry-round-") as directory:
        evolver = make_evolver(
            method,
            EvolverSetup(
                assignments=config.assignments(),
                base_dir=config.base_model,
                state_dir=Path(directory),
                expert_file=None,
                rank=_RANK,
                alpha=_ALPHA,
                threads=config.threads,
                catalogue=config.catalogue(),
                engine=config.rollout,
                trainer=config.training,
                privacy=None,
                options=options,
            ),
        )
        try:
            evolution = evolver.evolve(
                Work(
                    round=0,
                    adapter=adapter,
                    adapter_sha256=hashlib.sha256(encode_adapter(adapter)).hexdigest(),
                    trainable=frozenset(adapter),
                    settings=EvolveSettings(
                        episodes=_EPISODES * max(1, len(config.environments)),
                        tries_per_task=2,
                        epochs=1,
                        batch_size=2,
                    ),
                    seed=config.seed,
                )
            )
        finally:
            evolver.close()
    _require_learned(method, evolution.delta, sum(evolution.episodes.values()))
    return DryRound(
        method=method,
        dimension=sum(tensor.size for tensor in adapter.values()),
        episodes=sum(evolution.episodes.values()),
        duration_s=time.monotonic() - started_s,
    )


def _initial(config: SiloConfig) -> dict[str, np.ndarray]:
    if config.base_model is not None:
        from evolution.model.lora import initial_adapter

        return initial_adapter(config.base_model, _RANK, _ALPHA, seed=0)
    rank, width = _SYNTHETIC
    prefix = "base_model.model.layers.0.proj"
    return {
        f"{prefix}.lora_A.weight": np.ones((rank, width), np.float32),
        f"{prefix}.lora_B.weight": np.zeros((width, rank), np.float32),
    }


def _require_learned(method: str, delta: Mapping[str, np.ndarray], episodes: int) -> None:
    if not all(np.isfinite(tensor).all() for tensor in delta.values()):
        raise EvolverSetupError("the trained adapter is not finite")
    if method == "constant":
        return
    if episodes == 0:
        raise EvolverSetupError("no episode was finished: the environments dropped all of them")
    if not any(tensor.any() for tensor in delta.values()):
        raise EvolverSetupError("training changed nothing")
