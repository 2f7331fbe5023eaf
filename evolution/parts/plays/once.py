"""Every try from the start to its end, by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.seam import MemoryView, PartWork, Playing
from evolution.trajectory import Task
from federation.plan.methods import Couples, Reads

__all__ = ["Once"]


class Once(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TRY
    reads: ClassVar = Reads.PUBLIC

    def play(self, tasks: Sequence[Task], past: MemoryView, work: PartWork) -> Playing:  # noqa: ARG002  # the seam
        """Ask for all of them at once."""
        played = yield tasks
        return [trajectory for trajectory in played if trajectory is not None]
