"""``chorale-silo leave``: end this silo's membership, here and at the coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from silo_agent.cli.program import DEFAULT_DATA, Data, answering

__all__ = ["leave"]


def leave(
    *,
    drain: Annotated[
        bool, typer.Option("--drain", help="Let the daemon finish the attempt that is open.")
    ] = False,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Let this silo's certificate end now.")
    ] = False,
    wipe: Annotated[
        bool, typer.Option("--wipe", help="Delete keys, uploads, adapters, buffers, reports.")
    ] = False,
    wipe_ledger: Annotated[
        bool,
        typer.Option("--wipe-ledger", help="With --wipe: also the ledger and the audit log."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    wait_s: Annotated[
        int, typer.Option("--wait", help="Seconds to wait for the daemon.", min=0)
    ] = 900,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Take part in nothing more, tell the coordinator, and delete what is asked for.

    The daemon ends by itself. The privacy ledger and the audit log stay unless
    --wipe-ledger is given: they prove what was spent and done. An unreachable
    coordinator does not stop any of it, and is named with exit code 2.
    """
    with answering(output):
        from silo_agent.books.departure import PRIVATE, PROOFS, require_silo

        if wipe_ledger and not wipe:
            raise CommandError(
                "--wipe-ledger goes with --wipe",
                code="arguments",
                exit_code=Exit.ARGUMENTS,
                next_step="chorale-silo leave --help",
            )
        if wipe:
            require_silo(data)
        names = (*PRIVATE, *(PROOFS if wipe_ledger else ())) if wipe else ()
        if names and not yes:
            _confirm(data, names)
        done = _leave(
            data,
            drain=drain,
            revoke=revoke,
            wipe=wipe,
            wipe_ledger=wipe_ledger,
            wait_s=wait_s,
        )
        if done["deleted"]:
            show_result(output, f"deleted: {', '.join(done['deleted'])}")
        for link in done["not_deleted"]:
            show_result(
                output, f"NOT deleted: {link['target']}, where the link {link['name']} led to"
            )
        if wipe and not wipe_ledger:
            show_result(
                output, "kept: the privacy ledger, what it is checked against, and the audit log"
            )
        if done["not_told"]:
            raise CommandError(
                f"this silo has left, but the coordinator was not told: {done['not_told']}",
                code="coordinator_not_told",
                exit_code=Exit.CONNECT,
                hint="everything on this machine is done; the coordinator still counts it a member",
                next_step=(
                    "ask the admin for `chorale silo revoke`"
                    if wipe
                    else "call it again, or ask the admin for `chorale silo revoke`"
                ),
                data=done,
            )
        show_result(output, "this silo has left the federation; joining again needs a new invite")
        succeed(output, done)


def _leave(
    data: Path, *, drain: bool, revoke: bool, wipe: bool, wipe_ledger: bool, wait_s: int
) -> dict[str, Any]:
    import time

    from silo_agent.books.audit import SiloEvent
    from silo_agent.books.departure import Departure, Leaving, Wiped, tell, wait_for_daemon
    from silo_agent.books.departure import wipe as delete
    from silo_agent.cli.audit_note import note_done
    from silo_agent.errors import TransportError
    from silo_agent.identity.identity import Identity, NotJoinedError
    from silo_agent.policy.approvals import operating_user

    identity = None
    try:
        identity = Identity.load(data)
    except NotJoinedError:
        # What an earlier call left behind may still be deleted.
        if not wipe:
            raise
    user = operating_user()
    not_audited = ""
    if identity is not None:
        Departure(data).set(Leaving(drain=drain, by=user, at_unix_s=int(time.time())))
        not_audited = note_done(
            data, SiloEvent.LEFT, drain=drain, revoke=revoke, wipe=wipe, by=user
        )
    if not wait_for_daemon(data, timeout_s=wait_s):
        raise CommandError(
            f"the daemon still runs after {wait_s} s; it begins nothing more, and ends when "
            "its attempt does",
            code="daemon_runs",
            exit_code=Exit.TIMEOUT,
            next_step="call it again, or stop the daemon",
        )
    not_told = ""
    if identity is not None:
        # While it was waited for, the daemon may have renewed the certificate.
        identity = Identity.load(data)
        try:
            tell(identity, revoke=revoke)
        except TransportError as error:
            not_told = str(error)
    wiped = delete(data, proofs=wipe_ledger) if wipe else Wiped(deleted=(), links=())
    return {
        "left": True,
        "told": identity is not None and not not_told,
        "not_told": not_told,
        "revoked": revoke and identity is not None and not not_told,
        "not_audited": not_audited,
        "deleted": list(wiped.deleted),
        "not_deleted": [{"name": link.name, "target": link.target} for link in wiped.links],
    }


def _confirm(data: Path, names: tuple[str, ...]) -> None:
    say(f"this deletes from {data}: {', '.join(names)}")
    try:
        sure = typer.confirm("Delete all of it?", err=True)
    except typer.Abort:
        sure = False
    if not sure:
        raise CommandError(
            "nothing was deleted and nobody was told",
            code="not_confirmed",
            exit_code=Exit.ARGUMENTS,
            next_step="chorale-silo leave --wipe --yes",
        )
