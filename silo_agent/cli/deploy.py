"""``chorale-silo deploy``: the files to run a silo's daemon with, filled in for this installation.

Covered: a systemd unit, its account and its directory. Not covered: installing them; the commands
that do are printed. Images, compose and Helm come with ``chorale deploy``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from ops.cli.deploy import Out, User, refusals, write_service
from ops.cli.envelope import Format, Output
from silo_agent.cli.program import answering

__all__ = ["deploy_app"]

NAME: Final = "chorale-silo"

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
    out: Out,
    state_dir: Annotated[
        Path, typer.Option(help="The service's data directory; chorale-silo join fills it later.")
    ] = Path("/var/lib/chorale-silo"),
    user: User = NAME,
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
    with answering(output), refusals("chorale-silo deploy systemd"):
        from ops.deploy.systemd import Service

        service = Service(
            name=NAME,
            executable=f"/opt/chorale/bin/{NAME}",
            data_dir=f"/var/lib/{NAME}",
            account=NAME,
        )
        write_service(
            output,
            service,
            out=out,
            data=state_dir,
            user=user,
            executable=executable,
            found=lambda command, data: (
                f"{command} join --data {data} --base-model /srv/models/BASE"
            ),
        )
