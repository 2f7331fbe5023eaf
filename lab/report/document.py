"""One report, from directories with results to a text and its pictures.

Covered: Markdown, which links the pictures, and JSON, which has every figure. Not covered: HTML.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from lab.evidence.registration import Registration
from lab.evidence.verdict_picture import draw_judgement
from lab.evidence.verdicts import Judgement, judged_by, render_judgement
from lab.report.markdown import render
from lab.report.plots import draw_plots, slug
from lab.report.pooled import pooled
from lab.report.report import Choices, Report, build_report
from lab.report.results import Results, load_results
from lab.report.summary import summary

__all__ = ["write_report"]


def write_report(
    directories: Sequence[Path],
    choices: Choices,
    *,
    output: Literal["md", "json"],
    plots: Path,
    out: Path | None,
    label: str = "",
    registration: Registration | None = None,
) -> str:
    """Read, work out, draw and write; returns the text.

    Each directory holds `results.jsonl`. With a label everything is about its tasks alone. No file
    is written where ``out`` is None; Markdown links pictures relative to it. What was registered
    comes first, and is about all tasks whatever the label is.

    Raises:
        ReportError: The results cannot be read, or contradict each other.
    """
    results = load_results(directories)
    judgement = None if registration is None else judged_by(registration, results)
    if label:
        results = results.of_label(label)
    report = _with_plots(results, build_report(results, choices), plots)
    if judgement is not None:
        draw_judgement(judgement, plots / _picture_of(judgement))
    figures = summary(report, results, choices)
    over_experiments = pooled(report, results)
    if output == "json":
        content = {
            **_plain(asdict(report)),
            "pooled": [_plain(asdict(found)) for found in over_experiments],
            "summary": figures,
        }
        if judgement is not None:
            content["registration"] = _plain(asdict(judgement))
        text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"
    else:
        start = Path.cwd() if out is None else out.resolve().parent
        linked = quote(Path(os.path.relpath(plots.resolve(), start)).as_posix())
        text = render(report, figures, over_experiments, plots=linked)
        if judgement is not None:
            image = f"![each difference beside its target]({linked}/{_picture_of(judgement)})"
            text = "\n\n".join([*render_judgement(judgement), image, text])
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    return text


def _picture_of(judgement: Judgement) -> str:
    return f"registered-{slug(judgement.name)}.png"


def _with_plots(results: Results, report: Report, plots: Path) -> Report:
    drawn, stems = [], set[str]()
    for experiment, found in zip(results.experiments, report.experiments, strict=True):
        stem = base = slug(found.name)
        number = 1
        while stem in stems:
            number += 1
            stem = f"{base}-{number}"
        stems.add(stem)
        drawn.append(replace(found, plots=draw_plots(experiment, found, plots, stem=stem)))
    return replace(report, experiments=tuple(drawn))


def _plain(value: Any) -> Any:
    """For JSON, which has no NaN: null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
