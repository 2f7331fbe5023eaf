"""Which engine a run's members work in, as the command line says it. No torch, no Ray.

::

    process    one after another, in the process of the run
    ray        side by side in actors: processes of a Ray cluster of its own, on this machine

The engine does not decide what a run comes to, so it is no part of a run's digest, and a run may go
on with another one than it began with.

Covered: what was asked for, and whether Ray is installed. Not covered: what this machine has
(``ray_engine.py``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from typing import Final

from lab.experiment.errors import EngineError

__all__ = ["EngineChoice", "EngineKind", "require_engine"]

_MAX_ACTORS: Final = 256
_MAX_GPUS: Final = 64.0


class EngineKind(StrEnum):
    """See the module."""

    PROCESS = "process"
    RAY = "ray"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineChoice:
    """An engine and its size."""

    kind: EngineKind = EngineKind.PROCESS
    """Which one."""
    actors: int = 0
    """Of Ray; 0 is one for each core of this machine."""
    gpus_per_actor: float = 0.0
    """Of Ray: a part of one GPU, or several whole ones."""

    def actors_of(self, members: int) -> int:
        """How many actors there are where so many members work in a round."""
        return max(1, min(self.actors or len(os.sched_getaffinity(0)), members))


def require_engine(choice: EngineChoice) -> None:
    """Refuse what cannot be, before anything runs.

    Raises:
        EngineError: Ray is not installed, or a size is out of range or has no effect.
    """
    if choice.kind is EngineKind.PROCESS:
        if choice.actors or choice.gpus_per_actor:
            raise EngineError("--actors and --gpus-per-actor have an effect with --engine ray only")
        return
    if find_spec("ray") is None:
        raise EngineError("--engine ray needs Ray: pip install 'chorale[ray]'")
    if not 0 <= choice.actors <= _MAX_ACTORS:
        raise EngineError(f"--actors is from 1 to {_MAX_ACTORS}, not {choice.actors}")
    gpus = choice.gpus_per_actor
    if not 0 <= gpus <= _MAX_GPUS or (gpus > 1 and gpus != int(gpus)):
        raise EngineError(f"--gpus-per-actor is a part of 1, or a whole number, not {gpus:g}")
