"""Values as a person reads them, by Grafana's ids of units.

Covered: the units that the dashboards use; another one is an error, so that none is drawn wrongly.
Not covered: Grafana's rounding to the last digit.
"""

from __future__ import annotations

import math
from typing import Final

from deploy.grafana.errors import PanelError

__all__ = ["shown"]

_SECONDS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
_SI: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_BINARY: Final = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    """One value with its unit, which is Grafana's id; ``percentunit`` is a share of 1.

    Without ``decimals`` there are as many digits after the point as are of use.

    Raises:
        PanelError: The unit is not known here.
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    sign, size = ("−" if value < 0 else ""), abs(value)
    if unit == "percentunit":
        return f"{sign}{_digits(100 * size, decimals)} %"
    if unit.startswith("suffix:"):
        return f"{sign}{_digits(size, decimals)} {unit.removeprefix('suffix:').strip()}"
    scales = _scales(unit)
    if scales is None:
        raise PanelError(f"the contact sheet does not know the unit {unit!r}")
    # The smallest that leaves a figure before the point; zero has the middle of the road.
    factor, name = next((one for one in scales if size >= one[0]), scales[-1])
    if size == 0:
        factor, name = next(one for one in (*scales, (1.0, "")) if one[0] == 1.0)
    if factor == 1.0:
        text = _digits(size, decimals)
    else:
        text = _digits(size / factor, None if decimals in {None, 0} else decimals)
    return f"{sign}{text} {name}".rstrip()


def _scales(unit: str) -> tuple[tuple[float, str], ...] | None:
    if unit == "none":
        return ((1.0, ""),)
    if unit == "s":
        return _SECONDS
    if unit == "bytes":
        return (*_BINARY, (1.0, "B"))
    suffix = {"Bps": "B/s", "reqps": "req/s"}.get(unit, unit.removeprefix("si:"))
    if suffix == unit:
        return None
    return tuple((factor, f"{prefix}{suffix}") for factor, prefix in _SI)


def _digits(size: float, decimals: int | None) -> str:
    if size >= 1e7:
        return f"{size:.3g}"
    if decimals is not None:
        return f"{size:.{decimals}f}"
    if size == 0:
        return "0"
    if size < 1e-3:
        return f"{size:.2e}"
    text = f"{size:.{max(0, 2 - math.floor(math.log10(size)))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
