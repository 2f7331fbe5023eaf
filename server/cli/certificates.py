"""``chorale admin`` and ``chorale ca``: operators' certificates, and the CA of them all."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ops.cli.envelope import (
    CommandError,
    Exit,
    Format,
    Output,
    say,
    show_result,
    succeed,
)
from ops.cli.moment import duration_s, shown
from server.cli.program import DEFAULT_DATA, Data, answering

__all__ = ["admin_app", "ca_app"]

admin_app = typer.Typer(help="Certificates of admins and viewers.")
ca_app = typer.Typer(help="The CA that issues every certificate here.", no_args_is_help=True)


class OperatorRole(StrEnum):
    """What the certificate allows."""

    ADMIN = "admin"
    VIEWER = "viewer"


@admin_app.callback()
def group() -> None:
    """Certificates of admins and viewers."""


@admin_app.command("renew")
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


@ca_app.command("rotate")
def rotate(
    overlap: Annotated[
        str, typer.Option(help="How long the present CA is trusted too: 1h to 90d.")
    ] = "30d",
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Make a new issuing CA; the one before is trusted until the overlap ends.

    Silos that are up learn of it within a minute and renew by themselves. A silo that stays away
    for longer than the overlap has to join again with a new invite.
    """
    with answering(output):
        overlap_s = duration_s(overlap, "--overlap")
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect

        with connect(data) as stub:
            made = stub.RotateCa(
                admin_pb2.RotateCaRequest(overlap_s=overlap_s), timeout=CALL_TIMEOUT_S
            )
        until = shown(made.overlap_until_unix_s)
        show_result(output, f"a new CA issues from now on: SHA-256 {made.ca_sha256.hex()}")
        show_result(
            output,
            f"the one before is trusted until {until}; the server's certificate changes then",
        )
        say("next: chorale admin renew, so that your own certificate is of the new CA")
        say("watch that every silo renews: chorale silo list")
        succeed(
            output,
            {
                "ca_sha256": made.ca_sha256.hex(),
                "overlap_until_unix_s": made.overlap_until_unix_s,
            },
        )


@ca_app.command("show")
def show(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Which CAs are trusted now. Reads the data directory; nothing needs to run."""
    with answering(output):
        from server.config import CoordinatorConfig
        from server.pki.authority import not_after_unix_s
        from server.pki.trust import Trust

        config = CoordinatorConfig.load(data)
        trust = Trust.load(config.paths.pki, passphrase=config.ca_passphrase())
        issuing, retiring = trust.issuing, trust.retiring
        expiry = not_after_unix_s(issuing.certificate)
        show_result(output, f"issuing   {issuing.sha256.hex()} until {shown(expiry)}")
        answer: dict[str, object] = {
            "issuing": {"sha256": issuing.sha256.hex(), "expiry_unix_s": expiry},
            "retiring": None,
        }
        if retiring is not None:
            digest = retiring.authority.sha256.hex()
            show_result(output, f"retiring  {digest} trusted until {shown(retiring.until_unix_s)}")
            answer["retiring"] = {"sha256": digest, "trusted_until_unix_s": retiring.until_unix_s}
        succeed(output, answer)
