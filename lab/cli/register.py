"""``chorale-lab register``: what an experiment claims to find out, written down before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from lab.cli.program import answering
from ops.cli.envelope import CommandError, Exit, Format, Output, show_result, succeed

__all__ = ["register", "registration_told"]


def register(
    file: Annotated[Path, typer.Argument(help="What is claimed, TOML.", dir_okay=False)],
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write, to be committed; else FILE with the ending json.",
            show_default=False,
        ),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Write hypotheses, targets, panels, seeds and stopping rule into a file that holds one to it.

    FILE names an experiment's file and says what is claimed of it. The registration has the digests
    of that file, of every run and of every panel, and one of its own. Commit it before the first
    run; then give it to chorale-lab run and chorale-lab report as --registration.

    \b
    chorale-lab register claims.toml
    chorale-lab run experiment.toml --out RESULTS --registration claims.json
    chorale-lab report RESULTS --registration claims.json

    What is registered is never written over. Exit code 1 if the file is wrong.
    """  # noqa: D301  # click reads the backspace: leave the block as it is
    with answering(output), registration_told():
        from lab.evidence.register import register as resolved
        from lab.evidence.registration import write_registration
        from lab.experiment.errors import ExperimentError

        try:
            made = resolved(file)
        except ExperimentError as error:
            raise CommandError(
                str(error),
                code="experiment",
                exit_code=Exit.SERVER,
                hint="the text names what to correct in the experiment's file",
            ) from error
        path = out or file.with_suffix(".json")
        done = "wrote" if write_registration(path, made) else "registered already:"
        show_result(
            output,
            f"{done} {path}",
            f"digest {made.digest}",
            f"{len(made.hypothesis)} hypotheses, {made.stopping.runs} runs of "
            f"{', '.join(made.primary)} at seeds {', '.join(map(str, made.seeds))}",
            *(
                f"panel {name}: {panel.tasks} tasks, sha256 {panel.sha256}"
                for name, panel in made.panels.items()
            ),
        )
        succeed(output, {"out": str(path), "digest": made.digest})


@contextmanager
def registration_told() -> Iterator[None]:
    """What a wrong registration, or a departure from one, is answered with."""
    from lab.evidence.errors import RegistrationError

    try:
        yield
    except RegistrationError as error:
        raise CommandError(
            str(error),
            code="registration",
            exit_code=Exit.SERVER,
            hint="do what was registered, or register anew under another name and say so",
        ) from error
