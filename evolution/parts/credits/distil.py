"""Own success as a teacher: what the agent does with help is what it is to do without.

On-policy self-distillation on one's own verified success (arXiv 2601.19897), the clean form of
hints, critiques and stripped experience (rows 52, 22, 47 and 9): of a task at which a try with a
scaffold succeeded, each plain try of the round is a row. Its teacher is the same policy after the
opening of that success, the shortest if there are several, and the objective ``reverse-kl`` moves
each of the try's tokens to what the teacher makes of it.

Plain tries are the policy's own samples without help, so what is trained is what will be played.
Tries with a scaffold are no rows. A task without both has none.

Covered: plays that give some of a task's tries a scaffold. Not covered: a scaffold that stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from evolution.part import BasePart
from evolution.parts.seam import MemoryView, PartWork
from evolution.train.rows import Row
from evolution.trajectory import Group, Step, Trajectory
from federation.plan.methods import Couples, Reads

__all__ = ["Distil"]


class Distil(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TASK
    reads: ClassVar = Reads.UNIT

    def credit(self, groups: Sequence[Group], past: MemoryView, work: PartWork) -> list[Row]:  # noqa: ARG002  # the seam
        """One row for each plain try beside a success that was helped."""
        return [
            row
            for group in groups
            if (opening := _teachers(group.trajectories)) is not None
            for one in group.trajectories
            if (row := _row(one, opening)) is not None
        ]


def _teachers(tries: Sequence[Trajectory]) -> Step | None:
    """The first step of the shortest success that a scaffold helped."""
    helped = [one for one in tries if one.success and one.steps and one.steps[0].bare_ids]
    best = min(helped, key=lambda one: (len(one.steps), one.conversation_sha256), default=None)
    return None if best is None else best.steps[0]


def _row(one: Trajectory, opening: Step) -> Row | None:
    """A plain try that began where the success would have begun without its scaffold."""
    if not one.steps or one.steps[0].bare_ids is not None:
        return None
    own = one.steps[0].context_ids
    if own != opening.bare_ids:
        return None
    row = Row.of(one)
    answers = row.token_ids[len(own) :]
    return replace(row, taught_ids=np.concatenate([np.array(opening.context_ids), answers]))
