"""Credit times the ratio of two policies, bounded; minus β times the divergence from a reference.

Per token, with μ the recorded probability, π the model's at the same temperature, A the credit ::

    r = exp(clip(log π − log μ, −20, 20))
    clip    J = min(r·A, clip(r, 1 − low, 1 + high)·A);  if A < 0: J = max(J, c·A)
    dppo    J = r·A, or 0 where A > 0 and π − μ > width, or A < 0 and μ − π > width
    cispo   J = A·log π·min(r, most), without gradient through r
    KL      k2 = ½(log π − log ref)²·r, without gradient through r
            k3 = e^d − d − 1, d = log ref − log π
    w       1, or 0 where another engine's μ is too far from the trainer's first word on it
    loss  = −w·J + β·KL − α·entropy

Sources: PPO's ratio and clip (arXiv 1707.06347, eq. 7), clip-higher (DAPO, arXiv 2503.14476), the
dual clip (arXiv 1912.09729, eq. 5), DPPO with the total variation of one token, CISPO (arXiv
2506.13585, eq. 4), the estimators k2 and k3 (Schulman 2020; k2 as a loss: arXiv 2506.09477), IcePop
(arXiv 2510.18855).

The divisor is the driver's: the public constant batch × nominal tokens, so that no try's length or
group's outcome moves another's part (Dr. GRPO, arXiv 2503.20783, §3).

Covered: rows whose tokens were sampled and recorded. Not covered: demonstrations, which have no μ.
"""

from __future__ import annotations

from typing import ClassVar, Final

import torch

from evolution.part import BasePart
from evolution.train.objective import RowTensors, TokenOut
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import ClippedOptions
from federation.plan.section import Section

__all__ = ["Clipped", "bounded", "half_square", "ratio_of"]

_MOST_LOG_RATIO: Final = 20.0
_MATCH: Final = (0.5, 5.0)
"""Where π_first/μ has to lie (IcePop)."""


class Clipped(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TRY
    reads: ClassVar = Reads.UNIT
    needs: ClassVar = frozenset({"reference", "base", "first"})
    watches: ClassVar[tuple[str, ...]] = (
        "clip_low",
        "clip_high",
        "entropy",
        "kl",
        "mismatch",
        "ratio_min",
        "ratio_max",
    )
    options: ClippedOptions

    @classmethod
    def needed(cls, options: Section) -> frozenset[str]:
        """No forward pass for what has no part in the loss."""
        if not isinstance(options, ClippedOptions):
            raise TypeError(f"{type(options).__name__} are not the options of this objective")
        found = {_reference(options)} if options.kl_beta else set()
        return frozenset(found | ({"first"} if options.mask_mismatch else set()))

    def terms(self, out: TokenOut, row: RowTensors) -> torch.Tensor:
        """See the module."""
        said = self.options
        ratio = ratio_of(out.logprob, row.logprobs)
        gain = self._gain(ratio, out.logprob, row)
        if self.watch is not None:
            self._note(ratio, out, row)
        if said.mask_mismatch:
            first = ratio_of(out.first, row.logprobs)
            gain = torch.where((first >= _MATCH[0]) & (first <= _MATCH[1]), gain, 0.0)
        loss = -gain
        if said.kl_beta:
            divergence = self._divergence(ratio, out)
            loss = loss + said.kl_beta * divergence
            if self.watch is not None:
                self.watch.note("kl", divergence, row.mask)
        if said.entropy:
            loss = loss - said.entropy * out.entropy
        return loss

    def _gain(self, ratio: torch.Tensor, logprob: torch.Tensor, row: RowTensors) -> torch.Tensor:
        said, credit = self.options, row.weights
        if said.surrogate == "cispo":
            return ratio.detach().clamp(max=said.cispo_most) * credit * logprob
        if said.surrogate == "dppo":
            moved = (logprob.exp() - row.logprobs.exp()).detach() * credit.sign()
            return torch.where(moved > said.dppo_width, 0.0, ratio * credit)
        return bounded(ratio, credit, low=said.clip_low, high=said.clip_high, dual=said.dual_clip)

    @torch.no_grad()
    def _note(self, ratio: torch.Tensor, out: TokenOut, row: RowTensors) -> None:
        said, credit, watch = self.options, row.weights, self.watch
        low = (ratio < 1.0 - said.clip_low) & (credit < 0)
        high = (ratio > 1.0 + said.clip_high) & (credit > 0)
        watch.note("clip_low", low.float(), row.mask)
        watch.note("clip_high", high.float(), row.mask)
        watch.note("ratio_min", ratio, row.mask)
        watch.note("ratio_max", ratio, row.mask)
        watch.note("entropy", out.entropy, row.mask)
        if watch.first_step:
            # k3 of μ and π, over what μ sampled: what engine and trainer do not agree on.
            watch.note("mismatch", ratio - 1.0 - ratio.log(), row.mask)

    def _divergence(self, ratio: torch.Tensor, out: TokenOut) -> torch.Tensor:
        said = out.base if self.options.kl_to == "base" else out.reference
        further = said - out.logprob
        if self.options.kl == "k2":
            return half_square(further, ratio)
        further = further.clamp(-_MOST_LOG_RATIO, _MOST_LOG_RATIO)
        return further.exp() - further - 1.0


def _reference(options: ClippedOptions) -> str:
    return "base" if options.kl_to == "base" else "reference"


def bounded(
    ratio: torch.Tensor, credit: torch.Tensor, *, low: float, high: float, dual: float
) -> torch.Tensor:
    """J of ``clip``, as the module has it; ``dual`` is c, and 0 leaves that bound out."""
    cut = ratio.clamp(1.0 - low, 1.0 + high)
    gain = torch.minimum(ratio * credit, cut * credit)
    return torch.where(credit < 0, torch.maximum(gain, dual * credit), gain) if dual else gain


def half_square(further: torch.Tensor, ratio: torch.Tensor) -> torch.Tensor:
    """k2, as the module has it, of how far apart two log-probabilities are."""
    return 0.5 * further.square() * ratio.detach()


def ratio_of(logprob: torch.Tensor, behaviour: torch.Tensor) -> torch.Tensor:
    """r, as the module has it."""
    return (logprob - behaviour).clamp(-_MOST_LOG_RATIO, _MOST_LOG_RATIO).exp()
