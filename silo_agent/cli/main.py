"""``chorale-silo``: the commands of a silo operator.

The contract of every command is ``envelope.py``'s. Heavy packages are imported inside the commands,
so that ``--help`` answers at once.

Covered: join, run, status, budget, policy, buffer. Not covered: leaving a federation, approval by
hand.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silo_agent.cli.buffer import buffer_app
from silo_agent.cli.compare import alone, replay
from silo_agent.cli.envelope import (
    Answered,
    CommandError,
    Exit,
    Format,
    answering,
    refuse_arguments,
    say,
    succeed,
)
from silo_agent.cli.transcript import verify_transcript

if TYPE_CHECKING:
    from federation.plan import Plan

__all__ = ["app", "main"]

app = typer.Typer(
    name="chorale-silo",
    help="Take part in a federation without sharing data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
policy_app = typer.Typer(
    help="What this site allows.", no_args_is_help=True, pretty_exceptions_enable=False
)
app.add_typer(policy_app, name="policy")
app.add_typer(buffer_app, name="buffer")

app.command()(alone)
app.command()(replay)
app.command("verify-transcript")(verify_transcript)

Data = Annotated[
    Path, typer.Option("--data", envvar="CHORALE_SILO_DATA", help="This silo's data directory.")
]
Output = Annotated[
    Format, typer.Option("--format", help="json prints one envelope on stdout.", show_default=True)
]
DEFAULT_DATA = Path("silo-data")


@app.command()
def join(
    invite: Annotated[str, typer.Argument(help="The line from the coordinator's admin.")],
    data: Data = DEFAULT_DATA,
    base_model: Annotated[
        str | None, typer.Option(help="Base model directory or id, for a new silo.toml.")
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Make keys here, pin the federation's root, and get a certificate."""
    with answering(output):
        from silo_agent.config import write_starter
        from silo_agent.identity import join as join_federation
        from silo_agent.policy import write_default

        identity = join_federation(invite, data)
        if base_model is not None and Path(base_model).is_dir():
            # Relative to where the command was typed; the file is read relative to itself.
            base_model = str(Path(base_model).absolute())
        config_written = write_starter(data, base_model=base_model)
        policy_file = data / "policy.toml"
        policy_written = not policy_file.exists()
        if policy_written:
            write_default(policy_file)
        say(f"joined {identity.federation} as {identity.silo_id}; keys are in {data}")
        if config_written:
            say(f"wrote {data / 'silo.toml'}: say what this silo explores, and with which base")
        if policy_written:
            say(f"wrote {policy_file}: it refuses everything until you allow something")
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


@app.command()
def run(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Run the daemon in the foreground until SIGTERM or SIGINT."""
    with answering(output):
        from silo_agent.config import SiloConfig

        config = SiloConfig.load(data)
        from silo_agent import daemon

        _log_to_stderr()
        daemon.run(config)
        succeed(output, {"stopped": True})


@app.command()
def status(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """What this silo is, what it adopted, and whether its daemon runs."""
    with answering(output):
        from silo_agent.cli.status import read_status

        found = read_status(data)
        for line in found.lines():
            say(line)
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

        from silo_agent.budget import read_budget
        from silo_agent.cli.budget_table import lines
        from silo_agent.config import SiloConfig
        from silo_agent.policy_document import Policy

        config = SiloConfig.load(data)
        privacy = Policy.load(config.policy_file).privacy
        found = read_budget(config.data_dir, delta=privacy.delta, caps=privacy.caps())
        for line in lines(found):
            say(line)
        succeed(output, asdict(found))


@policy_app.command("init")
def policy_init(
    data: Data = DEFAULT_DATA,
    plan: Annotated[
        Path | None, typer.Option(help="Allow what this plan asks for and as little more.")
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Write a commented policy.toml that refuses everything, or allows one plan."""
    with answering(output):
        from silo_agent.policy_proposal import write_default, write_for_plan

        path = data / "policy.toml"
        if plan is None:
            write_default(path)
            say(f"wrote {path}: it refuses everything until you allow something")
        else:
            write_for_plan(path, _plan(plan))
            say(f"wrote {path} from {plan}: read it before you run the daemon")
        succeed(output, {"policy_file": str(path)})


@policy_app.command("check")
def policy_check(
    plan: Annotated[Path, typer.Argument(help="The run plan.")],
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """The daemon's verdict on a plan, with the rule that fired. Exit code 1 when refused."""
    with answering(output):
        from dp.charge import epsilon_of
        from silo_agent.config import SiloConfig
        from silo_agent.policy import Policy, check_plan
        from silo_agent.policy_plan import charges_of_run

        config = SiloConfig.load(data)
        policy, asked = Policy.load(config.policy_file), _plan(plan)
        decision = check_plan(policy, plan=asked, base_sha256=config.base_sha256())
        costs = epsilon_of(charges_of_run(asked), policy.privacy.delta)
        data_out = {
            "accepted": decision.accepted,
            "rule": decision.rule,
            "public_reason": decision.public_reason,
            "detail": decision.detail,
            "epsilons": costs,
        }
        if not decision.accepted:
            raise CommandError(
                f"refused by rule {decision.rule}: {decision.detail}",
                code="policy_refusal",
                exit_code=Exit.SERVER,
                hint=f'the coordinator would be told "{decision.public_reason}"',
                next_step=f"allow it in {config.policy_file}, or ask for another plan",
                data=data_out,
            )
        say("accepted: no rule about plans refuses it")
        for unit, cost in costs.items():
            say(
                f"the run costs at most epsilon {cost:.4g} for each {unit}, spare attempts included"
            )
        say("still checked every round: cohort, noise per silo, deadlines, schedule, budget")
        succeed(output, data_out)


def _log_to_stderr() -> None:
    """One JSON object per line on stderr; stdout belongs to the envelope."""
    import structlog

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )


def _plan(path: Path) -> Plan:
    from federation.plan import Plan

    try:
        return Plan.parse(path.read_bytes())
    except OSError as error:
        raise CommandError(
            f"cannot read {path}: {error}", code="plan_file", exit_code=Exit.ARGUMENTS
        ) from error


def main() -> None:
    """Run the command line; wrong arguments exit with code 4."""
    try:
        app()
    except Answered:
        raise
    except SystemExit as stop:
        # The parser of arguments exits with 2, which here means connection or authentication.
        if stop.code == _PARSER_EXIT:
            refuse_arguments(sys.argv[1:])
        raise


_PARSER_EXIT = 2


if __name__ == "__main__":
    main()
