"""How ``deploy`` of both programs answers: files in a directory, and what installs them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.envelope import CommandError, Exit, Format, say, show_result, succeed

if TYPE_CHECKING:
    from ops.deploy.systemd import Service

__all__ = ["Out", "User", "answer_written", "refusals", "write_service"]

Out = Annotated[
    Path, typer.Option("--out", help="Directory for the files; no file in it is overwritten.")
]
User = Annotated[str, typer.Option(help="Account and group of the service.")]


def write_service(
    output: Format,
    service: Service,
    *,
    out: Path,
    data: Path,
    user: str,
    executable: Path | None,
    found: Callable[[Path, Path], str],
) -> None:
    """Fill in a daemon's unit and say how it is installed.

    What is run is this installation's own where no executable is given. From the executable and the
    data directory, ``found`` gives the command that makes the latter's content; it runs as the
    service's account. ``user`` names that account and its group.
    """
    from ops.deploy.files import write_files
    from ops.deploy.systemd import (
        ServiceInstallation,
        account_steps,
        backup_steps,
        filled_files,
        installation_warnings,
        start_steps,
    )

    command = (executable or Path(sys.executable).with_name(service.name)).absolute()
    # Another installation's Python is for whoever names it to know.
    runs = (command, Path(sys.base_prefix)) if executable is None else (command,)
    data = data.absolute()
    wanted = ServiceInstallation(executable=command, data_dir=data, account=user)
    written = write_files(filled_files(service, wanted), out)
    answer_written(
        output,
        kind="systemd",
        out=out,
        written=written,
        warnings=installation_warnings(*runs),
        next_steps=[
            *account_steps(service.name, out),
            f"sudo -u {user} {found(command, data)}",
            *start_steps(service.name),
            *(backup_steps(out) if service.backup else ()),
        ],
    )


def answer_written(
    output: Format,
    *,
    kind: str,
    out: Path,
    written: Sequence[Path],
    next_steps: Sequence[str],
    warnings: Sequence[str] = (),
) -> None:
    """Say what was written, what is wrong with it, and what installs it."""
    show_result(output, f"wrote {len(written)} files to {out}")
    say(*(f"warning: {warning}" for warning in warnings))
    say(*(f"next: {step}" for step in next_steps))
    succeed(
        output,
        {
            "kind": kind,
            "out": str(out),
            "files": [os.fspath(path) for path in written],
            "warnings": list(warnings),
            "next_steps": list(next_steps),
        },
    )


@contextmanager
def refusals(command: str) -> Iterator[None]:
    """Say which command's help tells what to do about files that are not written."""
    from federation.errors import DeploymentError

    try:
        yield
    except DeploymentError as error:
        raise CommandError(
            str(error),
            code="deployment",
            exit_code=Exit.ARGUMENTS,
            next_step=f"{command} --help; nothing was written",
        ) from error
