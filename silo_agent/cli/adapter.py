"""``chorale-silo adapter export``: what this silo chose to serve, for its own model server."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from silo_agent.cli.program import DEFAULT_DATA, Data, answering

__all__ = ["adapter_app"]

adapter_app = typer.Typer(
    help="The adapter that this silo chose to serve. It is private data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@adapter_app.callback()
def adapter() -> None:
    """Keep ``export`` a command of a group."""


@adapter_app.command("export")
def export(
    run: Annotated[str, typer.Argument(help="The run's id, as `chorale-silo status` shows it.")],
    out: Annotated[
        Path, typer.Option(help="A new directory, an empty one, or one of an earlier export.")
    ],
    family: Annotated[
        str | None,
        typer.Option(
            help="The adapter for this family of environments; without it, the one for all.",
            show_default=False,
        ),
    ] = None,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Write the adapter that `status` recommends, in peft's form: peft and vLLM load it.

    With something of the silo's own in it the directory is as private as the data that it was
    trained on. Nothing is sent, and nothing charged. The guard has not judged it.
    """
    with answering(output):
        from federation.adapter.export import ExportError
        from silo_agent.config import SiloConfig
        from silo_agent.local_work.chosen_adapter import export_chosen

        try:
            found = export_chosen(SiloConfig.load(data), run_id=run, family=family, out_dir=out)
        except ExportError as error:
            raise CommandError(
                str(error),
                code="export",
                exit_code=Exit.ARGUMENTS,
                next_step="give --out a new directory, an empty one, or one of an earlier export",
            ) from error
        show_result(
            output,
            f"wrote {out}: {found.adapter} of round {found.round}, rank {found.rank}, "
            f"adapter {found.adapter_sha256[:12]}",
        )
        if found.private:
            say("note: it is private data, trained without noise: no epsilon covers giving it away")
        succeed(output, {"out": str(out), **asdict(found)})
