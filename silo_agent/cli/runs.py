"""``chorale-silo runs``, ``approve``, ``refuse`` and ``preview``: what an operator decides on.

All of it works while the daemon runs and asks the coordinator nothing. The daemon hears a word
before it begins anything else; it is not restarted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silo_agent.cli.envelope import CommandError, Exit, Format, answering, say, succeed

if TYPE_CHECKING:
    from silo_agent.run_list import ListedRun

__all__ = ["approve", "preview", "refuse", "runs"]

DEFAULT_DATA = Path("silo-data")
Data = Annotated[
    Path, typer.Option("--data", envvar="CHORALE_SILO_DATA", help="This silo's data directory.")
]
Output = Annotated[
    Format, typer.Option("--format", help="json prints one envelope on stdout.", show_default=True)
]
Run = Annotated[str, typer.Argument(help="The run's id, as `chorale-silo runs` shows it.")]
PlanDigest = Annotated[
    str | None,
    typer.Option("--plan-sha256", help="Only if this is the plan that the run asks for."),
]


def runs(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Runs this silo has heard of: what waits, what was decided, what it cost."""
    with answering(output):
        found = _listed(data)
        for run in found:
            for line in run.lines():
                say(line)
        if not found:
            say("this silo has not heard of any run")
        succeed(output, {"runs": [run.as_data() for run in found]})


def approve(
    run: Run,
    plan_sha256: PlanDigest = None,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Approve a run's plan; another plan under the same run needs another approval."""
    with answering(output):
        asked = _say(data, run, approved=True, plan_sha256=plan_sha256)
        say(f"approved plan {asked.plan_sha256[:12]} of run {run}")
        for unit, cost in asked.epsilons_at_most.items():
            say(f"the run costs at most epsilon {cost:.4g} for each {unit}")
        if asked.rule and asked.rule != "refused_by_operator":
            say(f"note: rule {asked.rule} of the policy refused it, and still does")
        succeed(output, _decided(asked, approved=True))


def refuse(run: Run, data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Refuse a run, whatever its plan; what is open is finished, nothing more begins."""
    with answering(output):
        asked = _say(data, run, approved=False, plan_sha256=None)
        say(f"refused run {run}; `chorale-silo approve {run}` takes it back")
        succeed(output, _decided(asked, approved=False))


def preview(run: Run, data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Show exactly what this silo sends in a run: in clear, masked, and what never leaves."""
    with answering(output):
        from silo_agent.cli.preview_text import lines
        from silo_agent.preview import preview as look

        found = look(data, run)
        for line in lines(found):
            say(line)
        succeed(output, found.as_data())


def _listed(data: Path) -> tuple[ListedRun, ...]:
    from silo_agent.config import SiloConfig
    from silo_agent.policy_document import Policy
    from silo_agent.run_list import list_runs

    config = SiloConfig.load(data)
    return list_runs(config.data_dir, Policy.load(config.policy_file))


def _say(data: Path, run: str, *, approved: bool, plan_sha256: str | None) -> ListedRun:
    """Write the operator's word down; the run as it stood before."""
    import time

    from silo_agent.approvals import Approvals, Word, operating_user
    from silo_agent.audit import AuditLog, SiloEvent
    from silo_agent.config import SiloConfig

    asked = next((one for one in _listed(data) if one.run == run), None)
    if asked is None:
        raise CommandError(
            f"this silo has not heard of run {run!r}",
            code="unknown_run",
            exit_code=Exit.ARGUMENTS,
            next_step="chorale-silo runs",
        )
    if plan_sha256 is not None and plan_sha256.lower() != asked.plan_sha256:
        raise CommandError(
            f"run {run} asks for plan {asked.plan_sha256}, not for {plan_sha256}",
            code="another_plan",
            exit_code=Exit.ARGUMENTS,
            next_step=f"chorale-silo preview {run}",
        )
    directory = SiloConfig.load(data).data_dir
    user = operating_user()
    event = SiloEvent.APPROVAL_GIVEN if approved else SiloEvent.APPROVAL_REFUSED
    # Written down first: what is said is never more than what an auditor can read.
    AuditLog(directory).append(event, run=run, plan_sha256=asked.plan_sha256, by=user)
    Approvals(directory).say(
        Word(
            run_id=run,
            plan_sha256=bytes.fromhex(asked.plan_sha256),
            approved=approved,
            by=user,
            at_unix_s=int(time.time()),
        )
    )
    return asked


def _decided(asked: ListedRun, *, approved: bool) -> dict[str, object]:
    return {
        "run": asked.run,
        "plan_sha256": asked.plan_sha256,
        "approved": approved,
        "epsilons_at_most": dict(asked.epsilons_at_most),
    }
