"""Episodic memory with learned values: which remembered successes help is learned from rewards.

MemRL (row 53), with α .3, ε .05 and k 3 as its shipped settings have them::

    candidates   stored successes at least ``floor`` like the try's beginning (``parts/telling.py``)
    chosen       the k of highest Q, ties by likeness; with probability ε others, each as likely
    Q ← Q + α·(r − Q),  Q₀ = 0,  r = 1 if the try that it helped succeeded, else −1

The first half of a task's tries, at least one, is made plainly, as nothing is known of a task
before it is seen; the others with the chosen ones before their first observation, which training
takes away. A Q is no store of its own: it follows, round by round, from the tries of the window and
what helped them, and goes with them when a subject's data is deleted.

A plan with ``learn = false`` under ``[evolve]`` trains nothing, and memory alone gets better: the
case memory of row 33.

Covered: likeness by words. Not covered: embeddings; memories older than the plan's window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from evolution.part import BasePart
from evolution.parts.plays.waves import Line, in_waves, lines_of
from evolution.parts.seam import MemoryView, PartWork, Playing
from evolution.parts.telling import like, told
from evolution.trajectory import Group, Scaffold, Task, Trajectory
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import EpisodesOptions

__all__ = ["Episodes", "values_of"]


class Episodes(BasePart):
    """See the module."""

    couples: ClassVar = Couples.USER
    reads: ClassVar = Reads.UNIT
    options: EpisodesOptions

    def play(self, tasks: Sequence[Task], past: MemoryView, work: PartWork) -> Playing:
        """Two waves."""
        stored = [one for one in past.successes(shortest=True) if one.steps]
        values = values_of(past.groups(), rate=self.options.rate)

        def following(line: Line) -> list[Task]:
            if not line.tries:
                return [line.task] * max(1, line.left // 2)
            if not line.played:
                return [line.task] * line.left
            return [
                _helped(line.task, self._chosen(line.played[0], stored, values, work.rng))
                for _ in range(line.left)
            ]

        return (yield from in_waves(lines_of(tasks), following))

    def _chosen(
        self,
        try_: Trajectory,
        stored: Sequence[Trajectory],
        values: Mapping[str, float],
        rng: np.random.Generator,
    ) -> list[Trajectory]:
        said = self.options
        near = [one for likeness, one in like(try_, stored) if likeness >= said.floor]
        if near and rng.random() < said.explore:
            return [near[int(i)] for i in rng.permutation(len(near))[: said.count]]
        # Sorting keeps the order of equal values: the likest first.
        ranked = sorted(near, key=lambda one: -values.get(one.conversation_sha256, 0.0))
        return ranked[: said.count]


def values_of(groups: Sequence[Group], *, rate: float) -> dict[str, float]:
    """Q of each try that helped others, by its ``conversation_sha256``, oldest tries first."""
    found: dict[str, float] = {}
    tries = [one for group in groups for one in group.trajectories]
    for one in sorted(tries, key=lambda one: (one.round, one.conversation_sha256)):
        for helper in one.helped_by:
            before = found.get(helper, 0.0)
            found[helper] = before + rate * ((1.0 if one.success else -1.0) - before)
    return found


def _helped(task: Task, chosen: Sequence[Trajectory]) -> Task:
    if not chosen:
        return task
    help_ = Scaffold(
        text="\n\n".join(map(told, chosen)),
        made_of=tuple(one.conversation_sha256 for one in chosen),
    )
    return replace(task, scaffold=help_)
