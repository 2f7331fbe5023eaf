"""``chorale-silo doctor``: what keeps this silo from taking part, and how it is mended."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ops.cli.envelope import Format, Output, show_result
from silo_agent.cli.program import DEFAULT_DATA, Data, answering

__all__ = ["doctor"]


def doctor(
    *,
    dry_round: Annotated[
        bool,
        typer.Option(
            "--dry-round",
            help="Also play a few episodes, say what they came to, and train on them once; nothing "
            "is charged or kept.",
        ),
    ] = False,
    plan: Annotated[
        Path | None,
        typer.Option(
            help="With --dry-round: play at this plan's temperature and longest answer, also "
            "measure what its longest work takes here, and propose its ready_after_s and "
            "step_answer_after_s.",
        ),
    ] = None,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Examine this silo step by step: keys, certificate, clock, policy, machine, network, roster.

    Changes nothing, spends no budget and uploads nothing. Each step ends as ok, warning, failed or
    skipped, with the fix.

    Exit code 0 if nothing failed, 2 if only connection or authentication did, else 1.
    """
    with answering(output):
        from ops.cli.doctor import answer_checkup
        from silo_agent.cli.policy import plan_in
        from silo_agent.doctor.doctor import examine_silo

        found = examine_silo(
            data,
            dry_round=dry_round,
            told=lambda finding: show_result(output, *finding.lines),
            plan=None if plan is None else plan_in(plan),
        )
        answer_checkup(output, found)
