"""How credit goes with log-probability over a mini-batch: what two objectives choose tokens by.

Over the tokens i of the masks of all of a mini-batch's rows, without gradient ::

    cov_i = (A_i − mean A) · (log π_i − mean log π)

Where this is high, a token that is likely already is made likelier, or one that is rare rarer:
these few tokens make most of an entropy's fall (arXiv 2505.22617, "The Entropy Mechanism", and its
code in PRIME-RL/Entropy-Mechanism-of-RL). Both objectives take the ratio of policies of
``clipped.py`` as it is bounded there, and do something else with a share of tokens.

Both means are over the whole mini-batch, so each token's part depends on every other try's.

Covered: rows whose tokens were sampled and recorded. Not covered: a mini-batch in several passes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch

from evolution.part import BasePart
from evolution.parts.objectives.clipped import bounded, ratio_of
from evolution.train.objective import Batchwise, RowTensors, TokenOut
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import CovarianceOptions

__all__ = ["ByCovariance", "Tokens", "share_of"]


class Tokens(NamedTuple):
    """The tokens of a mini-batch's masks, row after row."""

    logprob: torch.Tensor
    """log π, with its gradient."""
    behaviour: torch.Tensor
    """log μ."""
    credit: torch.Tensor
    """A."""
    ratio: torch.Tensor
    """r of ``clipped.py``."""
    covariance: torch.Tensor
    """See the module; without gradient."""


class ByCovariance(BasePart, Batchwise):
    """See the module."""

    couples: ClassVar = Couples.ALL
    reads: ClassVar = Reads.UNIT
    watches: ClassVar[tuple[str, ...]] = (
        "cov_taken",
        "cov_max",
        "entropy",
        "mismatch",
        "ratio_min",
        "ratio_max",
    )
    options: CovarianceOptions

    def batch_terms(self, outs: Sequence[TokenOut], rows: Sequence[RowTensors]) -> torch.Tensor:
        """One number for each token of the masks."""
        tokens = _tokens_of(outs, rows)
        said = self.options
        gain = bounded(
            tokens.ratio,
            tokens.credit,
            low=said.clip_low,
            high=said.clip_high,
            dual=said.dual_clip,
        )
        taken = torch.zeros_like(tokens.credit, dtype=torch.bool)
        if len(taken):
            taken[self.taken(tokens)] = True
        if self.watch is not None:
            self._note(tokens, taken, outs, rows)
        return self.changed(-gain, taken, tokens)

    @abstractmethod
    def taken(self, tokens: Tokens) -> torch.Tensor:
        """The places of the tokens that it does something else with; there is at least a token."""

    @abstractmethod
    def changed(self, loss: torch.Tensor, taken: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """The loss with what becomes of these; ``taken`` is a mask."""

    @torch.no_grad()
    def _note(
        self,
        tokens: Tokens,
        taken: torch.Tensor,
        outs: Sequence[TokenOut],
        rows: Sequence[RowTensors],
    ) -> None:
        watch, every = self.watch, torch.ones_like(taken)
        watch.note("cov_taken", taken.float(), every)
        watch.note("cov_max", tokens.covariance, every)
        watch.note("ratio_min", tokens.ratio, every)
        watch.note("ratio_max", tokens.ratio, every)
        for out, row in zip(outs, rows, strict=True):
            watch.note("entropy", out.entropy, row.mask)
        if watch.first_step:
            # As in ``clipped.py``: what engine and trainer do not agree on.
            watch.note("mismatch", tokens.ratio - 1.0 - tokens.ratio.log(), every)


def share_of(tokens: int, share: float) -> int:
    """How many tokens a share is: rounded down, but at least one."""
    return max(1, int(share * tokens))


def _tokens_of(outs: Sequence[TokenOut], rows: Sequence[RowTensors]) -> Tokens:
    logprob = torch.cat([out.logprob[row.mask] for out, row in zip(outs, rows, strict=True)])
    behaviour = torch.cat([row.logprobs[row.mask] for row in rows])
    credit = torch.cat([row.weights[row.mask] for row in rows])
    now = logprob.detach()
    return Tokens(
        logprob,
        behaviour,
        credit,
        ratio_of(logprob, behaviour),
        (credit - credit.mean()) * (now - now.mean()),
    )
