"""Half of a task's tries are made with what worked elsewhere, which training never sees.

AgentEvolver's experience-guided exploration with its experience discarded (row 9): the first half
of a task's tries, at least one, is made plainly; the others with the likest stored success before
their first observation (``parts/telling.py``), told turn by turn. Where nothing is stored all are
plain.

Covered: successes and demonstrations of the plan's window. Not covered: which of them help, which
``episodes`` learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.plays.waves import Line, in_waves, lines_of
from evolution.parts.seam import MemoryView, PartWork, Playing
from evolution.parts.telling import like, told
from evolution.trajectory import Scaffold, Task
from federation.plan.methods import Couples, Reads

__all__ = ["Experience"]


class Experience(BasePart):
    """See the module."""

    couples: ClassVar = Couples.USER
    reads: ClassVar = Reads.UNIT

    def play(self, tasks: Sequence[Task], past: MemoryView, work: PartWork) -> Playing:  # noqa: ARG002  # the seam
        """Two waves."""
        stored = [one for one in past.successes(shortest=True) if one.steps]

        def following(line: Line) -> list[Task]:
            if not line.tries:
                return [line.task] * max(1, line.left // 2)
            found = like(line.played[0], stored) if line.played and line.left else []
            if not found:
                return [line.task] * line.left
            best = found[0][1]
            help_ = Scaffold(text=told(best), made_of=(best.conversation_sha256,))
            return [replace(line.task, scaffold=help_)] * line.left

        return (yield from in_waves(lines_of(tasks), following))
