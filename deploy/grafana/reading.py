"""What a dashboard would show: each panel's queries, answered by a Prometheus.

Invariants:

1. Variables and intervals are put in as Grafana does: ``$__rate_interval`` is at least four scrape
   intervals, a variable with all its values chosen is its pattern of all.
2. Every panel gets a reading. A query that Prometheus refuses makes the panel failed; one without
   an answer makes it empty. The two are never the same.

Covered: panels, those of closed rows as well, variables, annotations. Not covered: drawing, which
is Grafana's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from deploy.grafana.errors import PanelError, QueryError
from deploy.grafana.prometheus_api import PrometheusApi, Series

__all__ = ["DashboardReading", "Line", "PanelReading", "Window", "read"]

_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)(?::\w+)?\})")
_LABEL_VALUES: Final = re.compile(r"label_values\((?P<selector>.+), *(?P<label>\w+)\)")
_LEGEND: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_POINTS: Final = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The time that is looked at."""

    end_unix_s: float
    span_s: float
    scrape_s: float

    @property
    def start_unix_s(self) -> float:
        """Its beginning."""
        return self.end_unix_s - self.span_s

    @property
    def step_s(self) -> float:
        """Between two points of a line; whole seconds."""
        return max(1.0, round(self.span_s / _POINTS))

    def intervals(self) -> dict[str, str]:
        """Grafana's own variables; durations of PromQL have no fractions."""
        rate_s = max(self.step_s + self.scrape_s, 4 * self.scrape_s)
        return {
            "__interval": f"{self.step_s:g}s",
            "__rate_interval": f"{math.ceil(rate_s)}s",
            "__range": f"{math.ceil(self.span_s)}s",
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One series of a panel."""

    query: str
    """The ``refId`` of its query."""
    name: str
    """As the legend says it."""
    series: Series


@dataclass(frozen=True, kw_only=True, slots=True)
class PanelReading:
    """One panel, read."""

    panel: Mapping[str, Any]
    """As the dashboard has it."""
    title: str
    lines: tuple[Line, ...] = ()
    error: str = ""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw, and no error either."""
        return not self.lines and not self.error


@dataclass(frozen=True, kw_only=True, slots=True)
class DashboardReading:
    """One dashboard, read."""

    title: str
    window: Window
    variables: Mapping[str, str]
    """What is chosen, in words."""
    panels: tuple[PanelReading, ...]
    marks: tuple[tuple[float, str], ...] = ()
    """Annotations: when each began, and its name."""
    errors: tuple[str, ...] = field(default=())
    """Of variables and annotations."""

    @property
    def failed(self) -> tuple[str, ...]:
        """Every error, with what it is about."""
        return (*self.errors, *(f"{one.title}: {one.error}" for one in self.panels if one.error))


def read(
    dashboard: Mapping[str, Any],
    api: PrometheusApi,
    window: Window,
    chosen: Mapping[str, str] | None = None,
) -> DashboardReading:
    """Answer everything that a dashboard, Grafana's JSON, asks.

    ``chosen`` gives values of variables, in place of those the dashboard begins with.

    Raises:
        PrometheusError: There is nobody to ask.
        PanelError: The dashboard has a variable that cannot be read, or not the chosen one.
    """
    reader = _Reader(api=api, window=window)
    reader.choose(dashboard["templating"]["list"], chosen or {})
    return DashboardReading(
        title=dashboard["title"],
        window=window,
        variables=reader.shown,
        panels=tuple(reader.panels(dashboard["panels"])),
        marks=tuple(sorted(reader.marks(dashboard["annotations"]["list"]))),
        errors=tuple(reader.errors),
    )


class _Reader:
    """Reads one dashboard."""

    def __init__(self, *, api: PrometheusApi, window: Window) -> None:
        self._api = api
        self._window = window
        self.values: dict[str, str] = {}
        self.shown: dict[str, str] = {}
        self.errors: list[str] = []

    def choose(self, variables: list[Mapping[str, Any]], chosen: Mapping[str, str]) -> None:
        unknown = set(chosen) - {one["name"] for one in variables}
        if unknown:
            raise PanelError(f"the dashboard has no variable {', '.join(sorted(unknown))}")
        for one in variables:
            if one["type"] != "query":
                continue
            name, known = one["name"], self._label_values(one["query"]["query"], one["name"])
            if name in chosen:
                self.values[name] = _escaped(chosen[name]) if one["includeAll"] else chosen[name]
                self.shown[name] = chosen[name]
            elif one["current"]["value"] == "$__all":
                self.shown[name] = "all"
                self.values[name] = one.get("allValue") or f"({'|'.join(map(_escaped, known))})"
            else:
                self.values[name] = known[0] if known else ""
                self.shown[name] = self.values[name] or "none"

    def _label_values(self, query: str, name: str) -> tuple[str, ...]:
        match = _LABEL_VALUES.fullmatch(query)
        if match is None:
            raise PanelError(f"cannot read the variable {name}: {query}")
        try:
            return self._api.label_values(
                match["label"],
                match["selector"],
                start_unix_s=self._window.start_unix_s,
                end_unix_s=self._window.end_unix_s,
            )
        except QueryError as error:
            self.errors.append(f"variable {name}: {error}")
            return ()

    def panels(self, panels: list[Mapping[str, Any]]) -> Iterator[PanelReading]:
        for panel in panels:
            if panel["type"] == "row":
                yield from self.panels(panel["panels"])
            else:
                yield self._read(panel)

    def _read(self, panel: Mapping[str, Any]) -> PanelReading:
        reading = PanelReading(panel=panel, title=panel["title"])
        lines: list[Line] = []
        for target in panel["targets"]:
            try:
                answer = self._answer(target, self.values)
            except QueryError as error:
                return replace(reading, error=str(error))
            lines += [
                Line(query=target["refId"], name=_name(target, one), series=one) for one in answer
            ]
        return replace(reading, lines=tuple(lines))

    def _answer(self, target: Mapping[str, Any], values: Mapping[str, str]) -> tuple[Series, ...]:
        expr = _filled(target["expr"], {**values, **self._window.intervals()})
        if target.get("instant"):
            return self._api.instant(expr, self._window.end_unix_s)
        # Points on whole steps, so that two looks at one time see the same.
        step_s = self._window.step_s
        start_unix_s = self._window.start_unix_s // step_s * step_s
        return self._api.range(
            expr, start_unix_s=start_unix_s, end_unix_s=self._window.end_unix_s, step_s=step_s
        )

    def marks(self, annotations: list[Mapping[str, Any]]) -> Iterator[tuple[float, str]]:
        """When something begins that is annotated."""
        for one in annotations:
            try:
                answer = self._answer(one, self.values)
            except QueryError as error:
                self.errors.append(f"annotation {one['name']}: {error}")
                continue
            for series in answer:
                # What was there at the beginning began before it.
                before = self._window.start_unix_s
                for at in series.times_unix_s:
                    if at - before > 1.5 * self._window.step_s:
                        yield at, one["name"]
                    before = at


def _escaped(value: str) -> str:
    """A value as a pattern within a PromQL string, where a backslash is written twice."""
    return re.sub(r"([\\^$.*+?()\[\]{}|])", r"\\\\\1", value)


def _with_labels(text: str, series: Series) -> str:
    return _LEGEND.sub(lambda m: series.labels.get(m[1], ""), text)


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda m: values.get(m[1] or m[2], m[0]), text)


def _name(target: Mapping[str, Any], series: Series) -> str:
    legend = target["legendFormat"]
    if legend != "__auto":
        return _with_labels(legend, series)
    inside = ", ".join(f'{key}="{value}"' for key, value in sorted(series.labels.items()))
    return f"{{{inside}}}" if inside else str(target["expr"])
