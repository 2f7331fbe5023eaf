"""What a panel is: its queries, how its values read, and what a person is to do about it.

Invariants: a panel says what it shows and what to do when that looks wrong; it has a unit and at
least one query. Colours are Grafana's names.

Covered: the five kinds of panels the dashboards use. Not covered: how Grafana writes them down
(``panel_json.py``) and where they stand (``dashboard.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from deploy.grafana.errors import PanelError

__all__ = [
    "FULL_WIDTH",
    "Column",
    "Kind",
    "Legend",
    "Mapped",
    "Override",
    "Panel",
    "Query",
]

FULL_WIDTH: Final = 24
"""Columns of Grafana's grid."""


class Kind(StrEnum):
    """How a panel draws; Grafana's names of its own plug-ins."""

    LINES = "timeseries"
    TIMELINE = "state-timeline"
    STAT = "stat"
    BARS = "bargauge"
    TABLE = "table"


class Legend(StrEnum):
    """Where series are named."""

    NONE = "none"
    BELOW = "below"
    BESIDE = "beside"


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One query."""

    expr: str
    legend: str = ""
    """Grafana's format: ``{{label}}`` stands for a label's value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mapped:
    """Values from ``low`` to ``high`` read as a text."""

    low: float
    high: float | None
    """None: without end."""
    text: str
    colour: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """What is different for the series of one name."""

    name: str
    properties: Mapping[str, Any]
    """Grafana's property ids to values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column of a table."""

    source: str
    """A label, or ``A``, ``B``… for the value of that query."""
    title: str
    unit: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One panel."""

    kind: Kind
    title: str
    shows: str
    remedy: str
    """What to do when it looks wrong."""
    queries: tuple[Query, ...]
    unit: str
    """Grafana's id of the unit."""
    width: int = 8
    height: int = 8
    decimals: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    soft_minimum: float | None = None
    soft_maximum: float | None = None
    thresholds: tuple[tuple[float | None, str], ...] = ((None, "blue"),)
    """From which value on which colour; the first has no value. Lines show a warning's as lines."""
    mappings: tuple[Mapped, ...] = ()
    overrides: tuple[Override, ...] = ()
    quiet: str = ""
    """What is said in place of data; given where having none is nothing to worry about."""
    steps: bool = False
    """A value holds until the next one; without it lines run from one to the next."""
    logarithmic: bool = False
    legend: Legend = Legend.BELOW
    calcs: tuple[str, ...] = ("lastNotNull",)
    """What the legend says of each series; Grafana's names."""
    columns: tuple[Column, ...] = ()
    text: str = "auto"
    """What a stat shows: ``auto``, ``value``, ``name`` or ``value_and_name``."""
    runbooks: tuple[str, ...] = ()
    """Alerts whose runbooks are linked."""
    repeat: str = ""
    """A variable: one panel for each of its values."""

    def __post_init__(self) -> None:
        """Check.

        Raises:
            PanelError: Something that a reader or Grafana needs is missing.
        """
        for name in ("title", "shows", "remedy", "unit", "queries"):
            if not getattr(self, name):
                raise PanelError(f"panel {self.title!r} has no {name}")
        if not 1 <= self.width <= FULL_WIDTH or self.height < 1:
            raise PanelError(f"panel {self.title!r} does not fit the grid")
        if (self.kind is Kind.TABLE) != bool(self.columns):
            raise PanelError(f"panel {self.title!r}: a table has columns, and nothing else has")
        if self.thresholds[0][0] is not None:
            raise PanelError(f"panel {self.title!r}: the first threshold has no value")
