"""The members' stores of a run: memories and personal adapters, on the disk of one machine.

::

    stores/MEMBER              as the last round that the member finished left them
    attempts/TOKEN/MEMBER      a copy, in which a round of the member is being done

A member that has not taken part has no stores.

Invariants:
    1. A round works in a copy of what the round before left, and never in that itself. So it may
       end anywhere, by a kill too, and is begun again from the same files.
    2. ``keep`` puts the copy into the place of what was there; only the process of the run does so,
       once it has what the round came to. What is in ``stores`` is whole and open nowhere.

Covered: engines of one machine, whose processes see the same files. Not covered: the run's own
process being ended, after which ``state.py`` gives the files back; several machines.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["STORES", "Stores", "directory_of"]

STORES: Final = "stores"
_ATTEMPTS: Final = "attempts"
_LONGEST: Final = 100
_POOLED: Final = "pooled"


def directory_of(indices: Sequence[int]) -> str:
    """The name of a member's directory; a run has at most one that pools many silos."""
    name = "-".join(map(str, indices))
    # A file system takes some 255 bytes for a name, which are not enough for a hundred silos.
    return name if len(name) <= _LONGEST else _POOLED


class Stores:
    """See the module."""

    def __init__(self, scratch: Path) -> None:
        """Use two directories of the run's scratch directory; they are made when needed."""
        self.kept = scratch / STORES
        self._attempts = scratch / _ATTEMPTS

    def begin(self, indices: Sequence[int]) -> Path:
        """A directory for one round of a member, with a copy of its stores in ``directory_of``."""
        self._attempts.mkdir(parents=True, exist_ok=True)
        attempt = Path(tempfile.mkdtemp(dir=self._attempts))
        name = directory_of(indices)
        if (self.kept / name).exists():
            shutil.copytree(self.kept / name, attempt / name)
        return attempt

    def keep(self, indices: Sequence[int], attempt: Path) -> None:
        """Take what a round made of the copy as the member's stores."""
        name = directory_of(indices)
        self.kept.mkdir(parents=True, exist_ok=True)
        if (self.kept / name).exists():
            (self.kept / name).rename(attempt / "before")
        (attempt / name).rename(self.kept / name)
        shutil.rmtree(attempt)

    def forget(self, attempt: Path) -> None:
        """Remove the copy of a round that was not finished."""
        shutil.rmtree(attempt, ignore_errors=True)
