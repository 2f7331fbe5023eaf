"""PPO: advantages over a learned value, in the clipped steps of ``clipped``, and the value's loss.

Over the agent's tokens of a row alone, t the one and t' the next of them, r the reward that the
credit puts on a token, V the value head's word before it, V° the same before the first step ::

    δ_t = r_t + γ·V°_t' − V°_t                V° is 0 after the last
    A_t = δ_t + γλ·A_t'                       what the policy's term takes for credit
    R_t = A_t + V°_t                          what the value is drawn to
    loss = clipped(A) + c·½·max((V − R)², (clip(V, V° − ε, V° + ε) − R)²)

What the agent read is skipped: what follows the last token of a turn is the first of its next one.

Sources: the estimate (arXiv 1506.02438, eq. 16), the ratio, its clip and the clip of the value
(arXiv 1707.06347, eq. 7 and 9, and its reference code).

Each row is looked at by itself, so the objective couples a try. To centre and scale the advantages
over a batch, as many PPO trainers do, would couple all units: what one try's tokens are worth would
depend on every other try of the batch. It is not offered in any mode.

The value is no part of what the policy is: V stands on a hidden state through which no gradient
flows back, unless ``value_trains_adapter`` lets it.

Covered: rows whose tokens were sampled and recorded, to their end. Not covered: a value for what a
limit ended, which counts as an end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from evolution.parts.objectives.clipped import Clipped
from evolution.train.objective import RowTensors, TokenOut
from federation.plan.part_options import PpoOptions
from federation.plan.section import Section

__all__ = ["Ppo", "advantages"]


class Ppo(Clipped):
    """See the module."""

    needs: ClassVar = Clipped.needs | {"value", "old_value"}
    watches: ClassVar[tuple[str, ...]] = (
        *Clipped.watches,
        "return_mean",
        "return_square",
        "value_error_mean",
        "value_error_square",
        "value_loss",
    )
    options: PpoOptions

    @classmethod
    def needed(cls, options: Section) -> frozenset[str]:
        """What the policy's term needs, and the value."""
        return super().needed(options) | {"value", "old_value"}

    def terms(self, out: TokenOut, row: RowTensors) -> torch.Tensor:
        """See the module."""
        said, old = self.options, out.old_value
        found = advantages(row.weights, old, row.mask, discount=said.gamma, decay=said.gae_lambda)
        returns = found + old
        policy = super().terms(out, row._replace(weights=found))
        loss = self._value_loss(out.value, old, returns)
        if self.watch is not None:
            self._note_values(loss, old, returns, row.mask)
        return policy + said.value_coefficient * loss

    def concluded(self, figures: Mapping[str, float]) -> dict[str, float]:
        """With the part of the returns' variance that V° explains, in the place of moments."""
        if "return_mean" not in figures:
            # No token was noted, so there is none of the other moments either.
            return dict(figures)
        found = dict(figures)
        mean, square = found["return_mean"], found.pop("return_square")
        error, error_square = found.pop("value_error_mean"), found.pop("value_error_square")
        spread = square - mean**2
        # Where all returns are alike there is nothing to explain.
        if spread > 1e-12:
            found["explained_variance"] = 1.0 - (error_square - error**2) / spread
        return found

    def _value_loss(
        self, value: torch.Tensor, old: torch.Tensor, returns: torch.Tensor
    ) -> torch.Tensor:
        width = self.options.value_clip
        squares = (value - returns).square()
        if width:
            cut = torch.clamp(value, old - width, old + width)
            squares = torch.maximum(squares, (cut - returns).square())
        return 0.5 * squares

    @torch.no_grad()
    def _note_values(
        self, loss: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor
    ) -> None:
        watch = self.watch
        watch.note("value_loss", loss, mask)
        watch.note("return_mean", returns, mask)
        watch.note("return_square", returns.square(), mask)
        watch.note("value_error_mean", returns - old, mask)
        watch.note("value_error_square", (returns - old).square(), mask)


@torch.no_grad()
def advantages(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    *,
    discount: float,
    decay: float,
) -> torch.Tensor:
    """A of each token of a row, as the module has it; ``discount`` is γ and ``decay`` λ.

    Outside the mask the number means nothing.
    """
    seen = _backwards((~mask).to(values.dtype), torch.where(mask, values, 0.0))
    # What follows a token is the first of the agent's behind it, however far that is.
    after = torch.nn.functional.pad(seen[1:], (0, 1))
    steps = torch.where(mask, rewards + discount * after - values, 0.0)
    return _backwards(torch.where(mask, torch.full_like(values, discount * decay), 1.0), steps)


def _backwards(factors: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
    """Solve x_t = factors_t · x_{t+1} + terms_t, with 0 behind the last, in log₂ L steps.

    Factors lie in [0, 1], so nothing overflows. A loop over tokens would be as right, and slow on a
    GPU; a cumulative sum over powers of γλ would not be right, for these vanish.
    """
    reach = 1
    while reach < len(terms):
        terms = terms + factors * torch.nn.functional.pad(terms[reach:], (0, reach))
        factors = factors * torch.nn.functional.pad(factors[reach:], (0, reach))
        reach *= 2
    return terms
