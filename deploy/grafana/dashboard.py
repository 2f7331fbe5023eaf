"""A dashboard: rows of panels on Grafana's grid, variables, links, firing alerts as annotations.

Invariants:

1. ``uid`` is fixed, so that links to a dashboard outlive a new installation; there is no ``id`` and
   nothing that is asked for at import.
2. Every query, legend and variable is checked against the catalogue before anything is written.
3. Panels stand in reading order, never over one another; ids count from 1 in that order.

Covered: what is provisioned from files. Not covered: what somebody saves by hand, which the
provisioning forbids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deploy.grafana.catalogue import Catalogue
from deploy.grafana.errors import PanelError
from deploy.grafana.panel import FULL_WIDTH, Panel
from deploy.grafana.panel_json import DATASOURCE, panel_json

__all__ = ["SCHEMA_VERSION", "TAG", "Dashboard", "Row", "Variable"]

SCHEMA_VERSION: Final = 41
"""Of Grafana 11.6 to 12.1; a newer one brings it up to its own when it reads the file."""
TAG: Final = "chorale"
_UNCHOSEN: Final = {"text": "", "value": ""}
"""Grafana takes the first value there is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """A choice at the top of the dashboard."""

    name: str
    label: str
    query: str
    """``label_values(metric, label)``."""
    everything: bool = False
    """Whether all values may be chosen at once, and are at first; queries match with ``=~``."""
    multiple: bool = False
    """Whether several values may be chosen; queries match with ``=~``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dashboard:
    """One dashboard."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    alerts: tuple[str, ...]
    """Names of those that concern it, whose runbooks may be linked."""
    firing: str
    """PromQL of those that fire; they are drawn over every panel with a time axis."""
    restarts: str
    """PromQL: above 0 where the daemon was started anew."""

    def to_json(self, catalogue: Catalogue, *, runbooks: str) -> str:
        """Check everything, and write it down in Grafana's classic model.

        ``runbooks`` is where the pages of ``docs/operations`` are read; it may be changed at the
        top of the dashboard.

        Raises:
            UnknownMetricError: A query names an unknown metric.
            UnknownLabelError: A query names an unknown label.
            PanelError: Something else is wrong with a panel or a variable.
        """
        for variable in self.variables:
            catalogue.check_label_values(variable.query)
        for annotation in self._annotations()[1:]:
            catalogue.check(annotation["target"]["expr"], annotation["titleFormat"])
        for row in self.rows:
            for panel in row.panels:
                self._check(panel, catalogue)
        content = {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": [TAG],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": False,
            "graphTooltip": 1,
            "fiscalYearStartMonth": 0,
            "timezone": "browser",
            "time": {"from": "now-6h", "to": "now"},
            "timepicker": {},
            "refresh": "30s",
            "liveNow": False,
            "links": self._links(),
            "annotations": {"list": self._annotations()},
            "templating": {"list": _every_variable(self.variables, runbooks)},
            "panels": list(self._panels()),
        }
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    def _check(self, panel: Panel, catalogue: Catalogue) -> None:
        for query in panel.queries:
            catalogue.check(query.expr, query.legend)
        missing = set(panel.runbooks) - set(self.alerts)
        if missing:
            raise PanelError(f"panel {panel.title!r}: no alert {', '.join(sorted(missing))}")
        if panel.repeat and panel.repeat not in {one.name for one in self.variables}:
            raise PanelError(f"panel {panel.title!r} repeats over no variable: {panel.repeat}")

    def _panels(self) -> Iterator[dict[str, Any]]:
        panel_id = top = 0
        for row in self.rows:
            panel_id += 1
            yield _row_json(row.title, panel_id=panel_id, top=top)
            top += 1
            left = tallest = 0
            for panel in row.panels:
                if left + panel.width > FULL_WIDTH:
                    left, top, tallest = 0, top + tallest, 0
                panel_id += 1
                place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
                links = [_link(f"Runbook: {n}", f"${{runbooks}}/{n}.md") for n in panel.runbooks]
                yield panel_json(panel, panel_id=panel_id, place=place, links=links)
                left, tallest = left + panel.width, max(tallest, panel.height)
            top += tallest

    def _links(self) -> list[dict[str, Any]]:
        others = {
            **_link("Chorale's dashboards", ""),
            "type": "dashboards",
            "tags": [TAG],
            "asDropdown": True,
            "keepTime": True,
            "targetBlank": False,
        }
        return [others, _link("Runbooks", "${runbooks}")]

    def _annotations(self) -> list[dict[str, Any]]:
        firing = f"max by (alertname) ({self.firing})"
        return [
            {
                "builtIn": 1,
                "name": "Annotations & Alerts",
                "datasource": {"type": "grafana", "uid": "-- Grafana --"},
                "enable": True,
                "hide": True,
                "iconColor": "rgba(0, 211, 255, 1)",
                "type": "dashboard",
            },
            _annotation("Firing alerts", firing, "red", "{{alertname}}"),
            _annotation("Restarts", self.restarts, "purple", "restarted"),
        ]


def _annotation(name: str, expr: str, colour: str, title: str) -> dict[str, Any]:
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "target": {"refId": "Anno", "expr": expr, "interval": "30s"},
        "titleFormat": title,
    }


def _row_json(title: str, *, panel_id: int, top: int) -> dict[str, Any]:
    return {
        "id": panel_id,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": {"x": 0, "y": top, "w": FULL_WIDTH, "h": 1},
        "panels": [],
    }


def _link(title: str, url: str) -> dict[str, Any]:
    return {
        "title": title,
        "url": url,
        "type": "link",
        "icon": "doc",
        "tags": [],
        "tooltip": "",
        "asDropdown": False,
        "includeVars": False,
        "keepTime": False,
        "targetBlank": True,
    }


def _every_variable(variables: Sequence[Variable], runbooks: str) -> list[dict[str, Any]]:
    return [_datasource(), *(_variable(one) for one in variables), _text("runbooks", runbooks)]


def _text(name: str, value: str) -> dict[str, Any]:
    chosen = {"selected": True, "text": value, "value": value}
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "textbox",
        "query": value,
        "hide": 0,
        "skipUrlSync": False,
        "current": chosen,
        "options": [chosen],
    }


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "regex": "",
        "refresh": 1,
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "skipUrlSync": False,
        "current": _UNCHOSEN,
        "options": [],
    }


def _variable(variable: Variable) -> dict[str, Any]:
    every = {"text": "All", "value": "$__all"} if variable.everything else _UNCHOSEN
    content: dict[str, Any] = {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"qryType": 1, "query": variable.query, "refId": "Variable"},
        "regex": "",
        "refresh": 2,
        "sort": 1,
        "hide": 0,
        "includeAll": variable.everything,
        "multi": variable.multiple,
        "skipUrlSync": False,
        "current": every,
        "options": [],
    }
    return content | ({"allValue": ".*"} if variable.everything else {})
