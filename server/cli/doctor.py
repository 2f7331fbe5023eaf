"""``chorale doctor``: what is wrong with this coordinator, and how it is mended."""

from __future__ import annotations

from server.cli.envelope import (
    DEFAULT_DATA,
    CommandError,
    Data,
    Exit,
    Format,
    Output,
    answering,
    show_result,
    succeed,
)

__all__ = ["doctor"]


def doctor(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Examine this coordinator step by step: files, keys, certificates, clock, database, network.

    Changes nothing. Each step ends as ok, warning, failed or skipped, with the fix. A coordinator
    that does not run yet is a warning.

    Exit code 0 if nothing failed, 2 if only connection or authentication did, else 1.
    """
    with answering(output):
        from ops.doctor.checkup import Outcome
        from server.cli.client import call_once
        from server.site.doctor.doctor import examine_coordinator

        found = examine_coordinator(
            data,
            call=lambda: call_once(data),
            told=lambda finding: show_result(output, *finding.lines),
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
