"""A few steps of GRPO in one world: what T1, T2 and the fallback call π̂.

The product's own driver plays and trains, in a directory that the caller removes, with lent
machines and without privacy: nothing of it leaves the process that diagnoses.

Covered: any world that a recipe explores. Not covered: as many steps as a run has; a probe that
moves nothing tells nothing, and ``T1.moved`` says how far it moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from evolution.diagnose.worlds import World
from evolution.methods.evolver import EvolverSetup, EvolveSettings, Work
from evolution.methods.recipe import RecipeEvolver
from federation.adapter.encoding import adapter_sha256, encode_adapter

__all__ = ["Adapter", "Improver", "averaged", "identity"]

Adapter = Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True, slots=True)
class Improver:
    """What steps are taken with."""

    setup: EvolverSetup
    """Base, recipe and lent machines; assignment, catalogue and directory are each world's own."""
    settings: EvolveSettings
    """Of one step: how much is explored, and how far it goes."""

    def improve(
        self, world: World, start: Adapter, *, steps: Sequence[int], seed: int, scratch: Path
    ) -> dict[str, np.ndarray]:
        """Take these steps, by their numbers from 0 on, from an adapter; returns where they end.

        Raises:
            EvolverSetupError: The recipe cannot run in this world.
        """
        evolver = RecipeEvolver(
            replace(
                self.setup,
                assignments=(world.assignment,),
                catalogue=world.catalogue,
                state_dir=scratch,
            )
        )
        adapter = {name: np.array(tensor) for name, tensor in start.items()}
        try:
            for number in steps:
                evolution = evolver.evolve(
                    Work(
                        round=number,
                        adapter=adapter,
                        adapter_sha256=identity(adapter),
                        trainable=frozenset(adapter),
                        settings=self.settings,
                        seed=seed,
                    )
                )
                for name, delta in evolution.delta.items():
                    adapter[name] = np.asarray(adapter[name] + delta, dtype=np.float32)
        finally:
            evolver.close()
        return adapter


def averaged(adapters: Sequence[Adapter]) -> dict[str, np.ndarray]:
    """The uniform mean, float32: federated averaging without a clip."""
    return {
        name: np.asarray(
            np.mean([one[name] for one in adapters], axis=0, dtype=np.float64), dtype=np.float32
        )
        for name in adapters[0]
    }


def identity(adapter: Adapter) -> str:
    """SHA-256 of an adapter's published bytes, hexadecimal."""
    return adapter_sha256(encode_adapter(dict(adapter))).hex()
