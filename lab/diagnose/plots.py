"""The pictures of a diagnosis: PNG files, in the colours and markers of ``lab/report/plots.py``.

Covered: probes of one setting; curves beside their baseline with the plateau that was compared. Not
covered: interactive pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from evolution.diagnose.diagnosis import Diagnosis
from lab.diagnose.observed import Seen

__all__ = ["draw_curves", "draw_probes"]

_BLUE, _RED, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#444444"
_DPI: Final = 110
_MOST_PAIRS: Final = 12


def draw_probes(found: Diagnosis, out: Path) -> str:
    """T1 by pair, and T3 over the prefix; the file's name."""
    from matplotlib import pyplot as plt

    figure, (left, right) = _grid(plt, 2)
    pairs = [pair for pair in found.t1.pairs if pair.distance.known][:_MOST_PAIRS]
    for height, pair in enumerate(pairs):
        for rate, colour, marker, name in (
            (pair.distance, _RED, "s", "distance of kernels"),
            (pair.agreement, _BLUE, "o", "agreement of policies"),
        ):
            left.errorbar(
                [100 * rate.value], [height],
                xerr=[[100 * (rate.value - rate.low)], [100 * (rate.high - rate.value)]],
                color=colour, marker=marker, markersize=5, capsize=2, linestyle="none",
                label=name if height == 0 else None,
            )  # fmt: skip
    for rate, colour in ((found.t1.distance_floor, _RED), (found.t1.agreement_floor, _BLUE)):
        if rate.known:
            left.axvline(100 * rate.value, color=colour, linestyle=":", linewidth=1)
    left.set_yticks(
        range(len(pairs)), [_literal(f"{p.one} in {p.other}") for p in pairs], fontsize=7
    )
    left.set_xlim(-5, 105)
    left.set_xlabel("T1: % (dotted: noise floors)", fontsize=9)
    if pairs:
        left.legend(fontsize=7, frameon=False, loc="upper center")
    steps = range(1, len(found.t3.accuracy) + 1)
    right.errorbar(
        list(steps), [100 * rate.value for rate in found.t3.accuracy],
        yerr=[
            [100 * (rate.value - rate.low) for rate in found.t3.accuracy],
            [100 * (rate.high - rate.value) for rate in found.t3.accuracy],
        ],
        color=_GREEN, marker="^", markersize=5, capsize=2, linewidth=1.2,
    )  # fmt: skip
    right.axhline(100 * found.t3.chance, color=_GREY, linestyle=":", linewidth=1)
    if found.t3.t_star is not None:
        right.axvline(found.t3.t_star, color=_GREY, linestyle="--", linewidth=1)
    right.set_ylim(-5, 105)
    right.set_xlabel("T3: observations seen (dashed: t*)", fontsize=9)
    right.set_ylabel("environment told, held out (%)", fontsize=9)
    return _save(plt, figure, out)


def draw_curves(seen: Sequence[Seen], out: Path) -> str:
    """Every setting's seeds beside its baseline; the file's name."""
    from matplotlib import pyplot as plt

    figure, panels = _grid(plt, len(seen))
    for axes, one in zip(panels, seen, strict=False):
        for curve in one.curves:
            rounds = [point.round for point in curve.points]
            axes.plot(
                rounds, [100 * point.rate for point in curve.points], color=_BLUE, marker="o",
                markersize=3, linewidth=1,
            )  # fmt: skip
            tail = curve.tail()
            axes.plot(
                [tail[0].round, tail[-1].round], [100 * curve.plateau()] * 2, color=_RED,
                linewidth=2,
            )  # fmt: skip
        axes.axhline(100 * one.assigned.baseline, color=_GREEN, linestyle=":", linewidth=1.4)
        axes.set_title(
            _literal(f"{one.setting}: {one.assigned.pattern or 'cannot be told'}"), fontsize=9
        )
        axes.set_xlabel("round", fontsize=9)
        axes.set_ylim(-2, 102)
    panels[0].set_ylabel("held-out success (%)\nred: plateau, dotted: baseline", fontsize=9)
    return _save(plt, figure, out)


def _grid(plt: Any, panels: int) -> tuple[Any, list[Any]]:
    import matplotlib as mpl

    mpl.use("Agg")
    columns = min(3, panels)
    rows = -(-panels // columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(4.2 * columns, 3.2 * rows), dpi=_DPI, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    flat = [axes for line in grid for axes in line]
    for axes in flat:
        axes.grid(color="#e6e6e6", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8)
    for axes in flat[panels:]:
        axes.set_visible(False)
    return figure, flat[:panels]


def _literal(text: str) -> str:
    """Without matplotlib's mathematics."""
    return text.replace("$", r"\$")


def _save(plt: Any, figure: Any, out: Path) -> str:
    figure.savefig(out, metadata={"Software": None})
    plt.close(figure)
    return out.name
