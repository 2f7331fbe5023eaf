"""KL-Cov: the tokens that take most of the entropy away are drawn back to where they were sampled.

With cov as in ``covariance.py``, over the n tokens of a mini-batch's masks, J of ``clipped.py``
with low = high = 0.2 and c = 10, and d = log π − log μ ::

    taken   the max(1, ⌊share · n⌋) tokens of the greatest cov
    loss    −J, for what is taken −J + coefficient · KL
    KL      abs   |d|
            k2    ½d²·r, without gradient through r

The source is arXiv 2505.22617: the policy is held to the one that played, and where it matters
alone. 2e-3 is what the authors set for 7 B, 2e-4 for 32 B. ``abs`` is their code's estimator, to
which the coefficient of 1 belongs: it pulls with all its strength at once, against a credit that is
mostly below 1. At a training's first step d is 0 up to what engine and trainer do not agree on, of
which ``abs`` takes the sign and ``k2`` next to nothing. Their code's loss has no clip, though their
scripts set 0.2; clip_low = 1, clip_high = 100 and dual_clip = 0 are that.

Covered: as ``covariance.py``. Not covered: a divergence of whole distributions; here it is that of
the token that was sampled.
"""

from __future__ import annotations

import torch

from evolution.parts.objectives.clipped import half_square
from evolution.parts.objectives.covariance import ByCovariance, Tokens, share_of
from federation.plan.part_options import KlCovOptions

__all__ = ["KlCov"]


class KlCov(ByCovariance):
    """See the module."""

    options: KlCovOptions

    def taken(self, tokens: Tokens) -> torch.Tensor:
        """The greatest."""
        cov = tokens.covariance
        return cov.topk(share_of(len(cov), self.options.share)).indices

    def changed(self, loss: torch.Tensor, taken: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """The divergence beside it."""
        said, further = self.options, tokens.logprob - tokens.behaviour
        apart = further.abs() if said.kl == "abs" else half_square(further, tokens.ratio)
        return loss + said.coefficient * torch.where(taken, apart, 0.0)
