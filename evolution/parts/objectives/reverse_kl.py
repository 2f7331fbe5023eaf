"""The divergence from a teacher, estimated on the tokens that the policy itself sampled.

Per token, with π the policy, μ what was recorded, T the teacher::

    A    = log T − log π                        without gradient, within ±gap
    r    = min(exp(log π − log μ), most)        without gradient
    loss = −r·A·log π

In expectation over the policy's own samples the gradient of this loss is that of KL(π ‖ T) token by
token: Σ_x π(x)·(log π(x) − log T(x))·∇log π(x). ``most`` bounds what one token weighs where π has
moved from μ; without ``gap`` a token that the teacher rules out would weigh without end.

Source: on-policy self-distillation (arXiv 2601.19897). The estimator from the sampled token alone
is ours to keep the teacher's word one number a token; the paper's uses all of a distribution.

Covered: rows of the credit ``distil``. Not covered: rows without a teacher.
"""

from __future__ import annotations

from typing import ClassVar, Final

import torch

from evolution.part import BasePart
from evolution.train.objective import RowTensors, TokenOut
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import ReverseKlOptions

__all__ = ["ReverseKl"]

_MOST_LOG_RATIO: Final = 20.0


class ReverseKl(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TRY
    reads: ClassVar = Reads.UNIT
    needs: ClassVar = frozenset({"teacher"})
    watches: ClassVar[tuple[str, ...]] = ("teacher_gap",)
    options: ReverseKlOptions

    def terms(self, out: TokenOut, row: RowTensors) -> torch.Tensor:
        """See the module."""
        said, logprob = self.options, out.logprob.detach()
        gap = (out.teacher - logprob).clamp(-said.gap, said.gap)
        moved = (logprob - row.logprobs).clamp(-_MOST_LOG_RATIO, _MOST_LOG_RATIO)
        if self.watch is not None:
            self.watch.note("teacher_gap", gap, row.mask)
        return -moved.exp().clamp(max=said.most) * gap * row.weights * out.logprob
