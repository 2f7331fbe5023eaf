"""``chorale-lab``: base models, initial adapters, research runs and their reports."""

from __future__ import annotations

import typer

from lab.base.cli import app as base_app
from lab.cli.adapter import app as adapter_app
from lab.cli.report import report
from lab.cli.run import run
from server.cli.envelope import program, run_app

__all__ = ["app", "main"]

app = typer.Typer(
    name="chorale-lab",
    help="Build base models and initial adapters, run federations for research, report on them.",
    callback=program,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(base_app, name="base")
app.add_typer(adapter_app, name="adapter")
app.command()(run)
app.command()(report)


def main() -> None:
    """Run the command line; wrong arguments exit with code 4."""
    run_app(app)


if __name__ == "__main__":
    main()
