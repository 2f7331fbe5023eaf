"""``chorale-silo leave``: end this silo's membership, here and at the coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from silo_agent.cli.program import DEFAULT_DATA, Data, answering

if TYPE_CHECKING:
    from silo_agent.identity.identity import Identity

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
        bool,
        typer.Option("--wipe", help="Delete keys, uploads, results, adapters, memories, reports."),
    ] = False,
    wipe_ledger: Annotated[
        bool,
        typer.Option("--wipe-ledger", help="With --wipe: also the ledger and the audit log."),
    ] = False,
    no_spent: Annotated[
        bool,
        typer.Option("--no-spent", help="With --wipe: delete although spent.json cannot be made."),
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

    spent.json is written into the data directory and always stays: it says what
    this data set has spent, signed, and `join --spent` in a new data directory
    goes on from there. Without it the same data would count from 0 again, so
    nothing is deleted where it cannot be made, unless --no-spent is given.
    """
    with answering(output):
        from silo_agent.books.leave import PRIVATE, PROOFS, require_silo
        from silo_agent.books.spent import SPENT_FILE

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
            no_spent=no_spent,
            wait_s=wait_s,
        )
        if done["spent_file"]:
            show_result(
                output,
                f"what this data set has spent is in {done['spent_file']}: in a new data directory "
                f"join with --spent and --spent-key {done['spent_key']}",
            )
        elif done["not_spent"]:
            say(f"note: no {SPENT_FILE} was written: {done['not_spent']}")
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
    data: Path,
    *,
    drain: bool,
    revoke: bool,
    wipe: bool,
    wipe_ledger: bool,
    no_spent: bool,
    wait_s: int,
) -> dict[str, Any]:
    import time

    from silo_agent.books.audit import SiloEvent
    from silo_agent.books.departure import Departure, Leaving
    from silo_agent.books.leave import tell, wait_for_daemon
    from silo_agent.books.leave import wipe as delete
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
    spent = _write_spent(data, identity)
    done: dict[str, Any] = {
        "left": True,
        "told": identity is not None and not not_told,
        "not_told": not_told,
        "revoked": revoke and identity is not None and not not_told,
        "not_audited": not_audited,
        **spent,
        "deleted": [],
        "not_deleted": [],
    }
    if wipe and spent["not_spent"] and not no_spent:
        raise CommandError(
            f"this silo has left, and nothing was deleted: what its data set has spent cannot be "
            f"written down: {spent['not_spent']}",
            code="spent_not_written",
            exit_code=Exit.ARGUMENTS,
            hint="without it the same data would count epsilon from 0 in a new data directory",
            next_step="mend that and call it again, or add --no-spent and let this data take part "
            "nowhere again",
            data=done,
        )
    if wipe:
        wiped = delete(data, proofs=wipe_ledger)
        done["deleted"] = list(wiped.deleted)
        done["not_deleted"] = [{"name": link.name, "target": link.target} for link in wiped.links]
    return done


def _write_spent(data: Path, identity: Identity | None) -> dict[str, str]:
    """Write what was spent; where it is and who signed it, or why it is not there.

    All empty where nothing was ever charged.
    """
    import time

    from dp.errors import PrivacyError
    from silo_agent.books.ledger import LEDGER_FILE
    from silo_agent.books.spent import SPENT_FILE, is_newest, read_spent, spent_here, write_spent
    from silo_agent.errors import SiloError

    path, nothing = data / SPENT_FILE, {"spent_file": "", "spent_key": "", "not_spent": ""}
    try:
        if identity is not None:
            found = spent_here(data, identity, at_unix_s=int(time.time()))
            if found is not None:
                write_spent(path, found)
        else:
            # An earlier call wrote it, and deleted the key.
            found = read_spent(path) if path.exists() else None
            if (data / LEDGER_FILE).exists() and not (found and is_newest(data, found)):
                return nothing | {"not_spent": "no key is left to sign with"}
    except (SiloError, PrivacyError) as error:
        return nothing | {"not_spent": str(error)}
    if found is None:
        return nothing
    return nothing | {"spent_file": str(path), "spent_key": found.fingerprint}


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
