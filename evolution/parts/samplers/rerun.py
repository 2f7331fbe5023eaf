"""Tasks that were solved by luck are tried again, so that what is reproducible shows.

After the idea of dichotomy of control (arXiv 2210.13435): what luck brought about is no lesson. Of
a task of whose ``n`` tries in the window ``s`` succeeded ::

    a lucky win      0 < s < n / 2     and     n ≤ most_tries

Places that are not fresh go to lucky wins first, each as likely, none twice; what is left is fresh.
A task leaves once half of its tries solve it, or once it had more tries than ``most_tries`` and
fewer than half of them did. A credit that reads the window can then keep what at least half of the
tries reproduce. 1 of 1 and 1 of 2 are no lucky wins: it takes three tries to be one.

The paper conditions a policy on what it can bring about, by a model of the future; nothing of that
model is here.

Covered: tries of several rounds of the window, together. Not covered: which successes a credit
keeps; other seeds of one task, for a task id decides everything that is random about it, so that
what varies from try to try is the agent; tries from prefixes and of variants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.samplers.places import earlier_groups, fill, likely
from evolution.parts.seam import EnvironmentPool, MemoryView, PartWork, TaskPool
from evolution.trajectory import Group, Task
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import RerunOptions

__all__ = ["Rerun"]


class Rerun(BasePart):
    """See the module."""

    couples: ClassVar = Couples.ALL
    reads: ClassVar = Reads.SILO
    options: RerunOptions

    def draw(self, pool: TaskPool, past: MemoryView, work: PartWork, *, count: int) -> list[Task]:
        """Draw lucky wins, then fresh tasks."""

        def choose(environment: EnvironmentPool, places: int) -> list[Task]:
            lucky = self.lucky(earlier_groups(environment, past, work))
            tasks = [environment.task(task_id) for task_id in lucky]
            return likely(tasks, [1.0] * len(tasks), work.rng, places=places)

        return fill(pool, work.rng, count=count, fresh=self.options.fresh, choose=choose)

    def lucky(self, groups: Sequence[Group]) -> list[int]:
        """The tasks that were won by luck, in the order of the groups."""
        counts: dict[int, tuple[int, int]] = {}
        for group in groups:
            solved, played = counts.get(group.task.task_id, (0, 0))
            solved += sum(one.success for one in group.trajectories)
            counts[group.task.task_id] = solved, played + len(group.trajectories)
        return [
            task_id
            for task_id, (solved, played) in counts.items()
            if 0 < 2 * solved < played <= self.options.most_tries
        ]
