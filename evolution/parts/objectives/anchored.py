"""Imitation that is held more and more to what the agent said before (Decision Mamba's idea).

    loss = −w·log π + λ·½(log π − log π_ref)²
    λ    = first + (last − first)·progress            0 at a training's first step, towards 1

with w the credit's weight and π_ref the adapter that the round was given. The second term is k2, an
estimate of the divergence of π from π_ref over what was said by a policy near both.

Decision Mamba (arXiv 2406.05427) mixes the label of a noisy demonstration with the past policy's
own answer, and more of it the longer it has trained, for a policy that knows nothing yet is no
help. Here the past policy is the federation's: what a silo imitates moves the adapter, and what the
silo would unlearn for it holds it. Where a training begins the two policies are one and the pull is
0 whatever λ is; hence it rises by default. ``last`` below ``first`` lets go instead.

Progress is a count of steps, the same for all data. Where each step is an aggregation of its own it
is that of the round's steps, but π_ref is the adapter that the step began with: there the pull is
0, and this is ``nll``.

Covered: any row, demonstrations too: nothing is asked of whoever played. Not covered: a divergence
of whole distributions.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from evolution.part import BasePart
from evolution.train.objective import RowTensors, TokenOut
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import AnchoredOptions

__all__ = ["Anchored"]


class Anchored(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TRY
    reads: ClassVar = Reads.UNIT
    needs: ClassVar = frozenset({"reference"})
    watches: ClassVar[tuple[str, ...]] = ("anchor_kl",)
    options: AnchoredOptions

    def terms(self, out: TokenOut, row: RowTensors) -> torch.Tensor:
        """See the module."""
        said = self.options
        apart = 0.5 * (out.logprob - out.reference).square()
        if self.watch is not None:
            self.watch.note("anchor_kl", apart, row.mask)
        strength = said.first + (said.last - said.first) * self.progress
        return strength * apart - out.logprob * row.weights
