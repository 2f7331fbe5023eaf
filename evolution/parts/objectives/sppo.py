"""A try's log-probability is drawn to where its share of won pairs says (SPPO).

With y the tokens of a row's mask, π_ref the adapter that the round was given, and w the credit's
weight, which is the same on all of them: P − ½ of ``win_share.py`` ::

    x    = log π(y) − log π_ref(y)               sums over y
    loss = (x − η·w)² / (2η)                     on the first token of y; 0 on all others

The source is arXiv 2405.00675, whose loss is (x − η·w)² with η = 1000 (its code says β = 1/η =
0.001). Divided by 2η it has the same least point and the gradient

    −(w − x/η) · ∇ log π(y)

which is that of REINFORCE with the credit w where the round begins (x = 0), less the more of the
way is gone: a learning rate, a clip of gradients and a pull to an anchor mean what they mean
elsewhere.

A row's loss is one number and not one a token, so what the normaliser divides by tokens is a sum
over rows: under ``constant``, which the recipe has, the mean over a batch's rows by the nominal
tokens of one, so that each row counts the same; under ``batch_tokens`` a row counts less in a batch
of long ones. Log-probabilities are at the temperature that tries are played at: y is a draw of
π_ref there.

Where each step is an aggregation of its own, π_ref is the adapter that the step began with: x is 0,
and nothing holds a row back.

Covered: rows whose weight is the same on all tokens; of another row the first token's counts. Not
covered: the pairs of a preference model.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from evolution.part import BasePart
from evolution.train.objective import RowTensors, TokenOut
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import SppoOptions

__all__ = ["Sppo"]


class Sppo(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TRY
    reads: ClassVar = Reads.UNIT
    needs: ClassVar = frozenset({"reference"})
    watches: ClassVar[tuple[str, ...]] = ("entropy", "moved_min", "moved_max")
    options: SppoOptions

    def terms(self, out: TokenOut, row: RowTensors) -> torch.Tensor:
        """See the module."""
        eta, mask = self.options.eta, row.mask
        # No branch and no index: a row may be one of many that are looked at at once.
        first = mask & (mask.long().cumsum(dim=-1) == 1)
        moved = torch.where(mask, out.logprob - out.reference, 0.0).sum()
        wanted = eta * torch.where(first, row.weights, 0.0).sum()
        if self.watch is not None:
            self.watch.note("entropy", out.entropy, mask)
            self.watch.note("moved_min", moved.expand_as(out.logprob), first)
            self.watch.note("moved_max", moved.expand_as(out.logprob), first)
        return torch.where(first, (moved - wanted).square() / (2.0 * eta), 0.0)
