"""``chorale-silo runs``, ``approve``, ``refuse`` and ``preview``: what an operator decides on.

All of it works while the daemon runs and asks the coordinator nothing. The daemon hears a word
before it begins anything else; it is not restarted.

Invariants: an approval names the plan by its whole digest, as ``runs`` and ``preview`` show it, for
a coordinator may ask for another plan under the same run at any moment; it is in the audit log
before it holds. A refusal holds first. A preview is shown whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dp.config import ADJACENCY
from ops.cli.envelope import CommandError, Exit, Format, Output, say, show_result, succeed
from silo_agent.cli.program import DEFAULT_DATA, Data, answering

if TYPE_CHECKING:
    from silo_agent.policy.approvals import Word
    from silo_agent.views.preview import Preview, Said
    from silo_agent.views.runs import ListedRun

__all__ = ["approve", "preview", "preview_lines", "refuse", "runs"]

Run = Annotated[str, typer.Argument(help="The run's id, as `chorale-silo runs` shows it.")]
PlanDigest = Annotated[
    str, typer.Option("--plan-sha256", help="Of the plan, in full, as runs and preview show it.")
]

MayVary = Annotated[
    bool,
    typer.Option(
        "--cohort-may-vary",
        help="Without noise: let a sum be of silos that were not in the one before.",
    ),
]


def runs(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Runs this silo has heard of: what waits, what was decided, what it cost."""
    with answering(output):
        found = _listed(data)
        for run in found:
            show_result(output, *run.lines())
        if not found:
            say("this silo has not heard of any run")
        succeed(output, {"runs": [run.as_data() for run in found]})


def approve(
    run: Run,
    plan_sha256: PlanDigest = "",
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
    *,
    cohort_may_vary: MayVary = False,
) -> None:
    """Approve a run's plan; another plan under the same run needs another approval."""
    with answering(output):
        from silo_agent.books.audit import AuditLog, SiloEvent
        from silo_agent.policy.approvals import Approvals
        from silo_agent.policy.plan import SELECTION_RULE

        asked = _asked(data, run)
        _require_plan(asked, plan_sha256)
        word, directory = _word(asked, approved=True, may_vary=cohort_may_vary), _directory(data)
        # Written down first: what is allowed is never more than what an auditor can read.
        varies = {"cohort_may_vary": True} if cohort_may_vary else {}
        AuditLog(directory).append(
            SiloEvent.APPROVAL_GIVEN, run=run, plan_sha256=asked.plan_sha256, by=word.by, **varies
        )
        Approvals(directory).say(word)
        show_result(output, f"approved plan {asked.plan_sha256[:12]} of run {run}")
        if cohort_may_vary:
            show_result(
                output,
                "its cohorts may vary without noise, if every silo of a sum says so: sums of "
                "different cohorts can be subtracted, and may tell about this silo alone",
            )
        for unit, cost in asked.epsilons_at_most.items():
            show_result(
                output, f"the run costs at most epsilon {cost} for each {unit} ({ADJACENCY})"
            )
        lifted = {"refused_by_operator"} | ({SELECTION_RULE} if cohort_may_vary else set())
        if asked.rule and asked.rule not in lifted:
            say(f"note: rule {asked.rule} of the policy refused it, and still does")
        succeed(output, {**_decided(asked, approved=True), "cohort_may_vary": cohort_may_vary})


def refuse(run: Run, data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Refuse a run, whatever its plan; what is open is finished, nothing more begins."""
    with answering(output):
        from silo_agent.books.audit import SiloEvent
        from silo_agent.cli.audit_note import note_done
        from silo_agent.policy.approvals import Approvals

        asked = _asked(data, run)
        word, directory = _word(asked, approved=False), _directory(data)
        Approvals(directory).say(word)
        not_audited = note_done(
            directory,
            SiloEvent.APPROVAL_REFUSED,
            run=run,
            plan_sha256=asked.plan_sha256,
            by=word.by,
        )
        show_result(output, f"refused run {run}")
        say(f"to take it back: {asked.approving}")
        succeed(output, {**_decided(asked, approved=False), "not_audited": not_audited})


def preview(run: Run, data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Show exactly what this silo sends in a run: in clear, masked, and what never leaves."""
    with answering(output):
        from silo_agent.views.preview import preview as look
        from silo_agent.views.runs import approving

        found = look(data, run)
        show_result(output, *preview_lines(found))
        say(f"to approve exactly this plan: {approving(run, found.plan_sha256)}")
        succeed(output, found.as_data())


def preview_lines(shown: Preview) -> Iterator[str]:
    """Everything of a preview, for people; nothing is summed up away."""
    old = " (not post-quantum)" if shown.suite == "v1" else ""
    yield (
        f"run {shown.run_id}, plan {shown.plan_sha256[:12]}, mode {shown.mode}, "
        f"suite {shown.suite}{old}"
    )
    attempt = "not opened yet" if shown.attempt is None else str(shown.attempt)
    yield f"round {shown.round}, step {shown.step}, attempt {attempt}"
    yield f"cohort: {', '.join(shown.cohort) or 'not known yet'}"
    parts = (
        ("THE MASKED VECTOR", _vector(shown)),
        ("WHAT IT COSTS", _costs(shown)),
        ("WHAT IS SENT IN ONE ATTEMPT (Refuse only instead of it)", _requests(shown.attempt_says)),
        ("WHAT THE DAEMON SENDS BESIDE IT", _requests(shown.daemon_says)),
        ("WHAT NEVER LEAVES", (f"  {item}" for item in shown.never)),
    )
    for title, body in parts:
        yield ""
        yield title
        yield from body
    for note in shown.notes:
        yield f"note: {note}"


def _listed(data: Path) -> tuple[ListedRun, ...]:
    from silo_agent.config import SiloConfig
    from silo_agent.policy.document import Policy
    from silo_agent.views.runs import list_runs

    config = SiloConfig.load(data)
    return list_runs(config.data_dir, Policy.load(config.policy_file))


def _directory(data: Path) -> Path:
    from silo_agent.config import SiloConfig

    return SiloConfig.load(data).data_dir


def _asked(data: Path, run: str) -> ListedRun:
    """The run as it stands."""
    asked = next((one for one in _listed(data) if one.run == run), None)
    if asked is None:
        raise CommandError(
            f"this silo has not heard of run {run!r}",
            code="unknown_run",
            exit_code=Exit.ARGUMENTS,
            next_step="chorale-silo runs",
        )
    return asked


def _require_plan(asked: ListedRun, plan_sha256: str) -> None:
    """Go on only with the one plan that the operator names, and that can be read."""
    if not plan_sha256:
        raise CommandError(
            "an approval names the plan by its digest: --plan-sha256",
            code="plan_not_named",
            exit_code=Exit.ARGUMENTS,
            next_step=f"chorale-silo preview {asked.run} shows the plan and the whole command",
        )
    if plan_sha256.lower() != asked.plan_sha256:
        raise CommandError(
            f"run {asked.run} asks for plan {asked.plan_sha256}, not for {plan_sha256}",
            code="another_plan",
            exit_code=Exit.ARGUMENTS,
            next_step=f"chorale-silo preview {asked.run}",
        )
    if not asked.readable:
        raise CommandError(
            f"the plan of run {asked.run} cannot be read here",
            code="plan_unreadable",
            exit_code=Exit.ARGUMENTS,
            next_step=f"chorale-silo preview {asked.run} says why; the run's next task brings it",
        )


def _word(asked: ListedRun, *, approved: bool, may_vary: bool = False) -> Word:
    import time

    from silo_agent.policy.approvals import Word, operating_user

    return Word(
        run_id=asked.run,
        plan_sha256=bytes.fromhex(asked.plan_sha256),
        approved=approved,
        by=operating_user(),
        at_unix_s=int(time.time()),
        cohort_may_vary=may_vary,
    )


def _decided(asked: ListedRun, *, approved: bool) -> dict[str, object]:
    return {
        "run": asked.run,
        "plan_sha256": asked.plan_sha256,
        "approved": approved,
        "epsilons_at_most": {unit: asdict(cost) for unit, cost in asked.epsilons_at_most.items()},
    }


def _vector(shown: Preview) -> Iterator[str]:
    if shown.dimension is None or shown.upload_bytes is None:
        yield "  its size is not known yet"
    else:
        yield (
            f"  {shown.dimension} coordinates of the update ({shown.dimension_from}) and "
            f"{len(shown.metrics)} of metrics, {shown.upload_bytes} bytes"
        )
    yield from _noise(shown)
    if shown.upload_sha256 is not None:
        yield f"  in the spool now, ready to be sent: SHA-256 {shown.upload_sha256}"
    for figure in shown.metrics:
        noise = "" if figure.noise is None else f", noise of this silo {figure.noise:.4g}"
        yield f"  metric {figure.name}: from 0 to {figure.bound:g}{noise}"


def _costs(shown: Preview) -> Iterator[str]:
    for unit, cost in shown.charged.items():
        at = f"at delta {shown.delta:g} ({ADJACENCY})"
        yield f"  this attempt: epsilon {cost} for each {unit} {at}"
    for unit, cost in shown.charged_by_run.items():
        yield f"  the whole run: at most epsilon {cost} for each {unit} ({ADJACENCY})"
    if not shown.charged:
        yield "  nothing is charged: there is no noise, and no epsilon describes it"
    yield f"  ledger: record {shown.ledger_seq}, head {shown.ledger_sha256[:12]}"


def _noise(shown: Preview) -> Iterator[str]:
    trained = shown.trained_with
    if trained is not None:
        yield (
            f"  trained with noise, which is in it before it is masked: {trained.steps} steps a "
            f"round, each on a part {trained.sampling_rate:g} of the {trained.unit}s, the gradient "
            f"of each clipped to {trained.clip_l2:g}"
        )
        yield (
            f"  and on their sum noise of {trained.noise_multiplier:g} times that clip, "
            f"{trained.noise_multiplier * trained.clip_l2:g}; this silo alone adds all of it"
        )
    clipped = f"  clipped to {shown.clip_l2:g}; "
    mine = "" if shown.noise_per_silo is None else f"; this silo adds {shown.noise_per_silo:.4g}"
    if shown.noise_in_sum:
        on_top = "" if trained is None else "on top of that "
        yield (
            f"{clipped}{on_top}any sum that can be opened holds noise of at least "
            f"{shown.noise_in_sum:g}{mine}"
        )
    elif trained is not None:
        yield f"{clipped}no more noise is added when it is masked"
    else:
        yield f"{clipped}no noise on the update: masks alone hide it, and the sum is exact"


def _requests(requests: Sequence[Said]) -> Iterator[str]:
    for said in requests:
        times = f"{said.messages} messages, " if said.messages > 1 else ""
        yield f"  {said.request}: {times}{said.size_bytes} bytes"
        for field in said.fields:
            many = f" x{field.count}" if field.count > 1 else ""
            value = f" = {field.value}" if field.value else ""
            size = f"{field.size_bytes} bytes, {field.seen}"
            yield f"    {field.field}{many}{value} ({size}): {field.about}"
