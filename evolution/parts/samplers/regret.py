"""Tasks that were solved, and could be solved more often: drawn by their regret.

eva (arXiv 2411.00062): a prompt is informative by how much better the best answer to it is than
what the policy gives, which stands for its regret. Of a task that was tried ::

    w = max r − mean r      over its tries in the last round that tried it
    w = 0                   where none of them solved it: nobody knows whether it can be

With r = 1 for a solved try, w = 1 − p where p > 0. Places that are not fresh are drawn by w, none
twice in a round.

The paper's creator also has a model rewrite the prompts that it picks; here they are tried as they
are.

Covered: binary success, or the return. Not covered: rewriting; tries before the task's last round,
for they say what an older adapter could do; tries from prefixes and of variants.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.samplers.places import earlier_groups, fill, likely
from evolution.parts.seam import EnvironmentPool, MemoryView, PartWork, TaskPool
from evolution.trajectory import Group, Task, Trajectory
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import RegretOptions

__all__ = ["Regret"]


class Regret(BasePart):
    """See the module."""

    couples: ClassVar = Couples.ALL
    reads: ClassVar = Reads.SILO
    options: RegretOptions

    def draw(self, pool: TaskPool, past: MemoryView, work: PartWork, *, count: int) -> list[Task]:
        """Draw seen tasks by their regret, and fresh ones."""

        def choose(environment: EnvironmentPool, places: int) -> list[Task]:
            regrets = self.regrets(earlier_groups(environment, past, work))
            tasks = [environment.task(task_id) for task_id in regrets]
            return likely(tasks, list(regrets.values()), work.rng, places=places)

        return fill(pool, work.rng, count=count, fresh=self.options.fresh, choose=choose)

    def regrets(self, groups: Sequence[Group]) -> dict[int, float]:
        """Each task's weight, in the order of the groups."""
        last: dict[int, int] = {}
        for group in groups:
            task_id = group.task.task_id
            last[task_id] = max(group.round, last.get(task_id, group.round))
        tries: dict[int, list[Trajectory]] = {task_id: [] for task_id in last}
        for group in groups:
            if group.round == last[group.task.task_id]:
                # After several local epochs a round has several groups of a task.
                tries[group.task.task_id] += group.trajectories
        return {task_id: self._regret(found) for task_id, found in tries.items()}

    def _regret(self, tries: Sequence[Trajectory]) -> float:
        if not any(one.success for one in tries):
            return 0.0
        returns = self.options.reward == "return"
        rewards = [one.reward if returns else float(one.success) for one in tries]
        return max(rewards) - fmean(rewards)
