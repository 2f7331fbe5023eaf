"""A panel as Grafana writes it down.

Invariants: a panel reads from the dashboard's data source variable and from no other; what a panel
does not say is written out with one fixed value, so that a newer Grafana's defaults change nothing.

Covered: the classic dashboard model, which every Grafana reads. Not covered: its second,
resource-like model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from deploy.grafana.panel import Kind, Legend, Panel

__all__ = ["DATASOURCE", "PLUGIN_VERSION", "panel_json"]

DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
PLUGIN_VERSION: Final = "12.0.0"
"""Of the plug-ins whose options are written here; without one Grafana takes them for very old."""
_CLEAR: Final = {"legend": False, "tooltip": False, "viz": False}


def panel_json(panel: Panel, *, panel_id: int, place: dict[str, int], links: Sequence[Any]) -> Any:
    """What Grafana has in ``panels`` for one panel.

    The id is distinct within its dashboard, the place is ``x``, ``y``, ``w`` and ``h`` in the grid,
    and the links are to runbooks.
    """
    content: dict[str, Any] = {
        "id": panel_id,
        "type": panel.kind.value,
        "title": panel.title,
        "description": f"{panel.shows}\n\n**When it looks wrong:** {panel.remedy}",
        "datasource": DATASOURCE,
        "gridPos": place,
        "pluginVersion": PLUGIN_VERSION,
        "targets": _targets(panel),
        "fieldConfig": {
            "defaults": _defaults(panel),
            "overrides": [
                {
                    "matcher": {"id": "byName", "options": one.name},
                    "properties": [
                        {"id": key, "value": value} for key, value in one.properties.items()
                    ],
                }
                for one in panel.overrides
            ]
            + _column_units(panel),
        },
        "options": _OPTIONS[panel.kind](panel),
        "links": list(links),
    }
    if panel.columns:
        content["transformations"] = _transformations(panel)
    if panel.repeat:
        content |= {"repeat": panel.repeat, "repeatDirection": "h", "maxPerRow": 4}
    return content


def _targets(panel: Panel) -> list[dict[str, Any]]:
    over_time = panel.kind in {Kind.LINES, Kind.TIMELINE}
    return [
        {
            "refId": _letter(at),
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": query.expr,
            "legendFormat": query.legend or "__auto",
            "format": "table" if panel.columns else "time_series",
            "instant": not over_time,
            "range": over_time,
        }
        for at, query in enumerate(panel.queries)
    ]


def _defaults(panel: Panel) -> dict[str, Any]:
    drawn = panel.kind is Kind.LINES
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "color": {"mode": "palette-classic" if drawn else "thresholds"},
        "mappings": [_mapping(panel, at) for at in range(len(panel.mappings))],
        "thresholds": {
            "mode": "absolute",
            "steps": [{"value": value, "color": colour} for value, colour in panel.thresholds],
        },
        "custom": _CUSTOM[panel.kind](panel),
    }
    optional = {
        "decimals": panel.decimals,
        "min": panel.minimum,
        "max": panel.maximum,
        "noValue": panel.quiet or None,
    }
    return defaults | {key: value for key, value in optional.items() if value is not None}


def _mapping(panel: Panel, at: int) -> dict[str, Any]:
    one = panel.mappings[at]
    result = {"text": one.text, "color": one.colour, "index": at}
    return {"type": "range", "options": {"from": one.low, "to": one.high, "result": result}}


def _lines_custom(panel: Panel) -> dict[str, Any]:
    bounds = {"axisSoftMin": panel.soft_minimum, "axisSoftMax": panel.soft_maximum}
    scale = {"type": "log", "log": 10} if panel.logarithmic else {"type": "linear"}
    return {
        "drawStyle": "line",
        "lineInterpolation": "stepAfter" if panel.steps else "linear",
        "lineWidth": 2,
        "fillOpacity": 0,
        "showPoints": "auto",
        "pointSize": 5,
        "spanNulls": False,
        "axisPlacement": "auto",
        "axisLabel": "",
        "scaleDistribution": scale,
        "stacking": {"mode": "none", "group": "A"},
        "hideFrom": _CLEAR,
        "thresholdsStyle": {"mode": "dashed" if len(panel.thresholds) > 1 else "off"},
    } | {key: value for key, value in bounds.items() if value is not None}


def _timeline_custom(_: Panel) -> dict[str, Any]:
    return {"fillOpacity": 85, "lineWidth": 0, "hideFrom": _CLEAR}


def _table_custom(_: Panel) -> dict[str, Any]:
    return {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False}


def _no_custom(_: Panel) -> dict[str, Any]:
    return {}


_CUSTOM: Final = {
    Kind.LINES: _lines_custom,
    Kind.TIMELINE: _timeline_custom,
    Kind.STAT: _no_custom,
    Kind.BARS: _no_custom,
    Kind.TABLE: _table_custom,
}


def _legend(panel: Panel) -> dict[str, Any]:
    return {
        "showLegend": panel.legend is not Legend.NONE,
        "displayMode": "table" if panel.legend is Legend.BESIDE else "list",
        "placement": "right" if panel.legend is Legend.BESIDE else "bottom",
        "calcs": list(panel.calcs),
    }


def _lines_options(panel: Panel) -> dict[str, Any]:
    return {"legend": _legend(panel), "tooltip": {"mode": "multi", "sort": "desc"}}


def _timeline_options(_: Panel) -> dict[str, Any]:
    return {
        "alignValue": "left",
        "mergeValues": True,
        "rowHeight": 0.8,
        "perPage": 20,
        "showValue": "never",
        "legend": {
            "showLegend": False,
            "displayMode": "list",
            "placement": "bottom",
            "calcs": [],
        },
        "tooltip": {"mode": "single", "sort": "none"},
    }


_REDUCED: Final = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def _stat_options(panel: Panel) -> dict[str, Any]:
    return {
        "reduceOptions": _REDUCED,
        "orientation": "auto",
        "textMode": panel.text,
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
    }


def _bars_options(_: Panel) -> dict[str, Any]:
    return {
        "reduceOptions": _REDUCED,
        "orientation": "horizontal",
        "displayMode": "basic",
        "valueMode": "color",
        "namePlacement": "left",
        "showUnfilled": True,
        "sizing": "auto",
        "minVizWidth": 8,
        "minVizHeight": 16,
        "maxVizHeight": 40,
        "legend": {
            "showLegend": False,
            "displayMode": "list",
            "placement": "bottom",
            "calcs": [],
        },
    }


def _table_options(panel: Panel) -> dict[str, Any]:
    return {
        "showHeader": True,
        "cellHeight": "sm",
        "frameIndex": 0,
        "sortBy": [{"displayName": panel.columns[0].title, "desc": False}],
    }


_OPTIONS: Final = {
    Kind.LINES: _lines_options,
    Kind.TIMELINE: _timeline_options,
    Kind.STAT: _stat_options,
    Kind.BARS: _bars_options,
    Kind.TABLE: _table_options,
}


def _letter(at: int) -> str:
    return chr(ord("A") + at)


def _source_names(panel: Panel, source: str) -> tuple[str, ...]:
    """A column's names before it is renamed; a single query's value carries no letter."""
    letters = {_letter(at) for at in range(len(panel.queries))}
    if source not in letters:
        return (source,)
    return (f"Value #{source}",) if len(panel.queries) > 1 else ("Value",)


def _transformations(panel: Panel) -> list[dict[str, Any]]:
    named = [(name, c.title) for c in panel.columns for name in _source_names(panel, c.source)]
    return [
        {"id": "merge", "options": {}},
        {
            "id": "filterFieldsByName",
            "options": {"include": {"names": [name for name, _ in named]}},
        },
        {
            "id": "organize",
            "options": {
                "excludeByName": {},
                "indexByName": {name: at for at, (name, _) in enumerate(named)},
                "renameByName": dict(named),
            },
        },
    ]


def _column_units(panel: Panel) -> list[dict[str, Any]]:
    return [
        {
            "matcher": {"id": "byName", "options": column.title},
            "properties": [{"id": "unit", "value": column.unit}],
        }
        for column in panel.columns
        if column.unit
    ]
