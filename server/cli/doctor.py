"""``chorale doctor``: what is wrong with this coordinator, and how it is mended."""

from __future__ import annotations

from ops.cli.envelope import Format, Output, show_result
from server.cli.program import DEFAULT_DATA, Data, answering

__all__ = ["doctor"]


def doctor(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Examine this coordinator step by step: files, keys, certificates, clock, database, network.

    Changes nothing. Each step ends as ok, warning, failed or skipped, with the fix. A coordinator
    that does not run yet is a warning.

    Exit code 0 if nothing failed, 2 if only connection or authentication did, else 1.
    """
    with answering(output):
        from ops.cli.doctor import answer_checkup
        from server.cli.client import call_once
        from server.site.doctor.doctor import examine_coordinator

        found = examine_coordinator(
            data,
            call=lambda: call_once(data),
            told=lambda finding: show_result(output, *finding.lines),
        )
        answer_checkup(output, found)
