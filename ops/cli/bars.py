"""A curve in one line of text, for terminals and logs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

__all__ = ["bars"]

_BARS: Final = "▁▂▃▄▅▆▇█"
_GAP: Final = "·"
_NEWEST: Final = 60
"""Of a long curve the newest values are shown."""


def bars(values: Sequence[float], *, newest: int = _NEWEST) -> str:
    """A curve of ratios from 0 to 1 in one line; NaN, where there is no figure, is a gap.

    Of more values than ``newest`` only so many of the newest are shown.
    """
    return "".join(
        _GAP if math.isnan(value) else _BARS[min(7, max(0, int(value * 8)))]
        for value in values[-newest:]
    )
