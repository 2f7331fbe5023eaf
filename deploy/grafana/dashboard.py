"""A dashboard: a first screen, collapsed rows, variables, links, firing alerts as annotations.

Invariants:

1. ``uid`` is fixed, so that links to a dashboard outlive a new installation; there is no ``id`` and
   nothing that is asked for at import.
2. Every query, legend and variable is checked against the catalogue before anything is written.
3. Panels stand in reading order, never over one another; ids count from 1 in that order.
4. Only the first screen is open: a row is read, and asks Prometheus, when somebody opens it.

Covered: what is provisioned from files. Not covered: what somebody saves by hand, which the
provisioning forbids.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import Dataquery

from deploy.grafana.catalogue import Catalogue
from deploy.grafana.errors import PanelError
from deploy.grafana.panel import DATASOURCE, FULL_WIDTH, link

__all__ = ["TAG", "Dashboard", "Variable"]

TAG: Final = "chorale"
_UNCHOSEN: Final = model.VariableOption(text="", value="")
"""Grafana takes the first value there is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """A choice at the top of the dashboard."""

    name: str
    label: str
    query: str
    """``label_values(metric, label)``."""
    everything: bool = False
    """Whether all values may be chosen at once, and are at first; queries match with ``=~``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dashboard:
    """One dashboard."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    first: tuple[model.Panel, ...]
    """What is open, and answers the question that somebody comes with."""
    rows: Mapping[str, tuple[model.Panel, ...]]
    """What is behind it, by heading."""
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
        annotations = (
            _annotation("Firing alerts", f"max by (alertname) ({self.firing})", "red"),
            _annotation("Restarts", self.restarts, "purple"),
        )
        for one in annotations:
            catalogue.check(one.expr or "")
        for panel in itertools.chain(self.first, *self.rows.values()):
            self._check(panel, catalogue)
        made = (
            build.Dashboard(self.title)
            .uid(self.uid)
            .description(self.description)
            .tags([TAG])
            .version(1)
            .readonly()
            .tooltip(model.DashboardCursorSync.CROSSHAIR)
            .timezone("browser")
            .time("now-6h", "now")
            .refresh("30s")
            .links([_others(), link("Runbooks", "${runbooks}")])
            .variables([_datasource(), *map(_variable, self.variables), _text(runbooks)])
            .build()
        )
        made.annotations = model.AnnotationContainer(list_val=list(annotations))
        made.panels = list(self._panels())
        return JSONEncoder(indent=2, ensure_ascii=False).encode(made) + "\n"

    def _check(self, panel: model.Panel, catalogue: Catalogue) -> None:
        for target in panel.targets or ():
            if not isinstance(target, Dataquery):
                raise PanelError(f"panel {panel.title!r} asks something else than Prometheus")
            legend = target.legend_format or ""
            catalogue.check(target.expr or "", "" if legend == "__auto" else legend)
        for one in panel.links or ():
            name = one.title.removeprefix("Runbook: ")
            if name not in self.alerts:
                raise PanelError(f"panel {panel.title!r}: no alert {name}")

    def _panels(self) -> Iterator[model.Panel | model.RowPanel]:
        ids = itertools.count(1)
        top = _place(self.first, ids, 0)
        yield from self.first
        for title, panels in self.rows.items():
            row = model.RowPanel(
                title=title,
                collapsed=True,
                id_val=next(ids),
                grid_pos=model.GridPos(x=0, y=top, w=FULL_WIDTH, h=1),
                panels=list(panels),
            )
            _place(panels, ids, top + 1)
            # Closed, it is one line high; Grafana makes room when it is opened.
            top += 1
            yield row


def _place(panels: Sequence[model.Panel], ids: Iterator[int], top: int) -> int:
    """Give panels their ids and places from a line on; returns the line below them."""
    left = tallest = 0
    for panel in panels:
        panel.id_val = next(ids)
        at = panel.grid_pos or model.GridPos()
        if left + at.w > FULL_WIDTH:
            left, top, tallest = 0, top + tallest, 0
        panel.grid_pos = model.GridPos(x=left, y=top, w=at.w, h=at.h)
        left, tallest = left + at.w, max(tallest, at.h)
    return top + tallest


def _annotation(name: str, expr: str, colour: str) -> model.AnnotationQuery:
    made = build.AnnotationQuery().name(name).datasource(DATASOURCE).enable(True)
    return made.hide(False).icon_color(colour).expr(expr).build()


def _others() -> build.DashboardLink:
    made = build.DashboardLink("Chorale's dashboards").type(model.DashboardLinkType.DASHBOARDS)
    return made.tags([TAG]).as_dropdown(True).keep_time(True)


def _datasource() -> build.DatasourceVariable:
    made = build.DatasourceVariable("datasource").label("Data source").type("prometheus")
    return made.current(_UNCHOSEN)


def _text(runbooks: str) -> build.TextBoxVariable:
    chosen = model.VariableOption(selected=True, text=runbooks, value=runbooks)
    made = build.TextBoxVariable("runbooks").label("Runbooks").default_value(runbooks)
    return made.current(chosen).options([chosen])


def _variable(variable: Variable) -> build.QueryVariable:
    made = (
        build.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(DATASOURCE)
        .query({"qryType": 1, "query": variable.query, "refId": "Variable"})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .include_all(variable.everything)
        .current(_UNCHOSEN)
    )
    if variable.everything:
        made.all_value(".*").current(model.VariableOption(text="All", value="$__all"))
    return made
