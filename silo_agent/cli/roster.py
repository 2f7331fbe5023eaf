"""``chorale-silo roster``: see what the next roster would change, and approve it.

After the first roster, which the root signs, enough members of the roster in force can make the
next one valid instead of the root; ``secagg/roster.py`` says how many and why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from silo_agent.cli.program import DEFAULT_DATA, Data, answering

if TYPE_CHECKING:
    from federation.membership.roster_change import RosterChange, RosterProposal
    from secagg.roster import Roster
    from silo_agent.identity.identity import Identity
    from silo_agent.line.transport import Coordinator

__all__ = ["roster_app"]

PATIENCE_S = 10.0

roster_app = typer.Typer(
    help="Who takes part: see what the next roster changes, and approve it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Question:
    """What a member is asked."""

    in_force: Roster
    """Verified here."""
    proposal: RosterProposal
    """The coordinator's word."""
    change: RosterChange
    """Computed here."""

    def data(self) -> dict[str, Any]:
        """For the envelope."""
        change = asdict(self.change)
        del change["lines"]
        return {
            "epoch": self.proposal.roster.epoch,
            "roster_sha256": self.proposal.roster.sha256.hex(),
            "approvals_needed": self.proposal.needed,
            "approved_by": self.proposal.approved_by,
            **change,
        }


@roster_app.command("show")
def show(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """What the proposed roster changes against the one in force."""
    with answering(output):
        from silo_agent.identity.identity import Identity

        coordinator = _line(Identity.load(data))
        try:
            told = partial(show_result, output)
            question = _asked(coordinator, Identity.load(data), data, told=told)
        finally:
            coordinator.close()
        succeed(output, question.data())


@roster_app.command("approve")
def approve(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Show what changes, ask, and sign the approval with this silo's key.

    What changes is computed here. Who approved before is the coordinator's
    word: their signatures come with the roster that is published. The
    approval is good for exactly the roster that was shown, after exactly the
    one in force.
    """
    with answering(output):
        from secagg.roster import approve_roster
        from silo_agent.books.audit import AuditLog, SiloEvent
        from silo_agent.identity.identity import Identity

        identity = Identity.load(data)
        coordinator = _line(identity)
        try:
            question = _asked(coordinator, identity, data, told=say)
            roster = question.proposal.roster
            approval = approve_roster(
                question.in_force, roster, identity.silo_id, identity.signing_key
            )
            if not yes and not _confirmed():
                raise CommandError(
                    "the roster was not approved",
                    code="roster_declined",
                    exit_code=Exit.ARGUMENTS,
                    hint="nothing was signed",
                )
            # On disk before the signature leaves.
            AuditLog(data).append(
                SiloEvent.ROSTER_APPROVED,
                epoch=roster.epoch,
                roster_sha256=roster.sha256.hex(),
                added=question.change.added,
                removed=question.change.removed,
                rekeyed=question.change.rekeyed,
            )
            coordinator.approve_roster(roster, approval)
        finally:
            coordinator.close()
        show_result(output, f"approved epoch {roster.epoch}")
        say("next: the admin publishes it, chorale roster publish")
        succeed(output, question.data())


def _line(identity: Identity) -> Coordinator:
    from silo_agent.line.transport import Coordinator

    return Coordinator(
        address=identity.coordinator_address,
        credentials=identity.channel_credentials(),
        patience_s=PATIENCE_S,
    )


def _asked(
    coordinator: Coordinator, identity: Identity, data: Path, *, told: Callable[..., None]
) -> _Question:
    """The proposal against the roster in force, which is verified as the daemon does it.

    What it changes is told before it is refused.
    """
    from federation.membership.roster_change import change_between
    from secagg.roster import follow_rosters, require_approvable
    from silo_agent.books.local_store import LocalStore

    store = LocalStore(data)
    epoch, sha256 = store.newest_roster_epoch(), store.newest_roster_sha256()
    in_force = follow_rosters(coordinator.rosters(epoch), identity.root_key, epoch, sha256)
    if in_force.federation != identity.federation:
        raise CommandError(
            f"the roster in force is of federation {in_force.federation}",
            code="roster_foreign",
            exit_code=Exit.SERVER,
            hint="the coordinator published another federation's roster; tell its admin",
        )
    proposal = coordinator.roster_proposal()
    if proposal is None:
        raise CommandError(
            "no roster is proposed",
            code="roster_not_proposed",
            exit_code=Exit.SERVER,
            next_step="ask the admin: chorale roster propose",
        )
    change = change_between(in_force, proposal.roster)
    if in_force.entry(identity.silo_id) is None:
        raise CommandError(
            f"{identity.silo_id} is not in the roster in force, so its approval does not count",
            code="roster_not_member",
            exit_code=Exit.SERVER,
            hint="members of the roster in force approve the next one",
        )
    question = _Question(in_force=in_force, proposal=proposal, change=change)
    told(*_lines(question))
    from secagg.errors import VerificationError

    try:
        require_approvable(in_force, proposal.roster)
    except VerificationError as error:
        raise CommandError(
            str(error),
            code="roster_needs_root",
            exit_code=Exit.SERVER,
            next_step="the root signs it: chorale root sign",
            data=question.data(),
        ) from error
    return question


def _confirmed() -> bool:
    try:
        return typer.confirm("approve this roster?", err=True)
    except typer.Abort:
        return False


def _lines(question: _Question) -> list[str]:
    proposal = question.proposal
    by = ", ".join(proposal.approved_by) or "nobody yet"
    return [
        *question.change.lines,
        f"the coordinator says: approved by {by}; {proposal.needed} approvals are needed",
    ]
