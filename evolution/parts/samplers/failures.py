"""Tasks at the edge of what the agent can do, and easier variants of those it never solved.

WebRL (arXiv 2411.02337): a phase's new tasks are made from those that failed before, and the ones
whose estimated success lies within [0.05, 0.75] are kept. Of a task or a variant of one, of whose
``n`` tries in the window ``s`` succeeded ::

    p = (s + 1) / (n + 2)                      Laplace's rule of succession

    a task that was solved       is a candidate if low ≤ p ≤ high
    a task that was not          is one if the environment has variants of it
                                 (``EnvironmentPool.variants_of``) with low ≤ p ≤ high

Of the candidates as many are drawn as there are places that are not fresh, each as likely, none
twice; of a task that was never solved one of these variants, each as likely.

The estimate is Laplace's because most tasks were tried a few times: 4 of 4 is 5/6 and done with,
1 of 1 is 2/3 and tried again, a variant that nobody tried is ½, and one that 19 tries did not solve
is left alone at the usual bounds. The paper's critic estimates, and a language model writes the
tasks; here the silo's own tries are counted, and the environment says what is easier.

Covered: environments with variants, and those without, whose unsolved tasks are left to the fresh
share. Not covered: replay of earlier successes, the paper's other half, which is a credit's; tries
from prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.samplers.places import earlier_groups, fill
from evolution.parts.seam import EnvironmentPool, MemoryView, PartWork, TaskPool
from evolution.trajectory import Group, Task
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import FailuresOptions

__all__ = ["Failures"]

Tried = Mapping[tuple[int, str], tuple[int, int]]
"""Solved and played, by task id and variant."""


class Failures(BasePart):
    """See the module."""

    couples: ClassVar = Couples.ALL
    reads: ClassVar = Reads.SILO
    options: FailuresOptions

    def draw(self, pool: TaskPool, past: MemoryView, work: PartWork, *, count: int) -> list[Task]:
        """Draw tasks at the edge, variants of those beyond it, and fresh ones."""

        def choose(environment: EnvironmentPool, places: int) -> list[Task]:
            tried = _tried(earlier_groups(environment, past, work, replayed=True))
            ids = list(dict.fromkeys(task_id for task_id, _ in tried))
            chosen: list[Task] = []
            for index in work.rng.permutation(len(ids)):
                if len(chosen) == places:
                    break
                # Asked one after the other: an environment may have to play to know its variants.
                variants = self.candidates(environment, tried, ids[index])
                if variants:
                    variant = variants[int(work.rng.integers(len(variants)))]
                    chosen.append(environment.task(ids[index], variant=variant))
            return chosen

        return fill(pool, work.rng, count=count, fresh=self.options.fresh, choose=choose)

    def candidates(self, environment: EnvironmentPool, tried: Tried, task_id: int) -> Sequence[str]:
        """Variants of a task that may be drawn; the empty one is the task itself."""
        solved, _ = tried.get((task_id, ""), (0, 0))
        variants = ("",) if solved else environment.variants_of(task_id)
        return [one for one in variants if self._within(*tried.get((task_id, one), (0, 0)))]

    def _within(self, solved: int, played: int) -> bool:
        return self.options.low <= (solved + 1) / (played + 2) <= self.options.high


def _tried(groups: Sequence[Group]) -> dict[tuple[int, str], tuple[int, int]]:
    tried: dict[tuple[int, str], tuple[int, int]] = {}
    for group in groups:
        if not group.task.prefix:
            key = group.task.task_id, group.task.variant
            solved, played = tried.get(key, (0, 0))
            solved += sum(one.success for one in group.trajectories)
            tried[key] = solved, played + len(group.trajectories)
    return tried
