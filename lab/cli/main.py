"""``chorale-lab``: base models, initial adapters, research runs and their reports."""

from __future__ import annotations

import typer

from lab.base.cli import app as base_app
from lab.cli.adapter import app as adapter_app
from lab.cli.report import report
from lab.cli.run import run

__all__ = ["app", "main"]

app = typer.Typer(
    name="chorale-lab",
    help="Build base models and initial adapters, run federations for research, report on them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(base_app, name="base")
app.add_typer(adapter_app, name="adapter")
app.command()(run)
app.command()(report)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
