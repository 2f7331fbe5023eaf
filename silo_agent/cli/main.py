"""``chorale-silo``: the commands of a silo operator.

The contract of every command is ``ops/cli/envelope.py``'s. Heavy packages are imported inside the
commands, so that ``--help`` answers at once.

Covered: join, run, status, budget. The other commands are in files of their own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ops.cli.envelope import (
    CommandError,
    Exit,
    Format,
    Output,
    command_line,
    run_app,
    say,
    show_result,
    succeed,
)
from silo_agent.cli.audit import audit_app
from silo_agent.cli.buffer import buffer_app
from silo_agent.cli.compare import alone, replay
from silo_agent.cli.deploy import deploy_app
from silo_agent.cli.doctor import doctor
from silo_agent.cli.leave import leave
from silo_agent.cli.policy import policy_app
from silo_agent.cli.program import DEFAULT_DATA, Data, answering
from silo_agent.cli.roster import roster_app
from silo_agent.cli.runs import approve, preview, refuse, runs
from silo_agent.cli.transcript import verify_transcript

__all__ = ["app", "main"]


app = command_line(
    name="chorale-silo",
    help_text="Take part in a federation without sharing data.",
)
app.add_typer(policy_app, name="policy")
app.add_typer(buffer_app, name="buffer")
app.add_typer(audit_app, name="audit")
app.add_typer(roster_app, name="roster")
app.add_typer(deploy_app, name="deploy")

app.command()(alone)
app.command()(replay)
app.command("verify-transcript")(verify_transcript)
app.command()(runs)
app.command()(approve)
app.command()(refuse)
app.command()(preview)
app.command()(leave)
app.command("doctor")(doctor)


@app.command()
def join(
    invite: Annotated[
        str,
        typer.Argument(
            help="The line from the coordinator's admin; - reads it from standard input, and "
            "without it a terminal asks. Other accounts can read the arguments of a command.",
            show_default=False,
        ),
    ] = "",
    data: Data = DEFAULT_DATA,
    base_model: Annotated[
        str | None, typer.Option(help="Base model directory or id, for a new silo.toml.")
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Make keys here, pin the federation's root, and get a certificate."""
    with answering(output):
        from silo_agent.books.audit import AuditLog, SiloEvent
        from silo_agent.books.departure import Departure
        from silo_agent.config import write_starter
        from silo_agent.identity.join import join as join_federation
        from silo_agent.policy.proposal import write_default

        identity = join_federation(_read_invite(invite), data)
        Departure(data).clear()
        AuditLog(data).append(
            SiloEvent.JOINED, federation=identity.federation, silo=identity.silo_id
        )
        if base_model is not None and Path(base_model).is_dir():
            # Relative to where the command was typed; the file is read relative to itself.
            base_model = str(Path(base_model).absolute())
        config_written = write_starter(data, base_model=base_model)
        policy_file = data / "policy.toml"
        policy_written = not policy_file.exists()
        if policy_written:
            write_default(policy_file)
        show_result(
            output, f"joined {identity.federation} as {identity.silo_id}; keys are in {data}"
        )
        if config_written:
            rest = "" if base_model is not None else ", and with which base"
            show_result(output, f"wrote {data / 'silo.toml'}: say what this silo explores{rest}")
        if policy_written:
            show_result(
                output,
                f"wrote {policy_file}: it refuses everything until you allow something; "
                f"`chorale-silo policy init --plan PLAN --data {data}` allows one plan",
            )
        say(f"next: edit both, then `chorale-silo run --data {data}`")
        succeed(
            output,
            {
                "federation": identity.federation,
                "silo_id": identity.silo_id,
                "data_dir": str(data),
                "wrote_silo_toml": config_written,
                "wrote_policy_toml": policy_written,
                "next_step": f"chorale-silo run --data {data}",
            },
        )


def _read_invite(given: str) -> str:
    """The invite: what was given, for ``-`` a line of standard input, for nothing what is typed.

    An argument stands in the list of processes, which other accounts of the machine can read, and
    an invite is a secret until it is redeemed.
    """
    from federation.membership.invite import MAX_CHARS

    if given == "-":
        invite = sys.stdin.readline(MAX_CHARS + 2).strip()
    elif given:
        invite = given
    elif sys.stdin.isatty():
        try:
            invite = str(typer.prompt("the invite, which is not shown", hide_input=True, err=True))
        except typer.Abort:
            invite = ""
    else:
        invite = ""
    if not invite.strip():
        raise CommandError(
            "no invite was given",
            code="invite_absent",
            exit_code=Exit.ARGUMENTS,
            next_step="chorale-silo join - reads it from standard input, one line",
        )
    return invite.strip()


@app.command()
def run(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Run the daemon in the foreground until SIGTERM or SIGINT."""
    with answering(output):
        from silo_agent.config import SiloConfig

        config = SiloConfig.load(data)
        from ops.logs.setup import daemon_logs
        from ops.tracing.spans import tracing
        from silo_agent.books.departure import Departure
        from silo_agent.daemon import process

        if Departure(config.data_dir).mark() is not None:
            raise CommandError(
                "this silo has left its federation",
                code="left",
                exit_code=Exit.ARGUMENTS,
                hint="`chorale-silo leave` was called for this data directory",
                next_step="chorale-silo join INVITE, with a new invite, takes part again",
            )
        with daemon_logs(), tracing("chorale-silo"):
            process.run(config)
        succeed(output, {"stopped": True})


@app.command()
def status(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """What this silo is, what it adopted, and whether its daemon runs."""
    with answering(output):
        from silo_agent.cli.status import read_status

        found = read_status(data)
        show_result(output, *found.lines())
        succeed(output, found.as_data())


@app.command()
def budget(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Epsilon spent, reserved and left for each kind of unit; works while the daemon runs.

    SPENT: everything charged so far; what the cap is compared with.

    RESERVED: the part of it that is charged for local trainings of rounds
    that were not uploaded yet. It is never given back.

    LEFT: the cap less what is spent.

    A ledger that is damaged, lost or older than this silo remembers is refused.
    """
    with answering(output):
        from dataclasses import asdict

        from silo_agent.books.budget import read_budget
        from silo_agent.cli.status import budget_lines
        from silo_agent.config import SiloConfig
        from silo_agent.policy.document import Policy

        config = SiloConfig.load(data)
        privacy = Policy.load(config.policy_file).privacy
        found = read_budget(config.data_dir, delta=privacy.delta, caps=privacy.caps())
        show_result(output, *budget_lines(found))
        succeed(output, asdict(found))


def main() -> None:
    """Run the command line; wrong arguments exit with code 4."""
    run_app(app)


if __name__ == "__main__":
    main()
