"""Which training tasks of a pool the base solves, found by playing them.

FedAgent calls a task solved where the reference, the base model without an adapter, reaches a
success rate of η; its code plays each task once.

Invariants:
    1. Only training tasks are played.
    2. A task's draws depend on the seed and its place in the split, so a larger pool has the same
       flags for the tasks of a smaller one.
    3. An episode that was dropped is an error, not a task that the base does not solve.

Covered: the environments that the silos of a run explore. Not covered: going on after a kill: the
file is written once every task has been played.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from evolution.envs.tasks import Split
from evolution.rollout.engine import RolloutEngine
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task
from lab.experiment.config import Run
from lab.experiment.engines.machines import engine_of
from lab.experiment.errors import JudgeError
from lab.experiment.tasks.environments import catalogue_of
from lab.experiment.tasks.flags import Flag

__all__ = ["Asked", "play_base"]

_STREAM: Final = 0xBA5E
"""Keeps these draws apart from the judge's and the silos'."""
_AT_ONCE: Final = 256
"""Tasks between two lines of progress."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """How the base is played."""

    pool: int
    """Training tasks of each environment, the first ones of the split."""
    tries: int = 1
    """At each task."""
    temperature: float = 0.0
    """0 is greedy; then every try would be the same."""
    threshold: float = 0.5
    """η: success rate from which a task counts as solved."""


def play_base(run: Run, asked: Asked, *, say: Callable[[str], None]) -> list[Flag]:
    """Flags of all environments of a run, in the order of the file and the split.

    ``say`` takes a line of progress.

    Raises:
        JudgeError: An episode was dropped, or an environment has too few tasks.
    """
    engine = engine_of(run)
    try:
        engine.load_adapter("base", {})
        names = dict.fromkeys(name for silo in run.silos for name in silo.environments)
        return [flag for name in names for flag in _play(run, asked, engine, name, say)]
    finally:
        engine.close()


def _play(
    run: Run, asked: Asked, engine: RolloutEngine, name: str, say: Callable[[str], None]
) -> Iterator[Flag]:
    catalogue = catalogue_of(run)
    environment = catalogue.make(name)
    ids = environment.task_ids(Split.TRAIN)[: asked.pool]
    environment.close()
    if len(ids) < asked.pool:
        raise JudgeError(
            f"{name!r} has {len(ids)} training tasks, and a pool of {asked.pool} is asked for: "
            "make it smaller"
        )
    seed = int(np.random.SeedSequence([run.seed, _STREAM]).generate_state(1, np.uint64)[0])
    solved = 0
    for start in range(0, len(ids), _AT_ONCE):
        places = range(start, min(len(ids), start + _AT_ONCE))
        played = run_episodes(
            engine,
            [Task(environment=name, task_id=ids[p]) for p in places for _ in range(asked.tries)],
            temperature=asked.temperature,
            seed=seed,
            keys=[p * asked.tries + k for p in places for k in range(asked.tries)],
            max_new_tokens=run.evolve.max_new_tokens,
            batch_size=run.evolve.rollout_batch,
            make_environment=catalogue.make,
        )
        if played.dropped:
            raise JudgeError(
                f"{played.dropped} episodes of {name!r} were dropped; the log says why"
            )
        verdicts = np.array([one.success for one in played.trajectories], dtype=np.float64)
        rates = verdicts.reshape(len(places), asked.tries).mean(1)
        for place, rate in zip(places, rates, strict=True):
            is_solved = bool(rate >= asked.threshold)
            solved += is_solved
            yield Flag(environment=name, task_id=ids[place], solved=is_solved)
        say(f"{name}: {places.stop} of {len(ids)} tasks played, {solved} solved")
