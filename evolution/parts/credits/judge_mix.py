"""Imitation, and beside it judging: was this try a success?

SPARK's recycling of outcomes (row 14), pointwise: the rows are those of ``shortest-success``, and
of each task tried in the round, for as many solved tries as failed ones (at most ``each``, at least
one of either where there is one), one more row: a question that tells the try without its ending,
with the answer "yes" or "no", whose tokens weigh ``weight``. So failures teach judging and never
acting.

The ratio of 10 to 20 % of a batch is a weight here, for a unit's rows may not depend on how many
others there are. The judge that is trained this way is the policy itself; nothing asks it for
rewards, which stay the environment's.

Covered: a base that reads its own tries as text. Not covered: pairwise questions; objectives that
compare with recorded probabilities, for nobody sampled the answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Final

import numpy as np

from evolution.part import BasePart
from evolution.parts.seam import MemoryView, PartWork
from evolution.parts.telling import told
from evolution.train.rows import Row
from evolution.trajectory import Group, Trajectory
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import JudgeMixOptions

__all__ = ["JudgeMix"]

_QUESTION: Final = "You see a try at a task. Answer yes if it solved the task, else no."


class JudgeMix(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TASK
    reads: ClassVar = Reads.UNIT
    options: JudgeMixOptions

    def credit(self, groups: Sequence[Group], past: MemoryView, work: PartWork) -> list[Row]:
        """Imitation's rows, then the questions."""
        rows = [Row.of(one) for one in past.successes(shortest=work.best_per_task)]
        return rows + [self._question(one, work) for group in groups for one in self._asked(group)]

    def _asked(self, group: Group) -> list[Trajectory]:
        tries = [one for one in group.trajectories if one.steps]
        solved = [one for one in tries if one.success]
        failed = [one for one in tries if not one.success]
        many = min(self.options.each, max(1, min(len(solved), len(failed))))
        return [*solved[:many], *failed[:many]]

    def _question(self, one: Trajectory, work: PartWork) -> Row:
        answer = "yes" if one.success else "no"
        made = work.rendered(_QUESTION, [told(one, ending=False)], [answer])
        ids = np.array(made.token_ids, dtype=np.int64)
        return replace(
            Row.of(one),
            token_ids=ids,
            mask=np.array(made.agent_mask, dtype=np.bool_),
            weights=np.full(ids.shape, self.options.weight, dtype=np.float32),
            logprobs=np.zeros(ids.shape, dtype=np.float32),
            name=f"judged {one.conversation_sha256}",
        )
