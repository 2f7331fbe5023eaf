"""``chorale-lab panel``: what the tuning of the panel chose, and what the panel says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lab.cli.program import answering
from ops.cli.envelope import CommandError, Exit, Format, Output, show_result, succeed

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Who says whom a round asks: the panel of agentic.md.")


@app.callback()
def panel() -> None:
    """Who says whom a round asks: the panel of agentic.md."""


@app.command("chosen")
def show_chosen(
    tuning: Annotated[Path, typer.Argument(help="With results.jsonl of agentic-tuning.toml.")],
    output: Output = Format.TEXT,
) -> None:
    """Say which constant and which schedule the tuning chose, and the constant's bound.

    One name a line, for --only of chorale-lab run.

    Exit code 1 if the tuning is not finished.
    """
    with answering(output):
        from lab.report.errors import ReportError
        from lab.report.panel import BOUND, CANDIDATES, chosen, load_panel

        try:
            found = load_panel(tuning)
            constant, schedule = (chosen(found, kind) for kind in CANDIDATES)
        except ReportError as error:
            raise CommandError(str(error), code="results", exit_code=Exit.SERVER) from error
        names = [constant, schedule, f"{BOUND}{constant.removeprefix(CANDIDATES[0])}"]
        show_result(output, *names)
        succeed(output, {"chosen": names})


@app.command("report")
def report_panel(
    directory: Annotated[Path, typer.Argument(help="With results.jsonl of agentic.toml.")],
    tuning: Annotated[Path, typer.Option(help="With results.jsonl of agentic-tuning.toml.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write; standard output if not given.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="PNG to draw: differences to the chosen constant.")
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Tables with intervals, every decision made again, and the line of figures.

    What of the experiment's file did not run is named.

    Exit code 1 if a decision does not come out as it was recorded.
    """
    with answering(output):
        from lab.experiment.config import load_experiment
        from lab.experiment.errors import ExperimentError
        from lab.experiment.results import SNAPSHOT
        from lab.report.errors import ReportError
        from lab.report.panel import CANDIDATES, chosen, load_panel, render_panel
        from lab.report.panel_picture import draw_panel

        try:
            planned = load_experiment(directory / SNAPSHOT)
            text = render_panel(
                directory,
                tuning,
                planned={row.name: planned.seeds for row in planned.setting},
            )
        except (ExperimentError, ReportError) as error:
            raise CommandError(str(error), code="results", exit_code=Exit.SERVER) from error
        if out is None:
            show_result(output, text)
        else:
            out.write_text(text, encoding="utf-8")
            show_result(output, f"wrote {out}")
        if picture is not None:
            draw_panel(load_panel(directory), chosen(load_panel(tuning), CANDIDATES[0]), picture)
            show_result(output, f"drew {picture}")
        if '"replay_equal": true' not in text:
            raise CommandError(
                "decisions do not follow from what was recorded, or are missing",
                code="decision_differs",
                exit_code=Exit.SERVER,
            )
        succeed(output, {"out": None if out is None else str(out), "replay_equal": True})
