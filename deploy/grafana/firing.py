"""The panel of firing alerts, the same at both daemons.

Covered: the alerts of one rule file. Not covered: alerts of anybody else; the watchdog, which
always fires.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.models.dashboard import Panel

from deploy.grafana.panel import Column, Query, rows
from deploy.grafana.scope import Scope

__all__ = ["firing_alerts"]

_BY_SEVERITY: Final = {
    "custom.cellOptions": {"type": "color-text"},
    "mappings": [
        {
            "type": "value",
            "options": {
                "critical": {"color": "red", "index": 0},
                "warning": {"color": "orange", "index": 1},
            },
        }
    ],
}


def firing_alerts(
    scope: Scope, alerts: Sequence[str], *, width: int, height: int, runbooks: Sequence[str] = ()
) -> Panel:
    """A row for each of a daemon's alerts that fires, the ones that wake somebody in red."""
    return rows(
        title="Firing alerts",
        shows="Each firing alert, and how many series fire it; the watchdog left out.",
        remedy="Open the alert's runbook: what it means, what to look at, whom to wake.",
        queries=(Query(expr=f"sum by (alertname, severity) ({scope.firing(alerts)})"),),
        columns=(
            Column(source="severity", title="Severity"),
            Column(source="alertname", title="Alert"),
            Column(source="A", title="Series"),
        ),
        overrides={"Severity": _BY_SEVERITY},
        quiet="nothing fires",
        width=width,
        height=height,
        runbooks=runbooks,
    )
