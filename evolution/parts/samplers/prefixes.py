"""Episodes that begin in the middle of an earlier try, where it is open how they end.

ExIt (arXiv 2509.04575): partial histories that the agent went through are tasks of their own, and
those from which returns vary most are preferred. A candidate is a task with the first actions of a
try of the window, at least one and not all of them. Of ``n`` tries that went through it ``s``
solved the task ::

    p = (s + 1) / (n + 2)                      Laplace's rule of succession
    w = 2 p (1 − p)                            how much tries from there disagree

Places that are not fresh are drawn by w among all candidates of the environment, none twice. The
environment is brought to where a prefix leads by replaying it (``Task.prefix``), for a reset and
actions decide where that is.

A try went through a prefix if its actions begin with it and the agent itself got there: it was
played from the beginning, from a part of the prefix, or from the prefix. A try that was begun
farther on says nothing of how one gets there.

The paper takes the variance of the group that was begun at a history; here every try counts that
passed it, and a history that one try passed is nearly undecided, 2 · ⅓ · ⅔. Its prompts, which ask
the agent to better its own answer, are not here: the agent goes on from a state without having seen
how it got there.

Covered: binary success; environments that can be replayed. Not covered: equal states that
different actions lead to, which are two candidates; variants; prefixes of more than ``MOST_START``
characters, and an environment that breaks the promise of its reset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.samplers.places import earlier_groups, fill, likely
from evolution.parts.seam import MOST_START, EnvironmentPool, MemoryView, PartWork, TaskPool
from evolution.trajectory import Group, Task
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import PrefixesOptions

__all__ = ["Prefixes", "success_of_prefixes"]

Place = tuple[int, tuple[str, ...]]
"""A task id and the actions that lead there."""


class Prefixes(BasePart):
    """See the module."""

    couples: ClassVar = Couples.ALL
    reads: ClassVar = Reads.SILO
    options: PrefixesOptions

    def draw(self, pool: TaskPool, past: MemoryView, work: PartWork, *, count: int) -> list[Task]:
        """Draw prefixes of tries by how open their end is, and fresh tasks."""

        def choose(environment: EnvironmentPool, places: int) -> list[Task]:
            if not environment.replays:
                return []
            groups = earlier_groups(environment, past, work, replayed=True)
            found = success_of_prefixes(groups)
            tasks = [environment.task(task_id, prefix=prefix) for task_id, prefix in found]
            weights = [2 * p * (1 - p) for p in found.values()]
            return likely(tasks, weights, work.rng, places=places)

        return fill(pool, work.rng, count=count, fresh=self.options.fresh, choose=choose)


def success_of_prefixes(groups: Sequence[Group]) -> dict[Place, float]:
    """The p of each candidate, in the order in which tries went through them."""
    counts: dict[Place, tuple[int, int]] = {}
    for group in groups:
        start = group.task.prefix
        for one in () if group.task.variant else group.trajectories:
            actions = (*start, *(step.action for step in one.steps))
            for length in range(max(1, len(start)), len(actions)):
                prefix = actions[:length]
                if sum(len(action) + 1 for action in prefix) > MOST_START:
                    break
                solved, played = counts.get((group.task.task_id, prefix), (0, 0))
                counts[group.task.task_id, prefix] = solved + one.success, played + 1
    return {place: (solved + 1) / (played + 2) for place, (solved, played) in counts.items()}
