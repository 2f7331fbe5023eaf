"""The pictures of a report: PNG files of at most 150 kB, readable without colour vision.

At most eight settings share a picture; more go to the next one. Colours are those of M. Okabe and
K. Ito, "Color Universal Design" (2008), each with a marker of its own. Names are drawn literally.

Covered: what `curves.py` and `report.py` hold. Not covered: interactive pictures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lab.report.curves import Curve, evaluation_curves, exploration_curves
from lab.report.report import ExperimentReport, SilosReport
from lab.report.results import Experiment

__all__ = ["draw_plots", "literal", "slug"]

_COLOURS: Final = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F",
)  # fmt: skip
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
_PER_PICTURE: Final = len(_COLOURS)
_DPI: Final = 110


def slug(name: str) -> str:
    """A file name's part: lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "experiment"


def draw_plots(
    experiment: Experiment, report: ExperimentReport, directory: Path, *, stem: str
) -> tuple[str, ...]:
    """Write the pictures of one experiment.

    The directory is created if absent. The file names below it are returned in reading order; they
    begin with ``stem``, distinct for each experiment.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    if any(score.macro for row in report.rows for score in row.scores):
        written.append(_macro(report, directory / f"{stem}-macro.png"))
    evaluation = {
        ("greedy" if temperature == 0 else f"temperature {temperature:g}"): curves
        for temperature, curves in evaluation_curves(experiment).items()
    }
    # A setting has one colour in every picture of curves.
    order = tuple(dict.fromkeys([row.row for row in report.rows] + list(experiment.settings)))
    if any(len(curve.rounds) > 1 for curves in evaluation.values() for curve in curves):
        written += _panels(
            evaluation, order, directory, f"{stem}-evaluation", "held-out success, macro (%)"
        )
    exploration: Mapping[str, list[Curve]] = exploration_curves(experiment)
    if exploration:
        written += _panels(
            exploration, order, directory, f"{stem}-exploration", "exploration success (%)"
        )
    for silos in report.silos:
        if any(found.candidate for found in silos.options):
            name = f"{stem}-silos-t{slug(f'{silos.temperature:g}')}.png"
            written.append(_silos(silos, directory / name))
    return tuple(written)


def _panels(
    panels: Mapping[str, Sequence[Curve]],
    order: Sequence[str],
    directory: Path,
    stem: str,
    label: str,
) -> list[str]:
    """One picture for each eight names of the order that have a curve."""
    drawn = {curve.name for curves in panels.values() for curve in curves}
    groups = [order[at : at + _PER_PICTURE] for at in range(0, len(order), _PER_PICTURE)]
    groups = [group for group in groups if drawn.intersection(group)]
    return [
        _picture(panels, group, directory / f"{stem}{'' if at == 0 else f'-{at + 1}'}.png", label)
        for at, group in enumerate(groups)
    ]


def _picture(
    panels: Mapping[str, Sequence[Curve]], names: Sequence[str], out: Path, label: str
) -> str:
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(max(4.8, 3.4 * columns), 2.7 * rows + 0.9), dpi=_DPI,
        sharey=True, squeeze=False, layout="constrained",
    )  # fmt: skip
    flat = [axes for line in grid for axes in line]
    handles: dict[str, Any] = {}
    for axes, (title, curves) in zip(flat, panels.items(), strict=False):
        for curve in curves:
            if curve.name in names:
                handles[curve.name] = _line(axes, curve, names.index(curve.name))
        axes.set_title(literal(title), fontsize=10)
        axes.set_xlabel("round", fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _light(axes)
    for axes in flat[len(panels) :]:
        axes.set_visible(False)
    for line in grid:
        line[0].set_ylabel(label, fontsize=9)
    shown = [name for name in names if name in handles]
    figure.legend(
        [handles[name] for name in shown], [literal(name) for name in shown],
        loc="outside lower center", ncols=min(4, len(shown)), fontsize=8, frameon=False,
    )  # fmt: skip
    return _save(figure, out)


def _line(axes: Any, curve: Curve, index: int) -> Any:
    colour, marker = _COLOURS[index], _MARKERS[index]
    if len(curve.rounds) == 1:
        # Judged once, like the base model: a level to compare with.
        axes.axhline(curve.mean[0], color=colour, linestyle=":", linewidth=1)
    every = max(1, len(curve.rounds) // 8)
    (line,) = axes.plot(
        curve.rounds, curve.mean, color=colour, marker=marker, markersize=4, markevery=every,
        linewidth=1.4,
    )  # fmt: skip
    axes.fill_between(curve.rounds, curve.low, curve.high, color=colour, alpha=0.13, linewidth=0)
    return line


def _macro(report: ExperimentReport, out: Path) -> str:
    from matplotlib import pyplot as plt

    rows = list(report.rows)
    figure, axes = plt.subplots(
        figsize=(6.6, 1.3 + 0.36 * len(rows)), dpi=_DPI, layout="constrained"
    )
    temperatures = sorted({s.temperature for row in rows for s in row.scores})
    for at, temperature in enumerate(temperatures):
        shift = 0.3 * (at - (len(temperatures) - 1) / 2)
        name = "greedy" if temperature == 0 else f"temperature {temperature:g}"
        colour, marker = _COLOURS[at % _PER_PICTURE], _MARKERS[at % _PER_PICTURE]
        for height, row in enumerate(rows):
            macro = next(s.macro for s in row.scores if s.temperature == temperature)
            if macro is None:
                continue
            rate, low, high = (
                100 * value
                for value in (macro.interval.rate, macro.interval.low, macro.interval.high)
            )
            axes.errorbar(
                [rate], [height + shift], xerr=[[rate - low], [high - rate]], color=colour,
                marker=marker, markersize=5, capsize=2, linewidth=1.2, linestyle="none",
                label=name,
            )  # fmt: skip
            seeds = [100 * one for one in macro.spread.rates]
            axes.plot(
                seeds, [height + shift] * len(seeds), "|", color=colour, alpha=0.6, markersize=9
            )
    axes.set_yticks(range(len(rows)), [literal(row.row) for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(
        "held-out success, macro (%), 95 % interval over tasks; | single seeds", fontsize=9
    )
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        unique.values(), unique.keys(), loc="outside upper center", ncols=len(unique), fontsize=8,
        frameon=False,
    )  # fmt: skip
    _light(axes)
    return _save(figure, out)


def _silos(silos: SilosReport, out: Path) -> str:
    from matplotlib import pyplot as plt

    shown = [found for found in silos.options if found.candidate][:_PER_PICTURE]
    figure, axes = plt.subplots(
        figsize=(max(5.6, 0.75 * len(silos.silos) + 1.5), 3.9), dpi=_DPI, layout="constrained"
    )
    for at, found in enumerate(shown):
        shift = 0.7 * ((at + 0.5) / len(shown) - 0.5)
        values = [100 * one.value for one in found.differences]
        axes.errorbar(
            [place + shift for place in range(len(values))],
            values,
            yerr=[
                [100 * (one.value - one.low) for one in found.differences],
                [100 * (one.high - one.value) for one in found.differences],
            ],
            color=_COLOURS[at], marker=_MARKERS[at], markersize=5, capsize=2, linewidth=1.2,
            linestyle="none", label=literal(found.option.name),
        )  # fmt: skip
    axes.axhline(0, color="#444444", linewidth=0.8)
    axes.set_xticks(
        range(len(silos.silos)),
        [
            literal(f"{silo}\n{family}")
            for silo, family in zip(silos.silos, silos.families, strict=True)
        ],
        fontsize=8,
    )
    axes.set_xlabel("silo", fontsize=9)
    axes.set_ylabel("own tasks: points above alone", fontsize=9)
    name = "greedy" if silos.temperature == 0 else f"temperature {silos.temperature:g}"
    axes.set_title(f"Against {literal(silos.alone.setting)}, {name}", fontsize=10)
    figure.legend(loc="outside lower center", ncols=min(3, len(shown)), fontsize=8, frameon=False)
    _light(axes)
    return _save(figure, out)


def _light(axes: Any) -> None:
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def literal(text: str) -> str:
    """Without matplotlib's mathematics."""
    return text.replace("$", r"\$")


def _save(figure: Any, out: Path) -> str:
    from matplotlib import pyplot as plt

    figure.savefig(out, metadata={"Software": None})
    plt.close(figure)
    return out.name
