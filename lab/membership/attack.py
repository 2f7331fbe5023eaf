"""The attack: who was trained on is who got more likely than anyone else.

The score of a canary is how much its loss fell from the base model to the trained adapter,

    score(u) = ℓ_u(base) − ℓ_u(adapter),     ℓ_u = mean −log π over the agent's tokens,

which to first order is the inner product of the adapter's move with the canary's own gradient, so
it is also what somebody who sees the weights would compute. The base model's loss takes the place
of reference models: canaries are random words, and no reference knows more about them.

Rates are taken at the threshold that the non-members set, and both come with exact 95 % intervals
(Clopper–Pearson). Two questions are asked of them, each with the doubt against the asker:

    exceeds(curve)      the lower limit of TPR is above the curve at the upper limit of FPR
    power over a curve  the same, for the run without privacy: an attack that cannot beat ε = 8
                        there says nothing about the other runs

Covered: one adapter, one score per canary. Not covered: attackers who see every step; the audits
of ``dp`` do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from evolution.model.causal_lm import load_base
from evolution.model.lora import attach_lora, write_adapter
from evolution.train.sft import TrajectoryLoss
from lab.audit.bounds import rate_lower_bound, rate_upper_bound
from lab.membership.canaries import Canaries

__all__ = ["Losses", "Rates", "rates_at", "roc"]

Floats = npt.NDArray[np.float64]

_BATCH = 256
_TWO_SIDED = 0.975


class Losses:
    """Computes ℓ_u of every canary under one adapter after another."""

    def __init__(self, base_dir: str | Path, *, rank: int, alpha: float) -> None:
        self._model = attach_lora(load_base(base_dir), rank=rank, alpha=alpha).eval()
        self._loss = TrajectoryLoss()

    @torch.no_grad()
    def of(self, canaries: Canaries, adapter: Mapping[str, npt.NDArray[np.float32]]) -> Floats:
        """Mean negative log-likelihood of each canary's answer."""
        write_adapter(self._model, adapter)
        parts = []
        for start in range(0, len(canaries.rows), _BATCH):
            rows = canaries.rows[start : start + _BATCH]
            sums_B, counts_B = self._loss.nll(self._model, *self._loss.collate(rows))
            parts.append((sums_B / counts_B).double().numpy())
        return np.concatenate(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """How well one threshold tells members from others."""

    true_positive_rate: float
    true_positive_low: float
    true_positive_high: float
    """95 % interval."""
    false_positive_rate: float
    false_positive_high: float
    """Upper end of its 95 % interval."""
    members: int
    others: int

    def exceeds(self, allowed: float) -> bool:
        """Whether the true-positive rate is above a bound with 95 % confidence."""
        return self.true_positive_low > allowed


def rates_at(scores: Floats, included: npt.NDArray[np.bool_], *, target: float) -> Rates:
    """The rates where at most ``target`` of the others are taken for members.

    Scores are larger for members; ``included`` says who is one.
    """
    inside, outside = scores[included], np.sort(scores[~included])
    allowed = int(target * outside.size)
    threshold = outside[outside.size - allowed - 1]
    false, hits = int((outside > threshold).sum()), int((inside > threshold).sum())
    return Rates(
        true_positive_rate=hits / inside.size,
        true_positive_low=rate_lower_bound(hits, inside.size, confidence=_TWO_SIDED),
        true_positive_high=rate_upper_bound(hits, inside.size, confidence=_TWO_SIDED),
        false_positive_rate=false / outside.size,
        false_positive_high=rate_upper_bound(false, outside.size, confidence=_TWO_SIDED),
        members=inside.size,
        others=outside.size,
    )


def roc(scores: Floats, included: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """False- and true-positive rates at every threshold, from the strictest on."""
    order = np.argsort(-scores, kind="stable")
    hits, false = np.cumsum(included[order]), np.cumsum(~included[order])
    return false / max(1, false[-1]), hits / max(1, hits[-1])
