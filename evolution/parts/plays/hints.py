"""Hints where nothing helps: a task that no try solved is tried again with a part of a solution.

SAGE's self-hinting (row 52 of the page of methods), with G tries at a task and L levels::

    G − L tries (at least one) without a hint
    solved, or nothing stored to hint with        the other tries are without a hint as well
    else at level 1, 2, … L until one succeeds    the first ⌈n·ℓ/(L + 1)⌉ of a solution's n actions
    after a success                               the tries that are left are without a hint

The solution is a stored success of the task, else of the likest one (``parts/telling.py``). A task
has as many tries as without hints, so methods are compared at equal episodes.

With ``stays`` a hinted try is trained on with its hint before it, as it was played (the paper's
form); else the hint is taken away, and the recorded probabilities are those of the policy that read
it. Demonstrations count as solutions where the plan uses them.

Covered: recipes whose credit takes successes, and group-relative ones. Not covered: hints that a
model words; a task for which nothing like it was ever solved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.plays.waves import Line, in_waves, lines_of
from evolution.parts.seam import MemoryView, PartWork, Playing
from evolution.parts.telling import like, steps_of
from evolution.trajectory import Scaffold, Task, Trajectory
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import HintsOptions

__all__ = ["Hints"]


class Hints(BasePart):
    """See the module."""

    couples: ClassVar = Couples.USER
    reads: ClassVar = Reads.UNIT
    options: HintsOptions

    def play(self, tasks: Sequence[Task], past: MemoryView, work: PartWork) -> Playing:  # noqa: ARG002  # the seam
        """Play what ``_following`` says."""
        stored = [one for one in past.successes(shortest=False) if one.steps]
        sources: dict[Task, Trajectory | None] = {}

        def following(line: Line) -> list[Task]:
            if line.task not in sources and line.played and not line.solved:
                found = like(line.played[0], stored)
                sources[line.task] = found[0][1] if found else None
            return self._following(line, sources.get(line.task), tries)

        lines = lines_of(tasks)
        tries = {line.task: line.left for line in lines}
        return (yield from in_waves(lines, following))

    def _following(
        self, line: Line, source: Trajectory | None, tries: dict[Task, int]
    ) -> list[Task]:
        levels = self.options.levels
        bare = max(1, tries[line.task] - levels)
        if not line.tries:
            return [line.task] * min(bare, line.left)
        if not line.left or line.solved or source is None:
            return [line.task] * line.left
        level = len(line.tries) - bare + 1
        actions = [step.action for step in source.steps]
        shown = math.ceil(len(actions) * level / (levels + 1))
        hint = Scaffold(
            text=steps_of(actions[:shown]),
            made_of=(source.conversation_sha256,),
            stays=self.options.stays,
        )
        return [replace(line.task, scaffold=hint)]
