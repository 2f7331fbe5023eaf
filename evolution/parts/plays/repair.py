"""A failed try is played again up to where it went wrong, and on from there.

Half of a task's tries, at least one, are made from its beginning. Where none of them succeeded,
each of the others replays the actions of a failed one, the failed ones in turn, up to a step that
is under suspicion, and lets the agent go on (EvoCUA's correction of failures, row 15)::

    suspected    the first action that the environment could not read,
                 else one of the try's steps, each as likely

What succeeds that way is verified by the environment and enters the memory as replayed. The agent's
part of such a try is what it sampled after the prefix, so nothing that failed is imitated.

Covered: environments that a reset decides fully. Not covered: a judge of steps; a try of one step
has no prefix, and its task is tried from the beginning again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from evolution.part import BasePart
from evolution.parts.plays.waves import Line, in_waves, lines_of
from evolution.parts.seam import MemoryView, PartWork, Playing
from evolution.trajectory import Task, Trajectory
from federation.plan.methods import Couples, Reads

__all__ = ["Repair", "suspected"]


class Repair(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TASK
    reads: ClassVar = Reads.UNIT

    def play(self, tasks: Sequence[Task], past: MemoryView, work: PartWork) -> Playing:  # noqa: ARG002  # the seam
        """Two waves."""

        def following(line: Line) -> list[Task]:
            if not line.tries:
                return [line.task] * max(1, line.left // 2)
            failed = [] if line.solved else line.played
            return [
                _again(failed[number % len(failed)], work.rng) if failed else line.task
                for number in range(line.left)
            ]

        return (yield from in_waves(lines_of(tasks), following))


def suspected(one: Trajectory, rng: np.random.Generator) -> int:
    """The index of the step at which a failed try is to go on otherwise."""
    for index, step in enumerate(one.steps):
        if step.invalid:
            return index
    return int(rng.integers(len(one.steps)))


def _again(one: Trajectory, rng: np.random.Generator) -> Task:
    kept = [step.action for step in one.steps[: suspected(one, rng)]]
    return replace(one.task, prefix=(*one.task.prefix, *kept))
