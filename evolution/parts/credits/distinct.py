"""Successes are imitated once for each way to succeed, and not too many of a task.

    signature   the actions of a try, one after another, as the environment was given them
    rows        of each task of the window the shortest success of each signature, the shortest of
                these first, at most ``copies``; and every demonstration that counts

A success that does what a demonstration does is left out. The form for imitation of what the
polychromic objective is after (arXiv 2509.25424): what is trained on does not collapse to the one
way that is found most often. The paper's own is an objective over sets of tries and is a matter of
reinforcement: see ``set_diversity.py``.

Covered: ways that differ in an action. Not covered: ways that mean the same in other words, if the
words are the action. The plan's ``best_per_task`` changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.credits.by_task import by_task, each_once, key_of
from evolution.parts.seam import MemoryView, PartWork
from evolution.train.rows import Row
from evolution.trajectory import Group, Trajectory
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import DistinctOptions

__all__ = ["Distinct", "signature"]


class Distinct(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TASK
    reads: ClassVar = Reads.UNIT
    options: DistinctOptions

    def credit(self, groups: Sequence[Group], past: MemoryView, work: PartWork) -> list[Row]:  # noqa: ARG002  # the seam
        """One row for each, of weight 1."""
        shown = past.demonstrations()
        known = {(key_of(one.task), signature(one)) for one in shown}
        own = by_task(one for one in past.successes(shortest=False) if not one.demonstrated)
        kept: list[Trajectory] = []
        for key, successes in own.items():
            found: dict[tuple[str, ...], Trajectory] = {}
            for one in successes:
                if (key, signature(one)) not in known:
                    found.setdefault(signature(one), one)
            kept += list(found.values())[: self.options.copies]
        return [Row.of(one) for one in each_once((*kept, *shown))]


def signature(one: Trajectory) -> tuple[str, ...]:
    """What a try did."""
    return tuple(step.action for step in one.steps)
