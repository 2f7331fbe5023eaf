"""What a method plays and trains with: a rollout engine and a trainer of one base model.

Each holds weights of its own, so they are most of the memory that a silo needs. A process in which
several silos take turns makes one pair and lends it to all of them.

Invariants: whoever makes a pair closes it. A borrower begins each piece of work by loading its
adapter into the engine and resetting the trainer, as ``RolloutEngine.load_adapter`` and
``Trainer.reset`` are specified: neither keeps anything of what was there before.

Covered: borrowers that take turns. Not covered: two that play or train at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evolution.errors import EvolverSetupError
from evolution.rollout.engine import EngineSpec, RolloutEngine
from evolution.rollout.engines import make_engine
from evolution.train.trainer import Trainer, TrainerSpec
from evolution.train.trainers import make_trainer
from federation.adapter.target import Target

__all__ = ["Machines", "MachinesSetup", "make_machines"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """An engine and a trainer of one base model."""

    engine: RolloutEngine
    """What plays."""
    trainer: Trainer
    """What trains."""

    def close(self) -> None:
        """Release the engine; a trainer is released with its last reference."""
        self.engine.close()


class MachinesSetup(Protocol):
    """What of an ``EvolverSetup`` describes a pair; nothing else of it matters here."""

    @property
    def base_dir(self) -> Path | None:
        """The base model."""

    @property
    def state_dir(self) -> Path | None:
        """Where trainers in processes of their own are handed their jobs."""

    @property
    def rank(self) -> int:
        """LoRA r."""

    @property
    def alpha(self) -> float:
        """LoRA α."""

    @property
    def dtype(self) -> str:
        """Of the base weights."""

    @property
    def target(self) -> Target:
        """Which layers carry an adapter."""

    @property
    def threads(self) -> int:
        """Of torch."""

    @property
    def engine(self) -> EngineSpec:
        """What plays."""

    @property
    def trainer(self) -> TrainerSpec:
        """What trains."""


def make_machines(setup: MachinesSetup) -> Machines:
    """Make the pair that a setup describes; its caller closes it.

    Raises:
        EvolverSetupError: The setup names no base model or no state directory, or this machine does
            not have what the trainer asks for.
        RolloutError: The engine cannot be made.
    """
    if setup.base_dir is None or setup.state_dir is None:
        raise EvolverSetupError("an engine and a trainer need a base model and a state directory")
    engine = make_engine(
        setup.base_dir,
        alpha=setup.alpha,
        dtype=setup.dtype,
        threads=setup.threads,
        spec=setup.engine,
    )
    try:
        trainer = make_trainer(
            setup.base_dir,
            rank=setup.rank,
            alpha=setup.alpha,
            dtype=setup.dtype,
            target=setup.target,
            state_dir=setup.state_dir,
            spec=setup.trainer,
        )
    except BaseException:  # whatever it was: an engine may hold a server and a GPU
        engine.close()
        raise
    return Machines(engine=engine, trainer=trainer)
