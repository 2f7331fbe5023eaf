"""Which series a query may name: those of the real registries, recorded ones, and Prometheus' own.

Invariants:

1. Nothing is listed by hand but what Prometheus adds by itself (``up``, ``ALERTS``, ``instance``,
   ``job``): names and labels are read off a ``CoordinatorMetrics`` and a ``SiloMetrics``, and off
   the rule files.
2. A label that is wrong for its own selector is an error, also if another metric of the same query
   has such a label.
3. Where a registry knows every value of a label from the start, another value is an error.

Covered: metrics, labels, values of closed labels, names of alerts. Not covered: syntax and types,
which Prometheus checks itself; values matched by anything but plain alternatives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client import CollectorRegistry

from deploy.grafana.errors import PanelError, UnknownLabelError, UnknownMetricError
from deploy.promql import Selector, label_names, metric_names, selectors
from server.metrics import CoordinatorMetrics
from silo_agent.metrics import SiloMetrics

__all__ = ["RULES", "Catalogue"]

RULES: Final = Path(__file__).parent.parent / "prometheus" / "rules"
TARGET_LABELS: Final = frozenset({"instance", "job"})
OWN: Final[Mapping[str, frozenset[str]]] = {
    "up": frozenset(),
    "ALERTS": frozenset({"alertname", "alertstate"}),
}
_HISTOGRAM: Final = ("_bucket", "_sum", "_count")
_PLAIN: Final = re.compile(r"[\w.-]+(\|[\w.-]+)*")
_LABEL_VALUES: Final = re.compile(r"label_values\((?P<metric>[\w:]+(\{.*\})?), *(?P<label>\w+)\)")
_LEGEND: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalogue:
    """What may be queried."""

    labels: Mapping[str, frozenset[str]]
    """Metric to its labels, those of a scrape included."""
    values: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    """Metric and label to every value there is, where that is known from the start."""
    alerts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Rule file's stem to the names of its alerts, in their order."""

    @classmethod
    def live(cls, rules: Path = RULES) -> Catalogue:
        """Read both registries and a directory of rule files."""
        labels: dict[str, frozenset[str]] = dict(OWN)
        values: dict[tuple[str, str], frozenset[str]] = {}
        for registry in (CoordinatorMetrics().registry, SiloMetrics().registry):
            labels |= _labels_of(registry)
            values |= _values_of(registry)
        alerts = {}
        for path in sorted(rules.glob("*.yml")):
            alerts[path.stem] = _take_rules(path, labels)
        return cls(
            labels={name: found | TARGET_LABELS for name, found in labels.items()},
            values=values,
            alerts=alerts,
        )

    def check(self, expr: str, legend: str = "") -> None:
        """Refuse a query or legend that names what is not there.

        The query is PromQL with Grafana's variables, the legend Grafana's format.

        Raises:
            UnknownMetricError: A metric is unknown.
            UnknownLabelError: A label, or a value of a closed label, is unknown.
            PromqlError: The text cannot be read as PromQL.
        """
        known = frozenset[str]()
        for selector in selectors(expr):
            if selector.metric not in self.labels:
                raise UnknownMetricError(
                    f"no daemon exports {selector.metric} and no rule records it, in: {expr}"
                )
            self._check_selector(selector, expr)
            known |= self.labels[selector.metric]
        used = label_names(expr) | set(_LEGEND.findall(legend))
        for label in sorted(used - known):
            raise UnknownLabelError(f"no metric of this query has a label {label}: {expr}")

    def check_label_values(self, query: str) -> None:
        """Refuse a variable's ``label_values(metric, label)`` that names what is not there.

        Raises:
            PanelError: It is of another form.
            UnknownMetricError: The metric is unknown.
            UnknownLabelError: The label is unknown.
        """
        match = _LABEL_VALUES.fullmatch(query)
        if match is None:
            raise PanelError(f"a variable is label_values(metric, label), got {query}")
        self.check(f"group by ({match['label']}) ({match['metric']})")

    def _check_selector(self, selector: Selector, expr: str) -> None:
        metric = selector.metric
        for matcher in selector.matchers:
            if matcher.label not in self.labels[metric]:
                raise UnknownLabelError(f"{metric} has no label {matcher.label}, in: {expr}")
            known = self.values.get((metric, matcher.label))
            if known is None or not _PLAIN.fullmatch(matcher.value):
                continue
            for one in sorted(set(matcher.value.split("|")) - known):
                raise UnknownLabelError(f'{metric} is never {matcher.label}="{one}", in: {expr}')


def _labels_of(registry: CollectorRegistry) -> dict[str, frozenset[str]]:
    """Series to labels; from the declaration, for a series without a child has no sample."""
    found: dict[str, frozenset[str]] = {}
    for collector in tuple(registry._collector_to_names):  # noqa: SLF001 - there is no public way
        declared = frozenset(getattr(collector, "_labelnames", ()))
        for family in collector.collect():
            ends = {"counter": ("_total",), "histogram": _HISTOGRAM, "info": ("_info",)}
            for end in ends.get(family.type, ("",)):
                extra = {"le"} if end == "_bucket" else set()
                found[family.name + end] = declared | extra
            for sample in family.samples:
                seen = found.get(sample.name, frozenset())
                found[sample.name] = seen | frozenset(sample.labels)
    return found


def _values_of(registry: CollectorRegistry) -> dict[tuple[str, str], frozenset[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label != "le":
                    found.setdefault((sample.name, label), set()).add(value)
    # One value is no set: it is a version, or something of this machine.
    return {key: frozenset(values) for key, values in found.items() if len(values) > 1}


def _take_rules(path: Path, labels: dict[str, frozenset[str]]) -> tuple[str, ...]:
    """Add what a rule file records; returns its alerts.

    A recorded series and a firing alert have at most the labels of what was read and the rule's.
    """
    alerts: dict[str, None] = {}
    for rule in _each_rule(path):
        read = (labels.get(name, frozenset()) for name in metric_names(rule["expr"]))
        carried = frozenset(rule.get("labels") or ()).union(*read)
        name = rule.get("record", "ALERTS")
        labels[name] = labels.get(name, frozenset()) | carried
        if "alert" in rule:
            alerts[rule["alert"]] = None
    return tuple(alerts)


def _each_rule(path: Path) -> Iterable[dict[str, Any]]:
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for group in content.get("groups", ()):
        yield from group.get("rules", ())
