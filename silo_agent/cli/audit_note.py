"""What a command notes in the audit log after it was done.

A departure and a refusal stand whatever the log's state: a damaged file must not keep a silo in a
run, or in a federation. An approval is written down first instead (``silo_agent/cli/runs.py``).
"""

from __future__ import annotations

from pathlib import Path

from federation.audit.lines import Detail
from ops.cli.envelope import say
from silo_agent.books.audit import AuditLog, SiloEvent
from silo_agent.errors import AuditLogError

__all__ = ["note_done"]


def note_done(data: Path, event: SiloEvent, **details: Detail) -> str:
    """Write one record; what went wrong if it could not be written, else empty."""
    try:
        AuditLog(data).append(event, **details)
    except AuditLogError as error:
        say(f"note: it is done, and the audit log does not hold it: {error}")
        say("next: chorale-silo audit verify")
        return str(error)
    return ""
