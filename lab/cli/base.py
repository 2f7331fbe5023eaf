"""``chorale-lab base``: build the small base model.

Results go to standard output, progress to standard error. PyTorch is imported by the command, so
that asking for help stays quick.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lab.cli.program import answering
from ops.cli.envelope import Format, Output, show_result, succeed

if TYPE_CHECKING:
    from lab.base.build import BuildProgress

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="The small base model that comes with Chorale.")


@app.callback()
def base() -> None:
    """The small base model that comes with Chorale."""


@app.command()
def build(
    out: Annotated[Path, typer.Option(help="Directory to write the model to.", file_okay=False)],
    seed: Annotated[int, typer.Option(help="Decides everything random.", min=0)] = 0,
    steps: Annotated[
        int | None, typer.Option(help="Training steps; the shipped model's when absent.", min=1)
    ] = None,
    evaluation_tasks: Annotated[
        int, typer.Option(help="Held-out tasks per environment to measure success on.", min=0)
    ] = 200,
    output: Output = Format.TEXT,
) -> None:
    """Build the model from a seed; the same seed gives the same weights on the same machine."""
    with answering(output):
        from lab.base.build import DEFAULT_STEPS, build_base

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as bars:
            shown = {
                phase: bars.add_task(phase, total=1.0, start=False)
                for phase in ("demonstrations", "training", "measuring")
            }

            def report(state: BuildProgress) -> None:
                loss = "" if state.loss is None else f"  loss {state.loss:.3f}"
                bars.start_task(shown[state.phase])
                bars.update(
                    shown[state.phase], completed=state.done, description=f"{state.phase}{loss}"
                )

            record = build_base(
                out,
                seed=seed,
                steps=DEFAULT_STEPS if steps is None else steps,
                evaluation_tasks=evaluation_tasks,
                progress=report,
            )
        show_result(output, *json.dumps(record, indent=2, sort_keys=True).splitlines())
        succeed(output, record)
