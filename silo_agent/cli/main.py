"""``chorale-silo``: the commands of a silo operator.

The contract of every command is ``ops/cli/envelope.py``'s. Heavy packages are imported inside the
commands, so that ``--help`` answers at once.

Covered: join, run, status. The other commands are in files of their own.
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
from silo_agent.cli.adapter import adapter_app
from silo_agent.cli.audit import audit_app
from silo_agent.cli.budget import budget_app
from silo_agent.cli.buffer import buffer_app
from silo_agent.cli.compare import alone, replay
from silo_agent.cli.deploy import deploy_app
from silo_agent.cli.diagnose import diagnose
from silo_agent.cli.doctor import doctor
from silo_agent.cli.env import env_app
from silo_agent.cli.facts import facts_app
from silo_agent.cli.guard import guard
from silo_agent.cli.leave import leave
from silo_agent.cli.policy import policy_app
from silo_agent.cli.principles import principles_app
from silo_agent.cli.program import DEFAULT_DATA, Data, answering
from silo_agent.cli.roster import roster_app
from silo_agent.cli.runs import approve, preview, refuse, runs
from silo_agent.cli.transcript import verify_transcript

__all__ = ["app", "main"]


app = command_line(
    name="chorale-silo",
    help_text="Take part in a federation without sharing data.",
)
app.add_typer(budget_app, name="budget")
app.add_typer(policy_app, name="policy")
app.add_typer(buffer_app, name="buffer")
app.add_typer(principles_app, name="principles")
app.add_typer(env_app, name="env")
app.add_typer(audit_app, name="audit")
app.add_typer(roster_app, name="roster")
app.add_typer(facts_app, name="facts")
app.add_typer(deploy_app, name="deploy")
app.add_typer(adapter_app, name="adapter")

app.command()(alone)
app.command()(replay)
app.command("verify-transcript")(verify_transcript)
app.command()(runs)
app.command()(approve)
app.command()(refuse)
app.command()(preview)
app.command()(leave)
app.command()(guard)
app.command("doctor")(doctor)
app.command("diagnose")(diagnose)


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
    spent: Annotated[
        list[Path] | None,
        typer.Option(
            help="What this data set has spent before: the spent.json that `leave` wrote, or a "
            "file of `budget export`. Once for each data directory that it was in.",
            show_default=False,
        ),
    ] = None,
    spent_key: Annotated[
        list[str] | None,
        typer.Option(
            help="Fingerprint of the key that signed such a file, as `leave`, `budget export` and "
            "`status` show it in the old data directory. Once for each key.",
            show_default=False,
        ),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Make keys here, pin the federation's root, and get a certificate.

    A new data directory counts epsilon from 0. If its data took part before, in
    this federation or another one, what was spent there is given with --spent:
    the new ledger begins with it, and the policy's caps count it. No file is
    taken that is cut short, changed, or signed by a key that --spent-key does
    not name; the invite is not redeemed then, and nothing is written. Give the
    newest file of each data directory: charges made after it are not in it.
    """
    with answering(output):
        from silo_agent.books.audit import AuditLog, SiloEvent
        from silo_agent.books.departure import Departure
        from silo_agent.cli.spent import Before
        from silo_agent.config import require_base_model, write_starter
        from silo_agent.identity.join import join as join_federation
        from silo_agent.policy.proposal import write_default

        line = _read_invite(invite)
        if base_model is not None:
            # Before the invite is redeemed: it could not be used again.
            base_model = require_base_model(base_model)
        before = Before.read(data, spent or [], keys=spent_key or [], invite=line)
        identity = join_federation(line, data, before_stored=before.begin)
        Departure(data).clear()
        AuditLog(data).append(
            SiloEvent.JOINED,
            federation=identity.federation,
            silo=identity.silo_id,
            **before.audited(),
        )
        config_written = write_starter(data, base_model=base_model)
        policy_file = data / "policy.toml"
        policy_written = not policy_file.exists()
        if policy_written:
            write_default(policy_file)
        show_result(
            output, f"joined {identity.federation} as {identity.silo_id}; keys are in {data}"
        )
        show_result(output, *before.lines())
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
                "spent_before": before.as_data(),
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


def main() -> None:
    """Run the command line; wrong arguments exit with code 4."""
    run_app(app)


if __name__ == "__main__":
    main()
