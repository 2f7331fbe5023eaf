"""Canary units of a one-line model: unit j pulls parameter j, harder than the clip allows.

A unit has three rows. Its own gradient, the mean over all its tokens, is about 2·C long and is
clipped to C. Each row's mean gradient alone is 2·C, C/2 and C/4 long: whoever clips rows instead of
units lets 1.75·C through.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dp.steps.grads import LoopBackend
from dp.steps.units import UnitId

CLIP_L2 = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class CanaryRow:
    """A row that adds ``pull_clips · tokens · C`` to the descent direction of one parameter."""

    index: int
    pull_clips: float
    tokens: int
    # Rows of one length are computed in one batch.
    length: int = 1


class CanaryModel(torch.nn.Module):
    """Says the values of the parameters it is asked for."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.zeros(dimension))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.values[index]


class CanaryLoss:
    """−Σ pull·C·value over a row's tokens (``dp.steps.grads.RowLoss``)."""

    def length(self, row):
        return row.length

    def collate(self, rows):
        return (
            torch.tensor([row.index for row in rows]),
            torch.tensor([row.pull_clips * CLIP_L2 * row.tokens for row in rows]),
            torch.tensor([row.tokens for row in rows]),
        )

    def sums(self, model, *batch, alone=False):
        index, pull, tokens = batch
        return -pull * model(index=index), tokens


def backend(dimension):
    model = CanaryModel(dimension).eval()
    return LoopBackend(
        model=model,
        parameters={"values": model.values},
        loss=CanaryLoss(),
        probe=(rows(0)[0], CanaryRow(index=0, pull_clips=1.0, tokens=2, length=2)),
    )


def rows(index):
    return (
        CanaryRow(index=index, pull_clips=2.0, tokens=200),
        CanaryRow(index=index, pull_clips=0.5, tokens=1),
        CanaryRow(index=index, pull_clips=0.25, tokens=1),
    )


def unit(index):
    return UnitId("canary", str(index))
