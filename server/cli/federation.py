"""Founding a coordinator, and who belongs to its federation: init, invite, silo, roster, admin."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Annotated, Final

import typer

from server.cli.envelope import (
    DEFAULT_DATA,
    CommandError,
    Data,
    Exit,
    Format,
    Output,
    answering,
    say,
    succeed,
)

__all__ = ["admin_app", "init", "invite", "roster_app", "silo_app"]

silo_app = typer.Typer(help="Who joined.", no_args_is_help=True)
roster_app = typer.Typer(
    help="Who may take part in rounds: proposed here, signed by the root, published here.",
    no_args_is_help=True,
)
admin_app = typer.Typer(help="The admin's own certificate.", no_args_is_help=True)

_TTL: Final = re.compile(r"([0-9]{1,6})([smhd])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def init(
    *,
    federation: Annotated[
        str, typer.Option(help="Its name: lower-case letters, digits, dots and dashes.")
    ],
    host: Annotated[
        list[str], typer.Option(help="Name or address that silos dial; repeat for more names.")
    ],
    root_public_key: Annotated[Path, typer.Option(help="root.pub, from chorale root init.")],
    data: Data = DEFAULT_DATA,
    listen: Annotated[str, typer.Option(help="Mutual TLS, for silos and admins.")] = "0.0.0.0:7443",
    enrol_listen: Annotated[str, typer.Option(help="TLS, for joining.")] = "0.0.0.0:7444",
    probes_listen: Annotated[
        str, typer.Option(help="Plain HTTP: /livez, /readyz, /metrics.")
    ] = "127.0.0.1:7445",
    output: Output = Format.TEXT,
) -> None:
    """Make a coordinator: issuing CA, certificates, database, audit log.

    Only the root's public key comes here; its private key stays where chorale root init made it.
    """
    with answering(output):
        from server.founding import Founding, found

        config = found(
            data,
            Founding(
                federation=federation,
                hosts=tuple(host),
                root_public_key=root_public_key,
                listen=listen,
                enrol_listen=enrol_listen,
                probes_listen=probes_listen,
            ),
        )
        say(f"made the coordinator of {federation} in {data}")
        say(f"next: chorale-coordinator serve --data {data}")
        say(f"then: chorale invite SILO --data {data}")
        succeed(
            output,
            {
                "data_dir": str(data),
                "federation": config.federation,
                "coordinator_address": config.dial_coordinator,
                "enrol_address": config.dial_enrolment,
            },
        )


def invite(
    silo: Annotated[str, typer.Argument(help="Its id: lower-case letters, digits and dashes.")],
    ttl: Annotated[str, typer.Option(help="How long it may be used: 30m, 24h, 7d.")] = "24h",
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Make the one line that lets one silo join once.

    Send it over a channel you trust: it holds the secret, and pins the CA and the root.
    """
    with answering(output):
        matched = _TTL.fullmatch(ttl)
        if matched is None:
            raise CommandError(
                f"--ttl {ttl!r} is not a duration like 30m, 24h or 7d",
                code="arguments",
                exit_code=Exit.ARGUMENTS,
            )
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect

        ttl_s = int(matched[1]) * _UNIT_S[matched[2]]
        with connect(data) as stub:
            line = stub.CreateInvite(
                admin_pb2.CreateInviteRequest(silo_id=silo, ttl_s=ttl_s), timeout=CALL_TIMEOUT_S
            ).invite
        say(f"at the silo, within {ttl}, once:")
        if output is Format.TEXT:
            # The invite is the result, so it alone is on stdout.
            typer.echo(f"chorale-silo join '{line}'")
        succeed(output, {"invite": line, "silo_id": silo, "ttl_s": ttl_s})


@silo_app.command("list")
def list_silos(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Who was invited, joined, or is in the roster, and when each was last heard of."""
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect, plain

        with connect(data) as stub:
            silos = stub.ListSilos(admin_pb2.ListSilosRequest(), timeout=CALL_TIMEOUT_S).silos
        for silo in silos:
            say(
                f"{silo.silo_id:<24} {silo.state:<9} last seen {_when(silo.last_seen_unix_s):<20} "
                f"certificate until {_when(silo.certificate_expiry_unix_s):<20} "
                f"{', '.join(silo.families)}"
            )
        if not silos:
            say(f"nobody yet: chorale invite SILO --data {data}")
        succeed(output, {"silos": [plain(silo) for silo in silos]})


@roster_app.command("propose")
def propose(
    out: Annotated[Path, typer.Option("--out", help="Where the unsigned roster goes.")] = Path(
        "roster.json"
    ),
    colluding: Annotated[
        int, typer.Option(help="How many silos may collude with the coordinator.", min=1)
    ] = 1,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Write the roster of everyone who joined, for the root to sign.

    --colluding is c: a sum is released only if it stays safe when that many silos work with the
    coordinator. It is fixed by the root's signature; no run can lower it.
    """
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect
        from server.roster_file import describe_roster, read_roster, write_roster

        with connect(data) as stub:
            message = stub.ProposeRoster(
                admin_pb2.ProposeRosterRequest(colluding=colluding), timeout=CALL_TIMEOUT_S
            ).roster
        write_roster(out, message)
        say(describe_roster(read_roster(out).roster))
        say(f"next, where the root key is: chorale root sign {out} --dir ROOT_DIR")
        succeed(
            output,
            {"roster": str(out), "epoch": message.epoch, "silos": len(message.entries)},
        )


@roster_app.command("publish")
def publish(
    roster: Annotated[Path, typer.Argument(help="From chorale root sign.")],
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Make a roster that the root signed the current one."""
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect
        from server.roster_file import read_roster, roster_message

        message = roster_message(read_roster(roster))
        if not message.signature:
            raise CommandError(
                f"{roster} is not signed",
                code="roster_unsigned",
                exit_code=Exit.ARGUMENTS,
                next_step=f"chorale root sign {roster} --dir ROOT_DIR, where the root key is",
            )
        with connect(data) as stub:
            stub.PublishRoster(
                admin_pb2.PublishRosterRequest(roster=message), timeout=CALL_TIMEOUT_S
            )
        say(f"published: epoch {message.epoch}, {len(message.entries)} silos")
        say("next: chorale run plan PLAN, then chorale run start PLAN --adapter FILE")
        succeed(output, {"epoch": message.epoch, "silos": len(message.entries)})


@admin_app.command("renew")
def renew(
    name: Annotated[str, typer.Option(help="Who it is for; the audit log says it.")] = "admin",
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Issue a new admin certificate for a day. Needs the data directory's CA key."""
    with answering(output):
        from server.config import CoordinatorConfig
        from server.founding import renew_admin

        expiry = renew_admin(CoordinatorConfig.load(data), name)
        say(f"{name} is admin until {_when(expiry)}")
        succeed(output, {"name": name, "certificate_expiry_unix_s": expiry})


def _when(unix_s: int) -> str:
    if unix_s == 0:
        return "never"
    return dt.datetime.fromtimestamp(unix_s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
