"""Moments and durations as operators read and type them."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

from ops.cli.envelope import CommandError, Exit

__all__ = ["duration_s", "shown"]

_DURATION: Final = re.compile(r"([0-9]{1,6})([smhd])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def duration_s(text: str, option: str) -> int:
    """Read a duration like 30m, 24h or 7d; else a CommandError names the option."""
    matched = _DURATION.fullmatch(text)
    if matched is None:
        raise CommandError(
            f"{option} {text!r} is not a duration like 30m, 24h or 7d",
            code="arguments",
            exit_code=Exit.ARGUMENTS,
        )
    return int(matched[1]) * _UNIT_S[matched[2]]


def shown(unix_s: int) -> str:
    """Write a moment, or ``never`` for 0."""
    if unix_s == 0:
        return "never"
    return dt.datetime.fromtimestamp(unix_s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
