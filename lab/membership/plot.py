"""The picture: how often members are found against how often others are accused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.membership.attack import Rates
from lab.membership.tradeoff import TradeOff

__all__ = ["Curve", "draw"]

Floats = npt.NDArray[np.float64]

_COLOURS = ("#444444", "#c2571a", "#1f6f8b")
_LEAST_RATE = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One run in the picture."""

    label: str
    """In the legend."""
    false_positive_rates: Floats
    true_positive_rates: Floats
    rates: Rates
    """At the marked false-positive rate."""
    allowed: TradeOff | None
    """What the accountant allows; None without privacy."""


def draw(curves: Sequence[Curve], out: Path, *, target: float) -> None:
    """Write a PNG picture of at most three curves.

    The false-positive rate ``target`` is marked.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.8), dpi=120)
    grid = np.geomspace(_LEAST_RATE, 1.0, 120)
    axes.plot(grid, grid, color="#bbbbbb", linewidth=1, label="guessing")
    for curve, colour in zip(curves, _COLOURS, strict=False):
        axes.plot(
            curve.false_positive_rates, curve.true_positive_rates, color=colour, label=curve.label
        )
        if curve.allowed is not None:
            axes.plot(
                grid,
                [curve.allowed.power(float(rate)) for rate in grid],
                color=colour,
                linestyle="--",
                linewidth=1,
                label=f"{curve.label}: accountant's bound",
            )
            axes.plot([target], [curve.allowed.power(target)], "_", color=colour, markersize=11)
        rates = curve.rates
        low = rates.true_positive_rate - rates.true_positive_low
        high = rates.true_positive_high - rates.true_positive_rate
        axes.errorbar(
            [target], [rates.true_positive_rate], yerr=[[low], [high]], fmt="o", color=colour,
            markersize=4, capsize=3,
        )  # fmt: skip
    axes.axvline(target, color="#dddddd", linewidth=1, zorder=0)
    axes.set(
        xscale="log", yscale="log", xlim=(_LEAST_RATE, 1.0), ylim=(_LEAST_RATE, 1.05),
        xlabel="false-positive rate", ylabel="true-positive rate",
    )  # fmt: skip
    axes.legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)
    plt.close(figure)
