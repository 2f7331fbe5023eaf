"""``chorale-lab``: base models, initial adapters and research runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lab.base.cli import app as base_app

__all__ = ["app", "main"]

app = typer.Typer(
    name="chorale-lab",
    help="Build base models and initial adapters, and run federations for research.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(base_app, name="base")
adapter_app = typer.Typer(help="Initial adapters.", no_args_is_help=True)
app.add_typer(adapter_app, name="adapter")


@adapter_app.callback()
def adapter() -> None:
    """Initial adapters."""


@adapter_app.command()
def init(
    base: Annotated[Path, typer.Argument(help="Base model directory.", exists=True)],
    out: Annotated[Path, typer.Option(help="File to write, safetensors.")],
    rank: Annotated[int, typer.Option(help="LoRA rank.", min=1)] = 8,
    alpha: Annotated[float, typer.Option(help="LoRA alpha.", min=0.0)] = 16.0,
    seed: Annotated[int, typer.Option(help="Decides every entry.", min=0)] = 0,
) -> None:
    """Write φ_0, the adapter a run starts from: A random, B zero."""
    from federation.adapter import encode_adapter
    from silo_agent.adapter.lora import initial_adapter

    out.write_bytes(encode_adapter(initial_adapter(base, rank, alpha, seed)))
    typer.echo(f"wrote {out}: chorale run start PLAN --adapter {out}", err=True)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
