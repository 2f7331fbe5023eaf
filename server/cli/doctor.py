"""``chorale doctor``: what is wrong with this coordinator, and how it is mended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.cli.envelope import Format, Output, show_result
from server.cli.program import DEFAULT_DATA, Data, answering

if TYPE_CHECKING:
    from server.site.doctor.network import Called

__all__ = ["call_once", "doctor"]


def doctor(data: Data = DEFAULT_DATA, output: Output = Format.TEXT) -> None:
    """Examine this coordinator step by step: files, keys, certificates, clock, database, network.

    Changes nothing. Each step ends as ok, warning, failed or skipped, with the fix. A coordinator
    that does not run yet is a warning. An advisor that is configured is asked once, for two minutes
    at most.

    Exit code 0 if nothing failed, 2 if only connection or authentication did, else 1.
    """
    with answering(output):
        from ops.cli.doctor import answer_checkup
        from server.site.doctor.doctor import examine_coordinator

        found = examine_coordinator(
            data,
            call=lambda: call_once(data),
            told=lambda finding: show_result(output, *finding.lines),
        )
        answer_checkup(output, found)


def call_once(data_dir: Path) -> Called:
    """Make one authenticated call.

    Raises:
        VersionError: The answer's version is malformed.
    """
    from chorale.v1 import admin_pb2
    from federation.version import read_version
    from server.cli.client import CALL_TIMEOUT_S, connect
    from server.site.doctor.network import Called

    with connect(data_dir) as stub:
        # The stubs do not know that a method has more than one way to be called.
        list_silos: Any = stub.ListSilos
        answer, call = list_silos.with_call(admin_pb2.ListSilosRequest(), timeout=CALL_TIMEOUT_S)
        return Called(silos=len(answer.silos), version=read_version(call.trailing_metadata()))
