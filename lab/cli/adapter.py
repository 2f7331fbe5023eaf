"""``chorale-lab adapter``: initial adapters, and adapters merged into full models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lab.cli.program import answering
from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed

__all__ = ["app"]

MUCH_LOST = 0.1
"""Relative error of a merge from which on it is warned of."""

app = typer.Typer(help="Initial adapters and merged models.", no_args_is_help=True)


@app.callback()
def adapter() -> None:
    """Initial adapters and merged models."""


@app.command()
def init(
    base: Annotated[Path, typer.Argument(help="Base model directory.", exists=True)],
    out: Annotated[Path, typer.Option(help="File to write, safetensors.")],
    rank: Annotated[int, typer.Option(help="LoRA rank.", min=1)] = 8,
    alpha: Annotated[float, typer.Option(help="LoRA alpha.", min=0.0)] = 16.0,
    seed: Annotated[int, typer.Option(help="Decides every entry.", min=0)] = 0,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="A layer that carries the adapter, as a plan's target names it; may be given "
            "several times. All linear layers if not given."
        ),
    ] = None,
    value_head: Annotated[
        bool,
        typer.Option("--value-head", help="With a value head, for a plan that federates one."),
    ] = False,
    output: Output = Format.TEXT,
) -> None:
    """Write φ_0, the adapter a run starts from: A random, B zero."""
    with answering(output):
        from evolution.errors import AdapterMismatchError
        from evolution.model.lora import initial_adapter
        from federation.adapter.encoding import encode_adapter
        from federation.adapter.target import ALL_LINEAR, target_of

        if not (base / "config.json").is_file():
            raise CommandError(
                f"{base} holds no config.json",
                code="base_model",
                exit_code=Exit.ARGUMENTS,
                next_step="name a model directory, or make one: chorale-lab base build --out DIR",
            )
        try:
            layers = target_of(target or ALL_LINEAR)
            made = initial_adapter(base, rank, alpha, seed, layers, value_head=value_head)
        except (ValueError, AdapterMismatchError) as error:
            raise CommandError(
                f"--target: {error}",
                code="target",
                exit_code=Exit.ARGUMENTS,
                next_step="name layers as the plan's [model] target does",
            ) from error
        out.write_bytes(encode_adapter(made))
        show_result(output, f"wrote {out}")
        say(f"next: chorale run start PLAN --adapter {out}")
        succeed(output, {"adapter": str(out), "rank": rank})


@app.command()
def merge(
    adapter_path: Annotated[
        Path,
        typer.Argument(
            metavar="ADAPTER", help="Exported directory, or a safetensors file.", exists=True
        ),
    ],
    base: Annotated[Path, typer.Option(help="Base model directory.", exists=True, file_okay=False)],
    out: Annotated[Path, typer.Option(help="Directory to write; absent or empty.")],
    alpha: Annotated[
        float | None, typer.Option(help="LoRA alpha, for a file; a directory says it.", min=0.0)
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Write a whole model, W + (alpha/r) B A, with the base's tokenizer and dtype.

    A base in 16 bits rounds: of a small adapter little may be left, and the command says so.
    """
    with answering(output):
        from lab.serving.merge import MergeError, read_adapter_at
        from lab.serving.merge import merge as merge_into

        try:
            written = merge_into(read_adapter_at(adapter_path, alpha=alpha), base, out)
        except MergeError as error:
            raise CommandError(
                str(error),
                code="merge",
                exit_code=Exit.SERVER,
                hint="the adapter must fit the base: chorale adapter export writes both names",
            ) from error
        lines = [f"wrote {written.directory}"]
        if written.error > MUCH_LOST:
            lines.append(
                f"WARNING: rounding to the base's dtype moved {written.moved:.0%} of the weights "
                f"that the adapter changes, and what was added is off by {written.error:.0%} of "
                "its size: serve base and adapter apart (vLLM, peft), or merge into a float32 base"
            )
        show_result(output, *lines)
        succeed(
            output,
            {
                "model": str(written.directory),
                "weights_moved": written.moved,
                "relative_error": written.error,
            },
        )
