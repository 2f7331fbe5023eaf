"""One try of each task that was worth more than a threshold is imitated (AgentEvol).

With R_j = success, or the sum of the environment's rewards ::

    of each task of the window   one try with R_j > threshold: of the newest round that has one,
                                 the shortest
    and                          every demonstration that counts

AgentEvol of arXiv 2406.04151, as its filter is written (AgentGym): a reward above the environment's
threshold, one per task, appended to what was there. There each round adds one of a task; here a
task has one in the whole window, so that a task which is solved in every round counts no more than
one that was solved once.

Covered: tasks at which tries are of several rounds. Not covered: a threshold of its own for each
environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.credits.by_task import by_task, each_once
from evolution.parts.credits.group_relative import gained
from evolution.parts.seam import MemoryView, PartWork
from evolution.train.rows import Row
from evolution.trajectory import Group
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import OnePerTaskOptions

__all__ = ["OnePerTask"]


class OnePerTask(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TASK
    reads: ClassVar = Reads.UNIT
    options: OnePerTaskOptions

    def credit(self, groups: Sequence[Group], past: MemoryView, work: PartWork) -> list[Row]:  # noqa: ARG002  # the seam
        """One row for each, of weight 1."""
        said = self.options
        good = [
            one
            for group in past.groups()
            for one in group.trajectories
            if one.steps and gained(one, said.reward) > said.threshold
        ]
        # The shortest stands first, and ``max`` takes the first of equals.
        chosen = [max(own, key=lambda one: one.round) for own in by_task(good).values()]
        return [Row.of(one) for one in each_once((*chosen, *past.demonstrations()))]
