"""What succeeded is imitated, and what the environment said is predicted as well.

    agent          the agent's tokens of what ``shortest_success.py`` keeps
    observations   tokens of every turn's text but the first's, of all the round's tries, solved or
                   not, each conversation once
    weights        agent: N / N_agent · 1       observations: N / N_observations · coefficient

with N_… the tokens of each kind that have a loss and N their sum. So under the objective ``nll``
and the normaliser ``batch_tokens`` a round's mean loss is

    mean −log π over the agent's tokens  +  coefficient · mean −log π over the observations

whatever each kind's share. A mini-batch has a share of both that is its own, and the loss of a step
is this sum of means only roughly.

A world model by the same rows (arXiv 2504.21024 trains one apart; the form is prime-rl's ``echo``:
cross-entropy on the observation tokens of the very rollouts, a normaliser of its own, 0.1). The
first turn holds the instruction and is left out.

It trains the shared adapter on raw observations, which are private and which no agent chose: what a
silo uploads tells more of them than under any other credit. The weights depend on how many tokens
every try has, so it couples all: it runs where whole silos are protected, or nobody.

Covered: predicting what comes. Not covered: rows that are too long, which the driver leaves out
after the weights were made; a prediction of rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from evolution.part import BasePart
from evolution.parts.credits.by_task import conversation_of, each_once
from evolution.parts.seam import MemoryView, PartWork
from evolution.train.rows import Row
from evolution.trajectory import Group, Trajectory
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import EchoOptions

__all__ = ["Echo"]

_Mask = npt.NDArray[np.bool_]


class Echo(BasePart):
    """See the module."""

    couples: ClassVar = Couples.ALL
    reads: ClassVar = Reads.UNIT
    options: EchoOptions

    def credit(self, groups: Sequence[Group], past: MemoryView, work: PartWork) -> list[Row]:
        """One row for each conversation, of one kind of tokens or of both."""
        imitated = each_once(past.successes(shortest=work.best_per_task))
        heard = each_once(one for group in groups for one in group.trajectories)
        spoken, seen = set(map(conversation_of, imitated)), set(map(conversation_of, heard))
        parts = [
            (
                one,
                np.array(one.agent_mask) & (conversation_of(one) in spoken),
                _later_turns(one) & (conversation_of(one) in seen),
            )
            for one in each_once((*imitated, *heard))
        ]
        agent = sum(_with_loss(own) for _, own, _ in parts)
        told = sum(_with_loss(other) for _, _, other in parts)
        by_agent = (agent + told) / max(1, agent)
        by_told = self.options.coefficient * (agent + told) / max(1, told)
        return [
            Row.of(one, weight=(own * by_agent + other * by_told).tolist(), mask=list(own | other))
            for one, own, other in parts
            if (own | other).any()
        ]


def _later_turns(one: Trajectory) -> _Mask:
    return np.array(
        [
            told
            for turn, step in enumerate(one.steps)
            for told in (*(turn > 0,) * len(step.context_ids), *(False,) * len(step.action_ids))
        ]
    )


def _with_loss(mask: _Mask) -> int:
    """Tokens of it that something stands before."""
    return int(mask[1:].sum())
