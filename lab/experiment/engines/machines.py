"""The engine and the trainer of a process, as the file's ``[rollout]`` and ``[training]`` say.

A process makes one pair and lends it to all silos that work in it, which take turns: with a pair
for each, twenty silos would need twenty times the memory of one. In a worker without Ray the judge
takes its turn too.

Covered: making them. Not covered: who may borrow (``evolution/methods/machines.py``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from evolution.methods.evolver import EvolverSetup
from evolution.methods.machines import Machines, make_machines
from evolution.rollout.engine import EngineSpec, RolloutEngine
from evolution.rollout.engines import make_engine
from evolution.train.trainer import TrainerSpec
from lab.experiment.config import Run

__all__ = ["THREADS", "engine_of", "engine_spec", "machines_of", "trainer_spec"]

THREADS: Final = 1
"""Of torch: a run is a process with one thread."""


def engine_spec(run: Run) -> EngineSpec:
    """``[rollout]`` as the engines read it."""
    table = run.rollout
    return EngineSpec(
        kind=table.kind,
        workers=table.workers,
        device=table.device,
        url=table.url,
        urls=table.urls,
        model=table.model,
        api_key_file=None if table.api_key_file is None else Path(table.api_key_file),
        adapter_dir=None if table.adapter_dir is None else Path(table.adapter_dir),
        timeout_s=table.timeout_s,
        max_in_flight=table.max_in_flight,
    )


def trainer_spec(run: Run) -> TrainerSpec:
    """``[training]`` as the trainers read it."""
    return TrainerSpec(**run.training.model_dump())


def engine_of(run: Run) -> RolloutEngine:
    """An engine of the run's base, without an adapter; the caller closes it.

    Raises:
        RolloutError: It cannot be made.
    """
    return make_engine(
        Path(run.base), alpha=run.alpha, dtype=run.dtype, threads=THREADS, spec=engine_spec(run)
    )


def machines_of(run: Run, scratch: Path) -> Machines:
    """The pair of a worker; the caller closes it.

    Processes that train are handed their jobs in ``scratch``.

    Raises:
        EvolverSetupError: This machine does not have what the file asks for.
        RolloutError: The engine cannot be made.
    """
    return make_machines(
        EvolverSetup(
            base_dir=Path(run.base),
            state_dir=scratch,
            rank=run.rank,
            alpha=run.alpha,
            dtype=run.dtype,
            target=run.target,
            threads=THREADS,
            engine=engine_spec(run),
            trainer=trainer_spec(run),
        )
    )
