"""Times, figures and lists in a few words, for a page that is read at three in the morning.

Invariants: a moment is in UTC and says so; nothing is rounded to a value that means something else
(a ratio just below one is never 100 %); what is not known is an em dash.

Covered: spans, ages, ratios with their errors, names. Not covered: escaping (``page.py``).
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from typing import Final

__all__ = [
    "UNKNOWN",
    "ago",
    "byte_count",
    "clock",
    "named",
    "number",
    "percent",
    "short",
    "span",
    "stamp",
    "took",
]

UNKNOWN: Final = "—"
NAMES: Final = 4
_DAY_S: Final = 86400
_LAST_S: Final = 253_402_300_799
"""The end of the year 9999: what a calendar can show."""


def span(seconds: float) -> str:
    """A duration in its two largest units; nothing is negative."""
    whole = max(0, int(seconds)) if math.isfinite(seconds) else 0
    days, rest = divmod(whole, _DAY_S)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days} d {hours} h" if hours and days < 10 else f"{days} d"
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    if minutes:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{rest} s"


def took(seconds: float) -> str:
    """A duration that may be short: tenths of a second below ten."""
    return f"{seconds:.1f} s" if 0 <= seconds < 9.95 else span(seconds)


def ago(unix_s: float, now_unix_s: float) -> str:
    """How long ago, or until when; 0 is never."""
    if unix_s <= 0:
        return "never"
    if unix_s > now_unix_s + 1:
        return f"in {span(unix_s - now_unix_s)}"
    return "now" if now_unix_s - unix_s < 2 else f"{span(now_unix_s - unix_s)} ago"


def clock(unix_s: float, now_unix_s: float) -> str:
    """A moment in UTC: the time alone if it is of the same day; 0 is never."""
    if unix_s <= 0:
        return UNKNOWN
    moment, now = _moment(unix_s), _moment(now_unix_s)
    if moment.date() == now.date():
        return f"{moment:%H:%M:%S} UTC"
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def stamp(unix_s: float) -> str:
    """A moment for machines, as RFC 3339 writes it."""
    return f"{_moment(unix_s):%Y-%m-%dT%H:%M:%SZ}"


def _moment(unix_s: float) -> dt.datetime:
    known = min(max(unix_s, 0.0), _LAST_S) if math.isfinite(unix_s) else 0.0
    return dt.datetime.fromtimestamp(known, tz=dt.UTC)


def percent(ratio: float, *, digits: int = 0) -> str:
    """A ratio in per cent: less than one is never shown as all, more than none never as none."""
    if math.isnan(ratio):
        return UNKNOWN
    if math.isinf(ratio):
        return "∞" if ratio > 0 else "−∞"
    least = 10.0**-digits
    value = round(100 * ratio, digits)
    if 0 < ratio < 1:
        value = min(max(value, least), 100 - least)
    return f"{value:.{digits}f} %".replace("-", "−")


def number(value: float, *, digits: int = 3) -> str:
    """A number with so many significant digits; NaN is unknown."""
    if math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) >= 10**6:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    shown = f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"
    return shown.replace("-", "−")


def short(value: float) -> str:
    """1, 2 or 5 times a power of ten, on a scale, in at most a few characters."""
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:g}"
    digit, _, power = f"{value:.0e}".partition("e")
    return f"{digit}e{int(power)}".replace("-", "−")


def byte_count(count: int) -> str:
    """Bytes in the largest unit that leaves a number above one."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def named(names: Sequence[str], *, most: int = NAMES) -> str:
    """Names in one line, the rest as a number."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"
