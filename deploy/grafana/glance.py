"""The first panels of both dashboards: is the daemon there, and what fires.

Covered: one daemon, and the alerts of its rule file. Not covered: alerts of anybody else.
"""

from __future__ import annotations

from collections.abc import Sequence

from deploy.grafana.panel import Column, Kind, Panel, Query
from deploy.grafana.presets import UP, Scope

__all__ = ["alert_panels", "up_panel"]


def up_panel(scope: Scope, *, daemon: str, doctor: str, alert: str) -> Panel:
    """Whether the daemon answers.

    ``daemon`` is what it is called, ``doctor`` the command that examines it, and ``alert`` the one
    that fires when it does not answer.
    """
    return Panel(
        kind=Kind.STAT,
        title=daemon.capitalize(),
        shows=f"Whether Prometheus reaches the {daemon}'s probe port.",
        remedy=(
            "Does the process run, and does `/readyz` answer on its host? The answer has the "
            f"reasons; `{doctor}` looks at each part by itself."
        ),
        queries=(Query(expr=f"min({scope.scraped('up')})", legend=daemon),),
        unit="none",
        mappings=UP,
        thresholds=((None, "red"), (1, "green")),
        quiet="not scraped",
        width=3,
        height=4,
        runbooks=(alert,),
    )


def alert_panels(scope: Scope, alerts: Sequence[str]) -> tuple[Panel, Panel]:
    """How many alerts of the daemon's rule file fire, and which."""
    firing = scope.firing(alerts)
    return (
        Panel(
            kind=Kind.STAT,
            title="Firing alerts",
            shows="How many alerts fire now.",
            remedy="The table at the end of this line names them; each has a runbook.",
            queries=(Query(expr=f"count({firing}) or vector(0)", legend="firing"),),
            unit="none",
            thresholds=((None, "green"), (1, "red")),
            width=3,
            height=4,
        ),
        Panel(
            kind=Kind.TABLE,
            title="What fires",
            shows="Each firing alert, and how many series fire it.",
            remedy="Open the alert's runbook: what it means, what to look at, whom to wake.",
            queries=(Query(expr=f"sum by (alertname, severity) ({firing})"),),
            unit="none",
            columns=(
                Column(source="alertname", title="Alert"),
                Column(source="severity", title="Severity"),
                Column(source="A", title="Series"),
            ),
            quiet="nothing fires",
            width=6,
            height=4,
        ),
    )
