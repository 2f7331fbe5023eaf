"""The expert demonstrations that a silo begins with: D_expert of Fed-SE, algorithm 1.

Each silo gets as many as the file says, of its own training tasks, solved by the environment's own
expert (``evolution.methods.expert``). A pooled silo gets those of all silos, the same ones.

Covered: environments that can play themselves. Not covered: demonstrations from people.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evolution.memory.memory import Memory
from evolution.methods.expert import demonstrations
from evolution.methods.population import MEMORY_FILE
from evolution.rollout.conversation import ChatFormat
from evolution.trajectory import Trajectory
from lab.experiment.config import Run
from lab.experiment.errors import DemonstrationError
from lab.experiment.tasks.environments import catalogue_of, variants_of
from lab.experiment.tasks.own_tasks import task_ids_of

__all__ = ["seed_buffer"]

_STREAM = 0x5EED
"""Keeps the draw of demonstrated tasks apart from the draw of a silo's few tasks."""


def seed_buffer(run: Run, indices: Sequence[int], state_dir: Path, *, chat: ChatFormat) -> int:
    """Put the demonstrations of silos into the memory of one; returns how many there are.

    ``state_dir`` is where the method will open its memory; it is created if absent.

    Raises:
        DemonstrationError: The expert does not solve enough of a silo's tasks.
    """
    found = [t for index in indices for t in _of_silo(run, index, chat)]
    if not found:
        return 0
    state_dir.mkdir(parents=True, exist_ok=True)
    with Memory(state_dir / MEMORY_FILE) as memory:
        memory.add_expert(found)
    return len(found)


def _of_silo(run: Run, index: int, chat: ChatFormat) -> list[Trajectory]:
    silo = run.silos[index]
    catalogue = catalogue_of(run).with_variants(variants_of(run, [index]))
    found: list[Trajectory] = []
    for name in silo.environments if silo.demonstrations else ():
        ids = task_ids_of(run, index, name)
        rng = np.random.default_rng([run.seed, index, _STREAM, *name.encode()])
        # Some tasks the expert does not solve: draw a few more than are needed.
        drawn = rng.choice(len(ids), size=min(len(ids), 4 * silo.demonstrations), replace=False)
        solved: list[Trajectory] = []
        for start in range(0, len(drawn), silo.demonstrations):
            wanted = silo.demonstrations - len(solved)
            chosen = [ids[int(place)] for place in drawn[start : start + silo.demonstrations]]
            if wanted:
                shown = demonstrations(name, chosen, chat=chat, seed=run.seed, catalogue=catalogue)
                solved += shown[:wanted]
        if len(solved) < silo.demonstrations:
            raise DemonstrationError(
                f"silo {silo.name!r}: the expert solved {len(solved)} of {len(drawn)} tasks of "
                f"{name!r}, and {silo.demonstrations} demonstrations are asked for"
            )
        found += solved
    return found
