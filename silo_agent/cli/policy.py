"""``chorale-silo policy``: what this site allows, and what it says to a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silo_agent.cli.envelope import CommandError, Exit, Format, answering, say, succeed

if TYPE_CHECKING:
    from federation.plan import Plan
    from silo_agent.config import SiloConfig
    from silo_agent.policy_document import Policy

__all__ = ["policy_app"]

DEFAULT_DATA = Path("silo-data")
Data = Annotated[
    Path, typer.Option("--data", envvar="CHORALE_SILO_DATA", help="This silo's data directory.")
]
Output = Annotated[
    Format, typer.Option("--format", help="json prints one envelope on stdout.", show_default=True)
]

policy_app = typer.Typer(
    help="What this site allows.", no_args_is_help=True, pretty_exceptions_enable=False
)


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
    """The daemon's verdict on a plan, with the rule that fired. Exit code 1 when refused.

    Nobody is asked: a policy with manual approval accepts a plan here and waits
    for `chorale-silo approve` when a run of it begins.
    """
    with answering(output):
        from dp.charge import epsilon_of
        from silo_agent.config import SiloConfig
        from silo_agent.policy import Policy, check_plan
        from silo_agent.policy_plan import charges_of_run

        config = SiloConfig.load(data)
        policy, asked = Policy.load(config.policy_file), _plan(plan)
        notes, unfit = _fitted(config, policy, asked)
        decision = check_plan(policy, plan=asked, base_sha256=config.base_sha256(), unfit=unfit)
        costs = epsilon_of(charges_of_run(asked), policy.privacy.delta)
        manual = policy.policy.approval == "manual"
        data_out = {
            "accepted": decision.accepted,
            "rule": decision.rule,
            "public_reason": decision.public_reason,
            "detail": decision.detail,
            "epsilons": costs,
            "approval": policy.policy.approval,
            "hardware": notes,
            "allow_rollback": policy.methods.allow_rollback,
        }
        if not decision.accepted:
            where = f"allow it in {config.policy_file}"
            if decision.rule == "base_model_match":
                where = f"name that base in {data / 'silo.toml'}"
            raise CommandError(
                f"refused by rule {decision.rule}: {decision.detail}",
                code="policy_refusal",
                exit_code=Exit.SERVER,
                hint=f'the coordinator would be told "{decision.public_reason}"',
                next_step=f"{where}, or ask for another plan",
                data=data_out,
            )
        say("accepted: no rule about plans refuses it")
        for unit, cost in costs.items():
            say(
                f"the run costs at most epsilon {cost:.4g} for each {unit}, spare attempts included"
            )
        for note in notes:
            say(f"on this machine: {note}")
        if manual:
            say("approval is manual: each run of it waits for `chorale-silo approve RUN`")
        back = "followed" if policy.methods.allow_rollback else "refused, and ends the run here"
        say(f"a rollback of it to an earlier round is {back} (methods.allow_rollback)")
        say("still checked every round: cohort, noise per silo, deadlines, schedule, budget")
        succeed(output, data_out)


def _fitted(config: SiloConfig, policy: Policy, plan: Plan) -> tuple[tuple[str, ...], str]:
    """What the daemon would choose on this machine; no torch without a base model."""
    from silo_agent.fitting import Fitting
    from silo_agent.limits import restrict_gpus

    restrict_gpus(policy.limits)
    choice = Fitting(config).choice(plan)
    return choice.notes, choice.unfit


def _plan(path: Path) -> Plan:
    from federation.plan import Plan

    try:
        return Plan.parse(path.read_bytes())
    except OSError as error:
        raise CommandError(
            f"cannot read {path}: {error}", code="plan_file", exit_code=Exit.ARGUMENTS
        ) from error
