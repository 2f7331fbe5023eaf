"""What a silo's log says of the version that the coordinator runs.

One line at the first answer, and one at each change. A coordinator of an older protocol works, but
for what it does not know: the line says what that is, and by when it matters here.

Covered: what this version has beyond the one before it. Not covered: a coordinator that no protocol
is shared with; its answers are refused (``silo_agent/line/channel.py``).
"""

from __future__ import annotations

import datetime as dt
from typing import Final

import structlog

from federation.version import MEMBERSHIP, Version
from silo_agent.identity.identity import Identity

__all__ = ["missing_with", "report_version"]

log = structlog.get_logger(__name__)

_MISSING: Final = (
    "this silo's certificate is not renewed and ends on {ends}; audit heads are not exchanged; "
    "a run that waits for approval by hand counts as refused; rosters are the root's alone; "
    "chorale-silo leave does not reach it"
)


def missing_with(version: Version, mine: Identity) -> str:
    """Say what does not work with a coordinator of this version.

    Args:
        version: The coordinator's.
        mine: This silo.

    Returns:
        One line; empty if nothing is missing.
    """
    if version.newest >= MEMBERSHIP:
        return ""
    ends = dt.datetime.fromtimestamp(mine.certificate_expiry_unix_s, dt.UTC)
    return _MISSING.format(ends=f"{ends:%F %R} UTC")


def report_version(version: Version, mine: Identity) -> None:
    """Log which version the coordinator runs.

    Args:
        version: What it says.
        mine: This silo.
    """
    missing = missing_with(version, mine)
    if missing:
        log.warning(
            "coordinator_is_older",
            version=str(version),
            missing=missing,
            advice="ask the admin to upgrade the coordinator",
        )
    else:
        log.info("coordinator_version", version=str(version))
