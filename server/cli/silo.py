"""``chorale silo``: who joined, how each stands, and keeping one out.

What is changed here bites on the silo's next call; nothing waits for a reconnect.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from ops.cli.moment import shown
from server.cli.program import DEFAULT_DATA, Data, answering

if TYPE_CHECKING:
    from chorale.v1 import admin_pb2

__all__ = ["app"]

app = typer.Typer(help="Who joined, and how each stands.", no_args_is_help=True)

Silo = Annotated[str, typer.Argument(metavar="SILO", help="Its id.")]
Reason = Annotated[str, typer.Option(help="Kept in the audit log; the silo is not told.")]


@app.command("list")
def list_silos(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Who was invited, joined, or is in the roster, and when each was last heard of.

    A silo of the roster that was not heard of for five minutes, or never, is said to be silent, as
    by the alert about it and by run start. What a silo publishes about itself,
    if it does, stands at the end: it is the silo's own word.
    """
    with answering(output):
        silos = _silos(data)
        silent = {silo.silo_id for silo in silos if _is_silent(silo)}
        for silo in silos:
            word = "silent" if silo.silo_id in silent else ""
            show_result(
                output,
                f"{silo.silo_id:<24} {silo.state:<11} {word:<6} "
                f"last seen {shown(silo.last_seen_unix_s):<20} "
                f"certificate until {shown(silo.certificate_expiry_unix_s):<20} "
                f"{', '.join(silo.families)}{_short_facts(silo)}",
            )
        if not silos:
            say(f"nobody yet: chorale invite FEDERATION SILO --data {data}")
        succeed(
            output,
            {"silos": [{**_plain(silo), "silent": silo.silo_id in silent} for silo in silos]},
        )


@app.command("show")
def show(silo: Silo, data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """How one silo stands."""
    with answering(output):
        found = next((one for one in _silos(data) if one.silo_id == silo), None)
        if found is None:
            raise CommandError(
                f"no silo {silo!r} was invited or has joined",
                code="silo_unknown",
                exit_code=Exit.ARGUMENTS,
                next_step="chorale silo list",
            )
        silent = _is_silent(found)
        show_result(output, f"{found.silo_id}: {found.state}{', silent' if silent else ''}")
        if found.state == "sitting_out":
            show_result(
                output,
                "it was lost from too many attempts: chorale audit tail says which and until when",
            )
            say(f"to end it: chorale silo reinstate {silo}")
        show_result(output, f"last seen          {shown(found.last_seen_unix_s)}")
        show_result(output, f"certificate until  {shown(found.certificate_expiry_unix_s)}")
        show_result(
            output, f"environments       {', '.join(found.families) or 'none declared yet'}"
        )
        said = ", ".join(_facts_in_words(found)) or "none published lately"
        show_result(output, f"its own word       {said}")
        succeed(output, {"silo": {**_plain(found), "silent": silent}})


@app.command("suspend")
def suspend(
    silo: Silo,
    reason: Reason = "",
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Refuse a silo from its next call on, until it is reinstated."""
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect

        with connect(data) as stub:
            stub.SuspendSilo(
                admin_pb2.SuspendSiloRequest(silo_id=silo, reason=reason), timeout=CALL_TIMEOUT_S
            )
        show_result(
            output, f"{silo} is suspended: its next call is refused, and no round waits for it"
        )
        say(f"to end it: chorale silo reinstate {silo}")
        succeed(output, {"silo_id": silo, "state": "suspended"})


@app.command("reinstate")
def reinstate(silo: Silo, data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """End a suspension; a silo that sits out takes part again from the next round task on."""
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect

        with connect(data) as stub:
            stub.ReinstateSilo(admin_pb2.ReinstateSiloRequest(silo_id=silo), timeout=CALL_TIMEOUT_S)
        show_result(output, f"{silo} is reinstated, with the certificate that it has")
        succeed(output, {"silo_id": silo, "state": "reinstated"})


@app.command("revoke")
def revoke(
    silo: Silo,
    reason: Reason = "",
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Refuse a silo's certificates for good, and withdraw its unspent invites."""
    with answering(output):
        from chorale.v1 import admin_pb2
        from server.cli.client import CALL_TIMEOUT_S, connect

        with connect(data) as stub:
            stub.RevokeSilo(
                admin_pb2.RevokeSiloRequest(silo_id=silo, reason=reason), timeout=CALL_TIMEOUT_S
            )
        show_result(
            output, f"{silo} is revoked: its next call is refused; only a new invite brings it back"
        )
        say("next, so that rosters do not name it any more: chorale roster propose")
        succeed(output, {"silo_id": silo, "state": "revoked"})


def _plain(silo: admin_pb2.SiloStatus) -> dict[str, Any]:
    """For the envelope: facts in words; null where none were published lately."""
    from server.cli.client import plain

    return {**plain(silo), "facts": _facts(silo)}


def _facts(silo: admin_pb2.SiloStatus) -> dict[str, Any] | None:
    """What a silo says of itself by name; null for what it does not say."""
    if not silo.HasField("facts"):
        return None
    from dataclasses import asdict

    from federation.wire import silo_facts_from_proto

    return asdict(silo_facts_from_proto(silo.facts))


def _facts_in_words(silo: admin_pb2.SiloStatus) -> list[str]:
    facts = {name: said for name, said in (_facts(silo) or {}).items() if said is not None}
    words = {
        "availability": "{}",
        "queue": "queue {}",
        "free_gpu": "free gpu {}",
        "budget_left": "budget {}",
    }
    found = [form.format(facts[name]) for name, form in words.items() if name in facts]
    if "earliest_start_unix_s" in facts:
        found.append(f"from {shown(facts['earliest_start_unix_s'])}")
    return found


def _short_facts(silo: admin_pb2.SiloStatus) -> str:
    found = _facts_in_words(silo)
    return f" [{', '.join(found)}]" if found else ""


def _is_silent(silo: admin_pb2.SiloStatus) -> bool:
    from server.members.silence import Member, is_silent
    from server.states import SiloState

    if silo.state not in {SiloState.ROSTERED, SiloState.SITTING_OUT}:
        return False
    member = Member(
        silo_id=silo.silo_id,
        state=SiloState(silo.state),
        last_seen_unix_s=silo.last_seen_unix_s,
    )
    return is_silent(member, time.time())


def _silos(data: Path) -> list[admin_pb2.SiloStatus]:
    from chorale.v1 import admin_pb2
    from server.cli.client import CALL_TIMEOUT_S, connect

    with connect(data) as stub:
        return list(stub.ListSilos(admin_pb2.ListSilosRequest(), timeout=CALL_TIMEOUT_S).silos)
