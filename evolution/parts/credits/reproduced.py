"""Successes are imitated once half of the task's tries succeed: luck waits.

    kept   successes as in ``shortest_success.py``, of tasks of which s of the m tries of the window
           succeeded, s ≥ ⌈m/2⌉
    and    every demonstration that counts

What is left out stays in the memory, and is a row in the round in which the task is solved often
enough. Tries that did not finish are no tries here.

An idea of Dichotomy of Control (arXiv 2210.13435): a policy should be given credit for what it does
and not for what happened to it. The paper learns a latent variable that tells the two apart; here a
success counts once it is reproduced. Other tries at the task stand for other luck, so this finds
what the agent's own sampling and the environment's dice made, and not what the task's number holds
fixed for all tries alike.

Covered: tasks with several tries, in one round or over the window. Not covered: playing a success
again to see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.credits.by_task import each_once, groups_by_task, key_of
from evolution.parts.seam import MemoryView, PartWork
from evolution.train.rows import Row
from evolution.trajectory import Group
from federation.plan.methods import Couples, Reads

__all__ = ["Reproduced"]


class Reproduced(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TASK
    reads: ClassVar = Reads.UNIT

    def credit(self, groups: Sequence[Group], past: MemoryView, work: PartWork) -> list[Row]:  # noqa: ARG002  # the seam
        """One row for each, of weight 1."""
        often = {
            key
            for key, own in groups_by_task(past.groups()).items()
            if _half([one.success for group in own for one in group.trajectories])
        }
        kept = [
            one
            for one in past.successes(shortest=work.best_per_task)
            if not one.demonstrated and key_of(one.task) in often
        ]
        return [Row.of(one) for one in each_once((*kept, *past.demonstrations()))]


def _half(solved: Sequence[bool]) -> bool:
    return 2 * sum(solved) >= len(solved)
