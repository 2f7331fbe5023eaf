"""The round's successes, and earlier ones of which the agent was neither unsure nor too sure.

    fresh      successes of the round, each conversation once; of a task the shortest alone where
               the plan says ``best_per_task``
    replayed   of each task one success of the window's earlier rounds with low < p ≤ high, of the
               newest round that has one the shortest
    p          exp(mean of log μ over the tokens that the agent sampled)
    cap        the replayed have at most ``times`` as many steps as the fresh ones, in the order of
               the part's own random stream; whoever does not fit is left out
    and        every demonstration that counts

μ is what was recorded when the try was played: the player's certainty *then*, at its temperature,
and not today's. At temperature 0 every p is 1, and nothing is replayed.

The replay of WebRL (arXiv 2411.02337, and its ``process_data.py``): one success a task, twice as
many steps as are new, perplexity by the *present* actor. There each action is looked at by itself,
failures are among the new steps, and rows are the policy's in a KL-bounded update; here a try is
kept or left whole, and imitated.

How much one task may replay depends on how long the successes of all others are, so it couples all.

Covered: replay over rounds; it needs a window of two rounds or more. Not covered: a round without a
success, which replays nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import ClassVar

from evolution.part import BasePart
from evolution.parts.credits.by_task import by_task, conversation_of, each_once
from evolution.parts.seam import MemoryView, PartWork
from evolution.train.rows import Row
from evolution.trajectory import Group, Trajectory
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import ConfidentReplayOptions

__all__ = ["ConfidentReplay", "certainty"]


class ConfidentReplay(BasePart):
    """See the module."""

    couples: ClassVar = Couples.ALL
    reads: ClassVar = Reads.UNIT
    options: ConfidentReplayOptions

    def credit(self, groups: Sequence[Group], past: MemoryView, work: PartWork) -> list[Row]:
        """One row for each, of weight 1."""
        new = by_task(one for group in groups for one in group.trajectories if one.success)
        fresh = each_once(
            one for own in new.values() for one in (own[:1] if work.best_per_task else own)
        )
        replayed = self._replayed(fresh, past, work)
        return [Row.of(one) for one in each_once((*fresh, *replayed, *past.demonstrations()))]

    def _replayed(
        self, fresh: Sequence[Trajectory], past: MemoryView, work: PartWork
    ) -> list[Trajectory]:
        said = self.options
        known = set(map(conversation_of, fresh))
        earlier = by_task(
            one
            for group in past.groups()
            if group.round < work.round
            for one in group.trajectories
            if one.success
            and said.low < certainty(one) <= said.high
            and conversation_of(one) not in known
        )
        # The shortest stands first, and ``max`` takes the first of equals.
        found = [max(own, key=lambda one: one.round) for own in earlier.values()]
        room = said.times * sum(len(one.steps) for one in fresh)
        kept: list[Trajectory] = []
        for place in work.rng.permutation(len(found)):
            one = found[place]
            if len(one.steps) <= room:
                room -= len(one.steps)
                kept.append(one)
        return kept


def certainty(one: Trajectory) -> float:
    """The geometric mean of what the player gave the tokens that it sampled; 0 without any."""
    said = [value for step in one.steps for value in step.action_logprobs]
    return math.exp(statistics.fmean(said)) if said else 0.0
