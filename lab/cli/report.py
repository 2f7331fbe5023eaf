"""``chorale-lab report``: what an experiment's results say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["report"]


def report(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="With results.jsonl; pictures go to DIR/plots of the first."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="File to write; standard output if not given.")
    ] = None,
    output: Annotated[
        Literal["md", "json"], typer.Option("--format", help="Markdown, or every figure as JSON.")
    ] = "md",
    plots: Annotated[
        Path | None, typer.Option(help="Where pictures go instead; --out links them from there.")
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE=SETTING", help="Which setting is pretrained, local, ..."),
    ] = None,
    reference: Annotated[
        str,
        typer.Option(help="Setting, or row, that the others are tested against; else fedse."),
    ] = "",
    label: Annotated[str, typer.Option(help="Only what was judged on tasks of this label.")] = "",
    registration: Annotated[
        Path | None,
        typer.Option(
            help="What was registered (chorale-lab register): said first, hypothesis by "
            "hypothesis, with whatever departs. If not given, that which DIR is held to.",
            show_default=False,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="Setting among which a silo's best is chosen; repeat for more."),
    ] = None,
) -> None:
    """Tables, paired tests, curves and the summary line of one or more experiments.

    Intervals over tasks speak of the adapters that were trained; those over seeds of another run.
    No interval speaks of both at once.
    Experiments that differ only in seeds and in what was judged are also taken together.
    """
    from lab.evidence.errors import EvidenceError
    from lab.evidence.register import registration_of
    from lab.report.document import write_report
    from lab.report.errors import ReportError
    from lab.report.report import Choices

    roles = dict(part.split("=", 1) for part in role or () if "=" in part)
    if len(roles) != len(role or ()):
        raise typer.BadParameter("--role takes ROLE=SETTING, each role once")
    try:
        text = write_report(
            directories,
            Choices(roles=roles, reference=reference, options=tuple(option or ())),
            output=output,
            plots=plots or directories[0] / "plots",
            out=out,
            label=label,
            registration=registration_of(directories, registration),
        )
    except (EvidenceError, ReportError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    if out is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"wrote {out}")
