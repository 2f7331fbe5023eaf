"""Clip-Cov: a few of the tokens that take most of the entropy away have no loss.

With cov as in ``covariance.py``, over the n tokens of a mini-batch's masks, and J of ``clipped.py``
with low = high = 1 (so r is cut above 2 alone) and c = 10 ::

    candidates   low < cov < high, and r is not cut
    drawn        min(candidates, max(1, ⌊share · n⌋)) of them
    loss         0 for what is drawn, else −J

The source is arXiv 2505.22617, with the bounds of its code: they take the place of PPO's clip and
do not stand beside it. At 2e-4 a mini-batch of fewer than 10,000 tokens draws a single one.

Which of the candidates are drawn is said by a hash of the bits of their covariances, the least
first: as good as a draw, for the last bits follow from the whole mini-batch; and no generator is
needed, or moved. The same mini-batch under the same factors draws the same, as far as it is
computed with the same rounding.

Covered: as ``covariance.py``. Not covered: a divergence from a reference; FedProx keeps a silo
near.
"""

from __future__ import annotations

from typing import Final

import torch

from evolution.parts.objectives.covariance import ByCovariance, Tokens, share_of
from federation.plan.part_options import ClipCovOptions

__all__ = ["ClipCov", "by_hash"]

_WORD: Final = (1 << 32) - 1
_FACTOR: Final = 0x45D9F3B
"""Odd, and of 27 bits: times a word it stays within 64 bits with a sign."""


class ClipCov(ByCovariance):
    """See the module."""

    options: ClipCovOptions

    def taken(self, tokens: Tokens) -> torch.Tensor:
        """A few of those between the bounds."""
        said, cov = self.options, tokens.covariance
        cut = tokens.ratio.detach().clamp(1.0 - said.clip_low, 1.0 + said.clip_high)
        free = ~(cut * tokens.credit < tokens.ratio.detach() * tokens.credit)
        candidates = ((cov > said.low) & (cov < said.high) & free).nonzero()[:, 0]
        drawn = by_hash(cov[candidates])[: share_of(len(cov), said.share)]
        return candidates[drawn]

    def changed(self, loss: torch.Tensor, taken: torch.Tensor, tokens: Tokens) -> torch.Tensor:  # noqa: ARG002  # the seam
        """No loss."""
        return torch.where(taken, 0.0, loss)


def by_hash(values: torch.Tensor) -> torch.Tensor:
    """The places of numbers in an order that says nothing of their size."""
    word = values.float().contiguous().view(torch.int32).long() & _WORD
    for _ in range(2):
        word = ((word >> 16) ^ word) * _FACTOR & _WORD
    return ((word >> 16) ^ word).argsort(stable=True)
