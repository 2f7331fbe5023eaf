"""What can go wrong with dashboards.

GrafanaError
├── PanelError            a panel that would draw nothing sensible
├── UnknownMetricError    a query names a metric that neither daemon exports and no rule records
├── UnknownLabelError     a query names a label, or a value of a closed one, that its metric lacks
├── StaleDashboardError   a committed dashboard is not what the generator writes
├── PrometheusError       no Prometheus, or an answer of something else
└── QueryError            a query that Prometheus refuses
"""

from __future__ import annotations

__all__ = [
    "GrafanaError",
    "PanelError",
    "PrometheusError",
    "QueryError",
    "StaleDashboardError",
    "UnknownLabelError",
    "UnknownMetricError",
]


class GrafanaError(Exception):
    """Base of this package's errors."""


class PanelError(GrafanaError):
    """A panel that would draw nothing sensible."""


class UnknownMetricError(GrafanaError):
    """A query names a metric that nothing exports."""


class UnknownLabelError(GrafanaError):
    """A query names a label, or a value of it, that its metric does not have."""


class StaleDashboardError(GrafanaError):
    """A committed dashboard differs from what the generator writes."""


class PrometheusError(GrafanaError):
    """Prometheus cannot be reached."""


class QueryError(GrafanaError):
    """Prometheus refuses a query."""
