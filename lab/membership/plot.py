"""The picture: how often members are found against how often others are accused.

A panel for each run; a line is a score's mean over the seeds, its shade reaches from the lowest
seed to the highest, and the mark has the t interval over seeds. Covered: at most four lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.membership.rates import Sample, roc
from lab.membership.tradeoff import TradeOff
from lab.report.interval import SeedSpread

__all__ = ["Line", "Panel", "draw"]

_COLOURS = ("#888888", "#c2571a", "#1f6f8b", "#5b2a86")
_LEAST_RATE = 2e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One score."""

    label: str
    """In the legend."""
    samples: Sequence[Sample]
    """One for each seed."""
    seeds: SeedSpread
    """True positives at the marked false-positive rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One run."""

    title: str
    """Above it."""
    lines: Sequence[Line]
    """Its scores."""
    allowed: TradeOff | None
    """What the accountant allows; None without privacy."""


def draw(panels: Sequence[Panel], out: Path, *, target: float) -> None:
    """Write a PNG picture; the false-positive rate ``target`` is marked."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, row = plt.subplots(
        1, len(panels), figsize=(4.2 * len(panels), 4.4), dpi=110, sharey=True, squeeze=False
    )
    grid = np.geomspace(_LEAST_RATE, 1.0, 160)
    for axes, panel in zip(row[0], panels, strict=True):
        axes.plot(grid, grid, color="#cccccc", linewidth=1, label="guessing")
        if panel.allowed is not None:
            bound = [panel.allowed.power(float(rate)) for rate in grid]
            axes.plot(grid, bound, "k--", linewidth=1, label="accountant's curve")
        for line, colour in zip(panel.lines, _COLOURS, strict=False):
            curves = np.stack([_on_grid(sample, grid) for sample in line.samples])
            axes.fill_between(
                grid, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.15, linewidth=0
            )
            axes.plot(grid, curves.mean(axis=0), color=colour, linewidth=1.3, label=line.label)
            mean = line.seeds.mean
            low, high = max(_LEAST_RATE, line.seeds.low), min(1.0, line.seeds.high)
            axes.errorbar(
                [target], [mean], yerr=[[max(0.0, mean - low)], [max(0.0, high - mean)]], fmt="o",
                color=colour, markersize=4, capsize=3,
            )  # fmt: skip
        axes.axvline(target, color="#dddddd", linewidth=1, zorder=0)
        axes.set(
            xscale="log", yscale="log", xlim=(_LEAST_RATE, 1.0), ylim=(_LEAST_RATE, 1.05),
            xlabel="false-positive rate", title=panel.title,
        )  # fmt: skip
        axes.legend(fontsize=7, loc="lower right")
    row[0][0].set_ylabel("true-positive rate")
    figure.tight_layout()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)
    plt.close(figure)


def _on_grid(sample: Sample, grid: np.ndarray) -> np.ndarray:
    """The most members found with at most each false-positive rate."""
    false, true = roc(sample)
    last = np.searchsorted(false, grid, side="right") - 1
    return np.where(last >= 0, true[np.maximum(last, 0)], 0.0)
