"""Panels: five kinds, each made of the types of Grafana's own SDK.

Invariants:

1. A panel says what it shows and what to do when that looks wrong; it has a unit and a query.
2. It reads from the dashboard's data source variable and from no other.
3. A colour means attention; what asks for none has the colour of text, and lines are told apart by
   the palette.

Covered: what one panel draws. Not covered: where it stands (``dashboard.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Required, TypeAlias, TypedDict, Unpack

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import common as shared
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.grafana.errors import PanelError

__all__ = [
    "CALM",
    "DASHED",
    "DATASOURCE",
    "DAYS",
    "ENDLESS",
    "FULL_WIDTH",
    "RIGHT",
    "Column",
    "Frame",
    "Query",
    "bars",
    "colour",
    "figures",
    "lines",
    "link",
    "rows",
    "timeline",
]

FULL_WIDTH: Final = 24
"""Columns of Grafana's grid."""
DATASOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
CALM: Final = "text"
"""The colour of what asks for no attention."""
DASHED: Final = {"custom.lineStyle": {"fill": "dash", "dash": [8, 6]}, "custom.lineWidth": 1}
_PLUGIN_VERSION: Final = "11.6.0"
"""Of the SDK's schema; without one Grafana takes a panel's options for very old."""
DAYS: Final = "suffix:d"
"""Grafana's own unit of days turns 30 of them into weeks."""
ENDLESS: Final = ((1e30, None, "no bound", "orange"),)
"""An ε without a bound: something is released without noise."""
RIGHT: Final = {"custom.axisPlacement": "right"}
"""For a series of another unit."""

Steps: TypeAlias = Sequence[tuple[float | None, str]]
Mappings: TypeAlias = Sequence[tuple[float, float | None, str, str]]
_Builder: TypeAlias = (
    bargauge.Panel | stat.Panel | statetimeline.Panel | table.Panel | timeseries.Panel
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One query."""

    expr: str
    legend: str = ""
    """Grafana's format: ``{{label}}`` stands for a label's value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column of a table."""

    source: str
    """A label, or ``A``, ``B``… for the value of that query."""
    title: str
    unit: str = ""
    above: float | None = None
    """From this value on it asks for attention."""


class Frame(TypedDict, total=False):
    """What every kind of panel has."""

    title: Required[str]
    shows: Required[str]
    remedy: Required[str]
    """What to do when it looks wrong."""
    queries: Required[Sequence[Query]]
    unit: str
    """Grafana's id of the unit."""
    width: int
    height: int
    decimals: int
    quiet: str
    """What is said in place of data; given where having none is nothing to worry about."""
    steps: Steps
    """From which value on which colour; the first has no value."""
    mappings: Mappings
    """Values from, to (None: without end), read as a text, in a colour."""
    overrides: Mapping[str, Mapping[str, Any]]
    """Series by its name, or by ``/a pattern/``, to Grafana's property ids and values."""
    runbooks: Sequence[str]
    """Alerts whose runbooks are linked."""


def figures(*, names: bool = True, **frame: Unpack[Frame]) -> model.Panel:
    """The newest value of each series, large; ``names`` alone where values say nothing."""
    text = shared.BigValueTextMode
    panel = (
        stat.Panel()
        .reduce_options(_newest())
        .text_mode(text.VALUE_AND_NAME if names else text.NAME)
        .color_mode(shared.BigValueColorMode.VALUE)
        .graph_mode(shared.BigValueGraphMode.NONE)
        .color_scheme(_by(model.FieldColorModeId.THRESHOLDS))
    )
    return _framed(panel, frame, instant=True)


def lines(
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    logarithmic: bool = False,
    **frame: Unpack[Frame],
) -> model.Panel:
    """Series over time; a threshold is drawn as a dashed line."""
    scale = common.ScaleDistributionConfig()
    if logarithmic:
        scale.type(shared.ScaleDistribution.LOG).log(10)
    else:
        scale.type(shared.ScaleDistribution.LINEAR)
    style = shared.GraphThresholdsStyleMode
    panel = (
        timeseries.Panel()
        .color_scheme(_by(model.FieldColorModeId.PALETTE_CLASSIC))
        .line_width(2)
        .fill_opacity(0)
        .scale_distribution(scale)
        .thresholds_style(
            common.GraphThresholdsStyleConfig().mode(
                style.DASHED if "steps" in frame else style.OFF
            )
        )
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(shared.LegendDisplayMode.LIST)
            .placement(shared.LegendPlacement.BOTTOM)
            .calcs(["lastNotNull"])
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(shared.TooltipDisplayMode.MULTI)
            .sort(shared.SortOrder.DESCENDING)
        )
    )
    if minimum is not None:
        panel.min(minimum)
    if maximum is not None:
        panel.max(maximum)
    return _framed(panel, frame)


def timeline(**frame: Unpack[Frame]) -> model.Panel:
    """A line for each series that is marked while its value is 1."""
    panel = (
        statetimeline.Panel()
        .color_scheme(_by(model.FieldColorModeId.THRESHOLDS))
        .show_value(shared.VisibilityMode.NEVER)
        .merge_values(True)
        .row_height(0.8)
        .per_page(20)
        .legend(
            common.VizLegendOptions()
            .show_legend(False)
            .display_mode(shared.LegendDisplayMode.LIST)
            .placement(shared.LegendPlacement.BOTTOM)
            .calcs([])
        )
    )
    return _framed(panel, frame)


def bars(*, maximum: float | None = None, **frame: Unpack[Frame]) -> model.Panel:
    """The newest value of each series, as bars below each other."""
    panel = (
        bargauge.Panel()
        .reduce_options(_newest())
        .orientation(shared.VizOrientation.HORIZONTAL)
        .display_mode(shared.BarGaugeDisplayMode.BASIC)
        .color_scheme(_by(model.FieldColorModeId.THRESHOLDS))
        .min(0)
    )
    if maximum is not None:
        panel.max(maximum)
    return _framed(panel, frame, instant=True)


def rows(*, columns: Sequence[Column], **frame: Unpack[Frame]) -> model.Panel:
    """A table of the newest values, a row for each set of labels.

    Raises:
        PanelError: There is no column.
    """
    if not columns:
        raise PanelError(f"panel {frame['title']!r} has no columns")
    panel = table.Panel().color_scheme(_by(model.FieldColorModeId.THRESHOLDS)).show_header(True)
    names = {
        f"Value #{one.source}" if len(one.source) == 1 and len(frame["queries"]) > 1
        else "Value" if len(one.source) == 1
        else one.source: one.title
        for one in columns
    }  # fmt: skip
    panel.transformations(
        [
            model.DataTransformerConfig(id_val="merge", options={}),
            model.DataTransformerConfig(
                id_val="filterFieldsByName", options={"include": {"names": list(names)}}
            ),
            model.DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {},
                    "indexByName": {name: at for at, name in enumerate(names)},
                    "renameByName": names,
                },
            ),
        ]
    )
    for one in columns:
        properties: dict[str, Any] = {"unit": one.unit} if one.unit else {}
        if one.above is not None:
            steps = [{"value": None, "color": CALM}, {"value": one.above, "color": "orange"}]
            properties["thresholds"] = {"mode": "absolute", "steps": steps}
            properties["custom.cellOptions"] = {"type": "color-text"}
        if properties:
            panel.override_by_name(one.title, _properties(properties))
    return _framed(panel, frame, instant=True, table_format=True)


def colour(name: str) -> dict[str, Any]:
    """Properties that give a series one of Grafana's colours."""
    return {"color": {"mode": "fixed", "fixedColor": name}}


def link(title: str, url: str) -> build.DashboardLink:
    """A link that opens beside the dashboard."""
    opened = build.DashboardLink(title).type(model.DashboardLinkType.LINK)
    return opened.url(url).icon("doc").target_blank(True)


def _framed(
    panel: _Builder, frame: Frame, *, instant: bool = False, table_format: bool = False
) -> model.Panel:
    """Put a frame around a panel of any kind, and make it.

    Raises:
        PanelError: Something that a reader needs is missing, or it does not fit the grid.
    """
    for name in ("title", "shows", "remedy", "queries"):
        if not frame.get(name):
            raise PanelError(f"panel {frame.get('title')!r} has no {name}")
    width, height = frame.get("width", 8), frame.get("height", 8)
    if not 1 <= width <= FULL_WIDTH or height < 1:
        raise PanelError(f"panel {frame['title']!r} does not fit the grid")
    steps = frame.get("steps", ((None, CALM),))
    if steps[0][0] is not None:
        raise PanelError(f"panel {frame['title']!r}: the first threshold has no value")
    panel.title(frame["title"])
    panel.description(f"{frame['shows']}\n\n**When it looks wrong:** {frame['remedy']}")
    panel.datasource(DATASOURCE)
    panel.grid_pos(model.GridPos(w=width, h=height))
    panel.unit(frame.get("unit", "none"))
    panel.thresholds(
        build.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value=value, color=name) for value, name in steps])
    )
    panel.mappings([_mapping(at, *one) for at, one in enumerate(frame.get("mappings", ()))])
    if "decimals" in frame:
        panel.decimals(frame["decimals"])
    if "quiet" in frame:
        panel.no_value(frame["quiet"])
    for name, properties in frame.get("overrides", {}).items():
        if name.startswith("/"):
            panel.override_by_regexp(name, _properties(properties))
        else:
            panel.override_by_name(name, _properties(properties))
    panel.links([link(f"Runbook: {n}", f"${{runbooks}}/{n}.md") for n in frame.get("runbooks", ())])
    for at, one in enumerate(frame["queries"]):
        query = (
            prometheus.Dataquery()
            .ref_id(chr(ord("A") + at))
            .datasource(DATASOURCE)
            .expr(one.expr)
            .legend_format(one.legend or "__auto")
            .format(PromQueryFormat.TABLE if table_format else PromQueryFormat.TIME_SERIES)
        )
        panel.with_target(query.instant() if instant else query.range())
    made = panel.build()
    made.plugin_version = _PLUGIN_VERSION
    return made


def _newest() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False)


def _by(mode: model.FieldColorModeId) -> build.FieldColor:
    return build.FieldColor().mode(mode)


def _mapping(at: int, low: float, high: float | None, text: str, name: str) -> model.RangeMap:
    result = model.ValueMappingResult(text=text, color=name, index=at)
    return model.RangeMap(
        options=model.DashboardRangeMapOptions(from_val=low, to=high, result=result)
    )


def _properties(values: Mapping[str, Any]) -> list[model.DynamicConfigValue]:
    return [model.DynamicConfigValue(id_val=key, value=value) for key, value in values.items()]
