"""The picture of a panel: what each setting differs by from the chosen constant.

A row for each setting, a column for each figure: the mean of the differences paired by seed, with
Student's t at 95 % where there are three seeds or more, and single seeds as strokes.

Covered: PNG, readable without colour vision. Not covered: settings that share no seed with the
constant; they have no row.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from lab.report.panel import Panel
from lab.report.plots import literal

__all__ = ["draw_panel"]

_COLUMNS: Final = {
    "success": "success, points",
    "hours": "hours",
    "up_mb": "MB up",
}


def draw_panel(panel: Panel, constant: str, out: Path) -> None:
    """Write the picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = [
        name
        for name in panel.runs
        if name != constant and panel.difference(name, constant, "success") is not None
    ]
    figure, grid = plt.subplots(
        1, len(_COLUMNS), figsize=(9.0, 1.2 + 0.34 * len(rows)), dpi=110, sharey=True,
        layout="constrained",
    )  # fmt: skip
    for axes, (column, label) in zip(grid, _COLUMNS.items(), strict=True):
        axes.axvline(0, color="#444444", linewidth=0.8)
        for height, name in enumerate(rows):
            spread = panel.difference(name, constant, column)
            if spread is None:
                continue
            if not math.isnan(spread.low):
                axes.plot([spread.low, spread.high], [height] * 2, color="#0072B2", linewidth=1.4)
            axes.plot([spread.mean], [height], "o", color="#0072B2", markersize=5)
            axes.plot(
                spread.rates, [height] * len(spread.rates), "|", color="#D55E00", markersize=9
            )
        axes.set_xlabel(literal(f"{label}, − {constant}"), fontsize=8)
        axes.grid(color="#e6e6e6", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    grid[0].set_yticks(range(len(rows)), [literal(name) for name in rows], fontsize=8)
    grid[0].set_ylim(len(rows) - 0.5, -0.5)
    figure.savefig(out, metadata={"Software": None})
    plt.close(figure)
