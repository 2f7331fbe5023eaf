"""``chorale-silo deploy``: the files to run a silo's daemon with, filled in for this installation.

Covered: a systemd unit, its account and its directory. Not covered: installing them; the commands
that do are printed. Images, compose and Helm come with ``chorale deploy``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from silo_agent.cli.envelope import CommandError, Exit, Format, answering, say, show_result, succeed

__all__ = ["deploy_app"]

NAME: Final = "chorale-silo"
Output = Annotated[
    Format, typer.Option("--format", help="json prints one envelope on stdout.", show_default=True)
]

deploy_app = typer.Typer(
    help="Write the files that run the daemon as a service.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@deploy_app.callback()
def deploy() -> None:
    """Write the files that run the daemon as a service."""


@deploy_app.command("systemd")
def systemd(
    out: Annotated[
        Path, typer.Option(help="Directory for the files; no file in it is overwritten.")
    ],
    state_dir: Annotated[
        Path, typer.Option(help="The service's data directory; chorale-silo join fills it later.")
    ] = Path("/var/lib/chorale-silo"),
    user: Annotated[str, typer.Option(help="Account and group of the service.")] = NAME,
    executable: Annotated[
        Path | None,
        typer.Option(help="The chorale-silo that is to run; this installation's by default."),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Write a sandboxed unit for chorale-silo run, its account and its directory.

    The service may write its data directory, use the network and the GPUs, and nothing else.
    systemd-analyze security says how exposed it is. Base models must be where it sees them: below
    /srv or /var/lib, not in a home directory.
    """
    with answering(output):
        from federation.errors import DeploymentError
        from ops.deploy.files import write_files
        from ops.deploy.systemd import (
            Service,
            ServiceInstallation,
            account_steps,
            filled_files,
            installation_warnings,
            start_steps,
        )

        own = Path(sys.executable).with_name(NAME)
        command = (executable or own).absolute()
        # Another installation's Python is for whoever names it to know.
        runs = (command, Path(sys.base_prefix)) if executable is None else (command,)
        data = state_dir.absolute()
        service = Service(
            name=NAME,
            executable=f"/opt/chorale/bin/{NAME}",
            data_dir=f"/var/lib/{NAME}",
            account=NAME,
        )
        installation = ServiceInstallation(executable=command, data_dir=data, account=user)
        try:
            written = write_files(filled_files(service, installation), out)
        except DeploymentError as error:
            raise CommandError(
                str(error),
                code="deployment",
                exit_code=Exit.ARGUMENTS,
                next_step="chorale-silo deploy systemd --help; nothing was written",
            ) from error
        warnings = installation_warnings(*runs)
        steps = [
            *account_steps(NAME, out),
            f"sudo -u {user} {command} join --data {data} --base-model /srv/models/BASE",
            *start_steps(NAME),
        ]
        show_result(output, f"wrote {len(written)} files to {out}")
        say(*(f"warning: {warning}" for warning in warnings))
        say(*(f"next: {step}" for step in steps))
        succeed(
            output,
            {
                "kind": "systemd",
                "out": str(out),
                "files": [str(path) for path in written],
                "warnings": warnings,
                "next_steps": steps,
            },
        )
