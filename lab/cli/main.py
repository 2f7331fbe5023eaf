"""``chorale-lab``: base models, initial adapters, research runs and their reports."""

from __future__ import annotations

from lab.cli.adapter import app as adapter_app
from lab.cli.base import app as base_app
from lab.cli.decisions import replay_decisions
from lab.cli.diagnose import diagnose
from lab.cli.panel import app as panel_app
from lab.cli.partition import app as partition_app
from lab.cli.power import power
from lab.cli.register import register
from lab.cli.report import report
from lab.cli.run import run
from ops.cli.envelope import command_line, run_app

__all__ = ["app", "main"]

app = command_line(
    name="chorale-lab",
    help_text=(
        "Build base models and initial adapters, run federations for research, report on them."
    ),
)
app.add_typer(base_app, name="base")
app.add_typer(adapter_app, name="adapter")
app.add_typer(partition_app, name="partition")
app.add_typer(panel_app, name="panel")
app.command()(run)
app.command()(diagnose)
app.command()(report)
app.command()(power)
app.command()(register)
app.command("replay-decisions")(replay_decisions)


def main() -> None:
    """Run the command line; wrong arguments exit with code 4."""
    run_app(app)


if __name__ == "__main__":
    main()
