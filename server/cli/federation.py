"""Founding a coordinator and its federation: init, federation, invite, roster."""

from __future__ import annotations

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

__all__ = ["federation_app", "init", "invite", "roster_app"]

federation_app = typer.Typer(
    help="The one federation of this coordinator, and its terms.", no_args_is_help=True
)
roster_app = typer.Typer(
    help="Who may take part in rounds: proposed here, signed by the root, published here.",
    no_args_is_help=True,
)


def init(
    *,
    host: Annotated[
        list[str], typer.Option(help="Name or address that silos dial; repeat for more names.")
    ],
    root_public_key: Annotated[
        Path,
        typer.Option(
            "--root-certificate", "--root-public-key", help="root.pub, from chorale root init."
        ),
    ],
    data: Annotated[
        Path, typer.Option("--dir", "--data", envvar="CHORALE_DATA", help="Directory to make.")
    ] = DEFAULT_DATA,
    federation: Annotated[
        str | None,
        typer.Option(help="Create the federation of this name too, with the default terms."),
    ] = None,
    listen: Annotated[str, typer.Option(help="Mutual TLS, for silos and admins.")] = "0.0.0.0:7443",
    enrol_listen: Annotated[str, typer.Option(help="TLS, for joining.")] = "0.0.0.0:7444",
    probes_listen: Annotated[
        str, typer.Option(help="Plain HTTP: /livez, /readyz, /metrics.")
    ] = "127.0.0.1:7445",
    ca_passphrase_file: Annotated[
        Path | None,
        typer.Option(help="Its first line encrypts the CA's key; the daemon needs it, too."),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Make a coordinator: issuing CA, certificates, database, audit log.

    Only the root's public key comes here; its private key stays where chorale root init made it.
    """
    with answering(output):
        from server.site.founding import Founding, found

        config = found(
            data,
            Founding(
                federation=federation,
                hosts=tuple(host),
                root_public_key=root_public_key,
                listen=listen,
                enrol_listen=enrol_listen,
                probes_listen=probes_listen,
                ca_passphrase_file=ca_passphrase_file,
            ),
        )
        show_result(
            output, f"made a coordinator in {data}; its admin's certificate is good for a day"
        )
        say(f"next: chorale-coordinator serve --data {data}")
        if federation is None:
            say(f"then: chorale federation create NAME --data {data}")
        else:
            say(f"then: chorale invite {federation} SILO --data {data}")
        succeed(
            output,
            {
                "data_dir": str(data),
                "federation": federation,
                "coordinator_address": config.dial_coordinator,
                "enrol_address": config.dial_enrolment,
            },
        )


@federation_app.command("create")
def create(
    *,
    name: Annotated[
        str, typer.Argument(help="Lower-case letters, digits, dots and dashes, at most 63.")
    ],
    min_silos: Annotated[
        int, typer.Option(help="Fewest silos that a roster may have.", min=3, max=200)
    ] = 3,
    colluding: Annotated[
        int,
        typer.Option(
            help="c: how many silos may work with the coordinator, at least.", min=1, max=200
        ),
    ] = 1,
    epsilon_cap: Annotated[
        float | None,
        typer.Option(help="Largest epsilon_cap that a plan may state; plans decide if not given."),
    ] = None,
    delta: Annotated[
        float, typer.Option(help="Largest delta that a plan may state beside --epsilon-cap.")
    ] = 1e-5,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Create the federation: its name, and the terms that no roster and no run may pass.

    A coordinator has one federation, and its terms stay. They are in the audit log, and a silo's
    own policy is asked besides: the stricter of the two counts.
    """
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect

        with connect(data) as stub:
            stub.CreateFederation(
                admin_pb2.CreateFederationRequest(
                    name=name,
                    min_silos=min_silos,
                    colluding=colluding,
                    epsilon_cap=epsilon_cap,
                    delta=delta,
                ),
                timeout=CALL_TIMEOUT_S,
            )
        show_result(
            output, f"created {name}: rosters of {min_silos} silos or more, c = {colluding} or more"
        )
        say(f"next: chorale invite {name} SILO, for each silo")
        succeed(
            output,
            {
                "federation": name,
                "min_silos": min_silos,
                "colluding": colluding,
                "epsilon_cap": epsilon_cap,
                "delta": delta,
            },
        )


@federation_app.command("show")
def show(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """The federation's name and terms."""
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect, plain

        with connect(data) as stub:
            found = stub.GetFederation(admin_pb2.GetFederationRequest(), timeout=CALL_TIMEOUT_S)
        show_result(output, f"{found.name}, since {shown(found.created_unix_s)}")
        show_result(
            output, f"rosters: at least {found.min_silos} silos, c of at least {found.colluding}"
        )
        if found.HasField("epsilon_cap"):
            show_result(
                output,
                f"plans: epsilon_cap {found.epsilon_cap:g} at delta {found.delta:g}, at most",
            )
        else:
            show_result(output, "plans: no cap; each silo's own policy decides")
        succeed(output, plain(found))


def invite(
    federation: Annotated[str, typer.Argument(help="From chorale federation create.")],
    silo: Annotated[str, typer.Argument(help="Its id: lower-case letters, digits and dashes.")],
    ttl: Annotated[str, typer.Option(help="How long it may be used: 30m, 24h, 7d.")] = "24h",
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Make the one line that lets one silo join once.

    Send it over a channel you trust: it holds the secret, and pins the CA and the root.
    """
    with answering(output):
        ttl_s = duration_s(ttl, "--ttl")
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect

        with connect(data) as stub:
            line = stub.CreateInvite(
                admin_pb2.CreateInviteRequest(silo_id=silo, ttl_s=ttl_s, federation=federation),
                timeout=CALL_TIMEOUT_S,
            ).invite
        show_result(output, line)
        say(f"next, at the silo, within {ttl}, once: chorale-silo join, which asks for that line")
        succeed(output, {"invite": line, "federation": federation, "silo_id": silo, "ttl_s": ttl_s})


@roster_app.command("propose")
def propose(
    out: Annotated[Path, typer.Option("--out", help="Where the unsigned roster goes.")] = Path(
        "roster.json"
    ),
    colluding: Annotated[
        int,
        typer.Option(
            help="c: how many silos may work with the coordinator; 0: as in the roster in force, "
            "without one as the federation agreed.",
            min=0,
            max=200,
        ),
    ] = 0,
    epoch: Annotated[
        int,
        typer.Option(
            help="Its number, if not the next one: after a restore silos may know newer rosters.",
            min=0,
            max=2**31 - 1,
        ),
    ] = 0,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Write the roster of everyone who joined, for the root to sign or the silos to approve.

    --colluding is c: a sum is released only if it stays safe when that many silos work with the
    coordinator. It is fixed by the root's signature; no run can lower it. A roster with another
    epoch than the next one takes the root.
    """
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect
        from server.members.roster_file import describe_roster, read_roster, write_roster

        with connect(data) as stub:
            message = stub.ProposeRoster(
                admin_pb2.ProposeRosterRequest(colluding=colluding, epoch=epoch),
                timeout=CALL_TIMEOUT_S,
            ).roster
        write_roster(out, message)
        show_result(output, *describe_roster(read_roster(out).roster).splitlines())
        say(f"next, where the root key is: chorale root sign {out} --dir ROOT_DIR")
        if message.epoch > 1:
            say("or, at enough silos: chorale-silo roster approve, then chorale roster publish")
        succeed(
            output,
            {"roster": str(out), "epoch": message.epoch, "silos": len(message.entries)},
        )


@roster_app.command("publish")
def publish(
    roster: Annotated[
        Path | None,
        typer.Argument(help="From chorale root sign; without it, what enough silos approved."),
    ] = None,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Make a roster the current one: signed by the root, or approved by enough members.

    Members of the roster in force approve the proposed one with chorale-silo roster approve; as
    many are needed as must answer for a sum to be released. Only the root makes the first roster,
    and changes c or the coordinator's key.
    """
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect
        from server.members.roster_file import read_roster, roster_message

        request = admin_pb2.PublishRosterRequest()
        if roster is not None:
            request.roster.CopyFrom(roster_message(read_roster(roster)))
        if roster is not None and not (request.roster.signature or request.roster.approvals):
            raise CommandError(
                f"{roster} is not signed",
                code="roster_unsigned",
                exit_code=Exit.ARGUMENTS,
                next_step=f"chorale root sign {roster} --dir ROOT_DIR, where the root key is",
            )
        with connect(data) as stub:
            done = stub.PublishRoster(request, timeout=CALL_TIMEOUT_S)
        show_result(output, f"published: epoch {done.epoch}, {done.silos} silos")
        say("next: chorale run plan PLAN, then chorale run start PLAN")
        succeed(output, {"epoch": done.epoch, "silos": done.silos})


@roster_app.command("export")
def export(
    out: Annotated[Path, typer.Option("--out", help="Where it goes.")] = Path(
        "roster.published.json"
    ),
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Write the roster in force as it was published; after a restore roster publish takes it."""
    with answering(output):
        from server.config import CoordinatorConfig
        from server.members.roster_file import describe_roster, roster_message, write_roster
        from server.store import Store
        from server.store.served import database_in_force

        store = Store(database_in_force(CoordinatorConfig.load(data)))
        try:
            signed = store.rosters.current()
        finally:
            store.close()
        if signed is None:
            raise CommandError(
                "no roster is published yet",
                code="not_published",
                exit_code=Exit.ARGUMENTS,
                next_step="chorale roster propose, then root sign, then roster publish",
            )
        write_roster(out, roster_message(signed))
        show_result(output, *describe_roster(signed.roster).splitlines())
        show_result(output, f"wrote {out}")
        succeed(output, {"roster": str(out), "epoch": signed.roster.epoch})
