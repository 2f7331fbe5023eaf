"""A bandit over the labels of an environment: those that tries disagree about are tried more.

SEC (arXiv 2505.14970): categories are the arms of a non-stationary bandit whose reward is the mean
absolute advantage, Q follows it by TD(0), and the next category is drawn by softmax ::

    r_t(c) = mean over round t's groups of label c of their contrast
             plain   2 p (1 − p)      = mean |r − r̄| of a group with the share p solved
             std     2 √(p (1 − p))   the same over the standard deviation of the group
    Q_0(c) = 0
    Q(c)   ← Q(c) + α (r_t(c) − Q(c))        round after round of the window, oldest first
    c      ~ softmax(Q / τ),                 then one of the label's tasks, each as likely

``plain`` is what a credit without a scale gives a group of binary rewards, ``std`` what
``group-relative`` gives it with ``scale = "std"``. The second is the larger one, so a τ that was
tuned under one does not carry over to the other.

Q starts at 0 and is not optimistic. A label that nobody tried is worth what one is that all tries
solve, or none does; softmax gives it a share all the same: beside a label at its most, ½, it gets
exp(−0.5 / 0.3) ≈ 0.19 of what that one gets.

Which labels there are is looked up for some thousands of tasks that are drawn evenly, for a silo's
part may have a million. A label that is rarer than that may be missed in a round.

Covered: binary success; groups that lost tries, by those that remain. Not covered: what Q was
before the window began; groups of one try, which have no contrast; tries from prefixes and of
variants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import ClassVar, Final

import numpy as np

from evolution.part import BasePart
from evolution.parts.samplers.places import earlier_groups, fill
from evolution.parts.seam import EnvironmentPool, MemoryView, PartWork, TaskPool
from evolution.trajectory import Group, Task
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import BanditOptions

__all__ = ["Bandit", "contrast"]

_LOOKED_AT: Final = 4096
"""Tasks whose labels are looked at, at least; more where many places are to be filled."""
_FOR_A_PLACE: Final = 16


class Bandit(BasePart):
    """See the module."""

    couples: ClassVar = Couples.ALL
    reads: ClassVar = Reads.SILO
    options: BanditOptions

    def draw(self, pool: TaskPool, past: MemoryView, work: PartWork, *, count: int) -> list[Task]:
        """Draw labels by what earlier rounds' groups were worth, and a task of each."""

        def choose(environment: EnvironmentPool, places: int) -> list[Task]:
            worth = self.worth(environment, earlier_groups(environment, past, work))
            if not worth:
                return []
            tasks = _by_label(environment, work.rng, places)
            labels = sorted(tasks)
            chances = self._chances([worth.get(label, 0.0) for label in labels])
            drawn = work.rng.choice(len(labels), size=places, p=chances)
            ids = _one_each([labels[index] for index in drawn], tasks, distinct=pool.distinct)
            return [environment.task(task_id) for task_id in ids]

        return fill(pool, work.rng, count=count, fresh=self.options.fresh, choose=choose)

    def worth(self, environment: EnvironmentPool, groups: Sequence[Group]) -> dict[str, float]:
        """Q by label, of those that were tried."""
        rounds: dict[int, dict[str, list[float]]] = {}
        for group in groups:
            if group.comparable:
                label = environment.label_of(group.task.task_id)
                found = contrast(group, scaled=self.options.contrast == "std")
                rounds.setdefault(group.round, {}).setdefault(label, []).append(found)
        worth: dict[str, float] = {}
        for number in sorted(rounds):
            for label, rewards in rounds[number].items():
                before = worth.get(label, 0.0)
                worth[label] = before + self.options.alpha * (fmean(rewards) - before)
        return worth

    def _chances(self, worth: Sequence[float]) -> np.ndarray:
        values = np.array(worth) / self.options.tau
        # The greatest is taken off, so that none overflows.
        powers = np.exp(values - values.max())
        chances: np.ndarray = powers / powers.sum()
        return chances


def contrast(group: Group, *, scaled: bool) -> float:
    """How much a group's tries disagree: 0 where all of them solve the task or none does."""
    solved = fmean(one.success for one in group.trajectories)
    spread = solved * (1 - solved)
    return 2 * math.sqrt(spread) if scaled else 2 * spread


def _by_label(
    environment: EnvironmentPool, rng: np.random.Generator, places: int
) -> dict[str, list[int]]:
    """Tasks of an environment's part by label, each label's in random order."""
    ids = environment.task_ids
    size = min(len(ids), max(_LOOKED_AT, _FOR_A_PLACE * places))
    found: dict[str, list[int]] = {}
    for index in rng.choice(len(ids), size=size, replace=False):
        task_id = ids[int(index)]
        found.setdefault(environment.label_of(task_id), []).append(task_id)
    return found


def _one_each(
    labels: Sequence[str], tasks: Mapping[str, Sequence[int]], *, distinct: bool
) -> list[int]:
    """A task of each of the labels, which may be there several times.

    A label with fewer tasks has them again, where a task may come twice.
    """
    chosen: list[int] = []
    taken = dict.fromkeys(tasks, 0)
    for label in labels:
        own, number = tasks[label], taken[label]
        taken[label] += 1
        if number < len(own) or not distinct:
            chosen.append(own[number % len(own)])
    return chosen
