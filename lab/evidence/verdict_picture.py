"""The picture of a registration: where each hypothesis' difference lies beside its target.

A row for each hypothesis, in points: the mean over the registered seeds with Student's t at 95 %
(the thin line), the interval over tasks (the thick one), each seed as a stroke, and the target as a
bar with an arrow to the side that was claimed.

Covered: PNG, readable without colour vision. Not covered: hypotheses of which nothing ran; their
rows have a target alone.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from lab.evidence.verdicts import Judgement
from lab.report.plots import literal

__all__ = ["draw_judgement"]

_BLUE: Final = "#0072B2"
_ORANGE: Final = "#D55E00"


def draw_judgement(judgement: Judgement, out: Path) -> None:
    """Write the picture; its folder is created if absent."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = judgement.found
    figure, axes = plt.subplots(
        figsize=(8.0, 1.1 + 0.62 * len(rows)), dpi=110, layout="constrained"
    )
    axes.axvline(0, color="#444444", linewidth=0.8)
    for height, found in enumerate(rows):
        target = 100 * found.target
        side = 1 if found.direction == "above" else -1
        axes.plot([target] * 2, [height - 0.3, height + 0.3], color="black", linewidth=1.6)
        axes.annotate(
            "",
            (target, height - 0.3),
            xytext=(14 * side, 0),
            textcoords="offset points",
            arrowprops={"arrowstyle": "<-", "linewidth": 1.0, "shrinkA": 0, "shrinkB": 0},
        )
        if (difference := found.difference) is None:
            continue
        spread, tasks = difference.spread, difference.by_task
        if tasks is not None:
            axes.plot(
                [100 * tasks.low, 100 * tasks.high],
                [height] * 2,
                color=_BLUE,
                linewidth=6,
                alpha=0.3,
                solid_capstyle="butt",
            )
        if not math.isnan(spread.low):
            axes.plot(
                [100 * spread.low, 100 * spread.high], [height] * 2, color=_BLUE, linewidth=1.4
            )
        axes.plot([100 * spread.mean], [height], "o", color=_BLUE, markersize=6)
        axes.plot(
            [100 * rate for rate in spread.rates],
            [height + 0.2] * len(spread.rates),
            "|",
            color=_ORANGE,
            markersize=8,
        )
    names = [
        f"{found.name}: {found.verdict.value}\n{found.setting} − {found.reference}"
        for found in rows
    ]
    axes.set_yticks(range(len(rows)), [literal(name) for name in names], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(
        "points; thin line: 95 % over seeds, thick: over tasks; strokes: seeds; bar: target",
        fontsize=8,
    )
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Software": None})
    plt.close(figure)
