"""``chorale admin``: certificates of the people who run the federation."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from server.cli.moment import shown
from server.cli.program import DEFAULT_DATA, Data, answering

__all__ = ["app"]

app = typer.Typer(help="Certificates of admins and viewers.")


class OperatorRole(StrEnum):
    """What the certificate allows."""

    ADMIN = "admin"
    VIEWER = "viewer"


@app.callback()
def group() -> None:
    """Certificates of admins and viewers."""


@app.command("renew")
def renew(
    name: Annotated[str, typer.Option(help="Who it is for; the audit log says it.")] = "admin",
    role: Annotated[
        OperatorRole, typer.Option(help="A viewer may read everything and change nothing.")
    ] = OperatorRole.ADMIN,
    out: Annotated[
        Path | None,
        typer.Option(help="A directory for somebody else, who uses it as --data. For viewers."),
    ] = None,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Issue a certificate for a day. Needs the data directory's CA key."""
    with answering(output):
        if role is OperatorRole.VIEWER and out is None:
            raise CommandError(
                "a viewer's certificate needs --out DIR: in the data directory it would take the "
                "admin's place",
                code="arguments",
                exit_code=Exit.ARGUMENTS,
                next_step=f"chorale admin renew --role viewer --name {name} --out DIR",
            )
        from server.config import CoordinatorConfig
        from server.site.founding import renew_admin

        expiry = renew_admin(CoordinatorConfig.load(data), name, role=role.value, out=out)
        show_result(output, f"{name} is {role.value} until {shown(expiry)}")
        if out is not None:
            say(f"hand over {out}, over a channel you trust: its owner runs chorale --data DIR")
        succeed(
            output,
            {
                "name": name,
                "role": role.value,
                "certificate_expiry_unix_s": expiry,
                "out": None if out is None else str(out),
            },
        )
