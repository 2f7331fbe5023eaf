"""Minus the log-probability of each token, times its weight.

With weight 1 on what the agent sampled it is imitation (Fed-SE, arXiv 2512.08870, §3); with an
advantage as weight it is the policy gradient of REINFORCE (Williams 1992), for tries of the very
policy that is trained.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from evolution.part import BasePart
from evolution.train.objective import RowTensors, TokenOut
from federation.plan.methods import Couples, Reads

__all__ = ["Nll"]


class Nll(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TRY
    reads: ClassVar = Reads.UNIT

    def terms(self, out: TokenOut, row: RowTensors) -> torch.Tensor:
        """−log π · weight."""
        return -out.logprob * row.weights
