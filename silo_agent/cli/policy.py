"""``chorale-silo policy``: what this site allows, and what it says to a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dp.config import ADJACENCY
from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from silo_agent.cli.program import DEFAULT_DATA, Data, answering

if TYPE_CHECKING:
    from federation.plan.plan import Plan
    from silo_agent.config import SiloConfig
    from silo_agent.policy.document import Policy

__all__ = ["policy_app"]


_IN_SILO_TOML: Final[Mapping[str, str]] = MappingProxyType(
    {
        "base_model_match": "name that base",
        "environments_served": "give this silo one of the plan's environments",
        "declared_tasks": "declare more tasks",
    }
)
"""What to do about the rules that look there."""

policy_app = typer.Typer(
    help="What this site allows.", no_args_is_help=True, pretty_exceptions_enable=False
)


@policy_app.command("init")
def policy_init(
    data: Data = DEFAULT_DATA,
    plan: Annotated[
        Path | None, typer.Option(help="Allow what this plan asks for and as little more.")
    ] = None,
    accept_no_privacy: Annotated[
        bool,
        typer.Option(
            "--accept-no-privacy",
            help="With a plan of mode none: accept that a published sum may be this silo's alone.",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a policy.toml that was edited, too.")
    ] = False,
    output: Output = Format.TEXT,
) -> None:
    """Write a commented policy.toml that refuses everything, or allows one plan.

    A file that this command or join wrote and that nobody has edited since is
    replaced; its first line says whether that is so. An edited one stays as it
    is unless --force is given.
    """
    with answering(output):
        from silo_agent.policy.proposal import write_default, write_for_plan

        path = data / "policy.toml"
        if plan is None:
            replaced = write_default(path, force=force)
            show_result(output, f"wrote {path}: it refuses everything until you allow something")
        else:
            asked = plan_in(plan)
            replaced = write_for_plan(
                path,
                asked,
                own_parts=_own_parts(data) if asked.evolve.local_parts else (),
                accept_no_privacy=accept_no_privacy,
                force=force,
            )
            show_result(output, f"wrote {path} from {plan}: read it before you run the daemon")
            if asked.privacy.mode == "none" and not accept_no_privacy:
                say("the plan has no noise and stays refused: see accept_no_privacy in the file")
            if _holds_another_base(data, asked):
                say(
                    f"the plan is for base model {asked.model.base}, and this silo holds another: "
                    "it stays refused until silo.toml names that one"
                )
        if replaced:
            say("it replaced the one that was there; restart the daemon if it runs")
        if plan is not None:
            say(f"next: chorale-silo policy check {plan} --data {data}")
        succeed(output, {"policy_file": str(path), "replaced": replaced})


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
        from dp.accounting.compose import capped_kinds, shown_epsilon_of
        from federation.plan.charges import charges_of_run
        from silo_agent.config import SiloConfig
        from silo_agent.machine.machine import site_of
        from silo_agent.policy.document import Policy
        from silo_agent.policy.passed_time import PassedTime
        from silo_agent.policy.policy import check_plan

        config = SiloConfig.load(data)
        policy, asked = Policy.load(config.policy_file), plan_in(plan)
        notes, unfit = _fitted(config, policy, asked)
        manual = policy.policy.approval == "manual"
        decision = check_plan(
            policy,
            plan=asked,
            site=site_of(config),
            unfit=unfit,
            passed=PassedTime(config.data_dir).read(),
            cohort_may_vary=manual,
        )
        absent = _absent_environments(config, asked)
        charges, caps = charges_of_run(asked), policy.privacy.caps()
        costs = shown_epsilon_of(charges, policy.privacy.delta)
        uncapped = [unit for unit in costs if unit not in capped_kinds(charges, caps)]
        data_out = {
            "accepted": decision.accepted,
            "rule": decision.rule,
            "public_reason": decision.public_reason,
            "detail": decision.detail,
            "epsilons": {unit: asdict(cost) for unit, cost in costs.items()},
            "shown_but_not_capped": uncapped,
            "approval": policy.policy.approval,
            "hardware": notes,
            "environments_absent": absent,
            "min_episodes_per_round": policy.limits.min_episodes_per_round,
            "min_tasks_per_round": policy.limits.min_tasks_per_round,
            "allow_rollback": policy.methods.allow_rollback,
            "suites": sorted(policy.secure_aggregation.accepted),
            "digests": list(policy.secure_aggregation.digests),
            "cohort_may_vary": policy.privacy.cohort_may_vary,
            "facts_published": list(policy.facts.publish),
        }
        if not decision.accepted:
            show_result(output, f"refused by rule {decision.rule}")
            raise CommandError(
                f"refused by rule {decision.rule}: {decision.detail}",
                code="policy_refusal",
                exit_code=Exit.SERVER,
                hint=f'the coordinator would be told "{decision.public_reason}"',
                next_step=_way_out(decision.rule, config, data),
                data=data_out,
            )
        show_result(output, "accepted: no rule about plans refuses it")
        for unit, cost in costs.items():
            show_result(
                output,
                f"the run costs at most epsilon {cost} for each {unit} ({ADJACENCY}), "
                "spare attempts included",
            )
        if uncapped:
            show_result(
                output,
                f"shown, but not capped: {', '.join(uncapped)} "
                "(privacy.epsilon_caps does not name it)",
            )
        if absent:
            show_result(
                output,
                f"this silo has no {', '.join(absent)}, which the plan names: it explores the "
                "others; a name that is misspelt is corrected in silo.toml or in the plan",
            )
        for note in notes:
            show_result(output, f"on this machine: {note}")
        if manual:
            show_result(
                output, "approval is manual: each run of it waits for `chorale-silo approve RUN`"
            )
        for what in ("episodes", "tasks"):
            least = data_out[f"min_{what}_per_round"]
            floor = "no floor" if least is None else f"at least {least}"
            show_result(output, f"{what} of a round: {floor} (limits.min_{what}_per_round)")
        back = "followed" if policy.methods.allow_rollback else "refused, and ends the run here"
        show_result(
            output, f"a rollback of it to an earlier round is {back} (methods.allow_rollback)"
        )
        facts = ", ".join(policy.facts.publish) or "none"
        show_result(output, f"facts published about this silo: {facts} (facts.publish)")
        show_result(output, *suite_lines(policy))
        if asked.selection.cohort_may_vary and not policy.privacy.cohort_may_vary:
            show_result(
                output,
                "each round asks other silos, without noise: refused unless the run is approved "
                "with --cohort-may-vary",
            )
        if asked.privacy.mode == "none":
            vary = "may vary" if policy.privacy.cohort_may_vary else "only shrinks"
            show_result(
                output, f"without noise its cohort {vary} (privacy.cohort_may_vary), over all runs"
            )
        show_result(
            output, "still checked every round: cohort, noise per silo, deadlines, schedule, budget"
        )
        succeed(output, data_out)


def _own_parts(data: Path) -> tuple[str, ...]:
    """The play and the gate that a silo.toml chooses; none where there is no file yet."""
    from silo_agent.config import CONFIG_FILE, SiloConfig
    from silo_agent.machine.machine import own_parts_of

    return own_parts_of(SiloConfig.load(data)) if (data / CONFIG_FILE).exists() else ()


def _holds_another_base(data: Path, plan: Plan) -> bool:
    """Whether a silo.toml is there and names a base model that is not the plan's."""
    from silo_agent.config import CONFIG_FILE, SiloConfig

    if not (data / CONFIG_FILE).exists():
        return False
    return SiloConfig.load(data).base_sha256().hex() != plan.model.base_sha256


def _absent_environments(config: SiloConfig, plan: Plan) -> list[str]:
    """What the plan names and this silo does not have: said here, and to nobody else."""
    mine = {entry.environment for entry in config.environments}
    return [name for name in plan.evolve.environments if name not in mine]


def suite_lines(policy: Policy) -> tuple[str, ...]:
    """What a policy says to the suites of runs, for people."""
    from silo_agent.policy.document import SUITES

    accepted = policy.secure_aggregation.accepted
    old = "accepted, though not post-quantum" if SUITES["v1"] in accepted else "refused"
    new = "accepted" if SUITES["v2"] in accepted else "refused"
    return (f"a run of suite v2 is {new}, one of suite v1 is {old} (secure_aggregation.suites)",)


def _way_out(rule: str, config: SiloConfig, data: Path) -> str:
    """What to do about a rule that refuses a plan."""
    from silo_agent.policy.plan import TARGET_RULE

    if rule == TARGET_RULE:
        return "ask the admin for a plan whose target names layers of this base model"
    where = f"allow it in {config.policy_file}"
    if rule in _IN_SILO_TOML:
        where = f"{_IN_SILO_TOML[rule]} in {data / 'silo.toml'}"
    return f"{where}, or ask for another plan"


def _fitted(config: SiloConfig, policy: Policy, plan: Plan) -> tuple[tuple[str, ...], str]:
    """What the daemon would choose on this machine; no torch without a base model."""
    from silo_agent.machine.hardware import fit
    from silo_agent.machine.limits import restrict_gpus
    from silo_agent.machine.machine import look

    restrict_gpus(policy.limits)
    choice = fit(look(config), plan, config)
    return choice.notes, choice.unfit


def plan_in(path: Path) -> Plan:
    """Read a plan's file.

    Raises:
        CommandError: It cannot be opened.
        PlanError: It is no plan.
    """
    from federation.plan.read import read_plan

    try:
        return read_plan(path.read_bytes())
    except OSError as error:
        raise CommandError(
            f"cannot read {path}: {error}", code="plan_file", exit_code=Exit.ARGUMENTS
        ) from error
