"""``chorale-silo doctor``: what keeps this silo from taking part, and how it is mended."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silo_agent.cli.envelope import CommandError, Exit, Format, answering, show_result, succeed

__all__ = ["doctor"]

DEFAULT_DATA = Path("silo-data")

Data = Annotated[
    Path, typer.Option("--data", envvar="CHORALE_SILO_DATA", help="This silo's data directory.")
]
Output = Annotated[
    Format, typer.Option("--format", help="json prints one envelope on stdout.", show_default=True)
]


def doctor(
    *,
    dry_round: Annotated[
        bool,
        typer.Option(
            "--dry-round",
            help="Also play a few episodes and train on them once; nothing is charged or kept.",
        ),
    ] = False,
    data: Data = DEFAULT_DATA,
    output: Output = Format.TEXT,
) -> None:
    """Examine this silo step by step: keys, certificate, clock, policy, machine, network, roster.

    Changes nothing, spends no budget and uploads nothing. Each step ends as ok, warning, failed or
    skipped, with the fix.

    Exit code 0 if nothing failed, 2 if only connection or authentication did, else 1.
    """
    with answering(output):
        from ops.doctor.checkup import Outcome
        from silo_agent.doctor.doctor import examine_silo

        found = examine_silo(
            data, dry_round=dry_round, told=lambda finding: show_result(output, *finding.lines)
        )
        broken = found.first_failed
        if broken is not None:
            raise CommandError(
                f"{found.count(Outcome.FAILED)} of {len(found.findings)} steps failed, first: "
                f"{broken.name}: {broken.found}",
                code=f"doctor_{broken.name}",
                exit_code=Exit.CONNECT if found.only_connection else Exit.SERVER,
                next_step=broken.fix,
                data=found.as_data(),
            )
        show_result(output, f"nothing failed, {found.count(Outcome.WARNING)} warning(s)")
        succeed(output, found.as_data())
