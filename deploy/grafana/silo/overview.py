"""The Silo dashboard: what a site's own operators see of their silo.

Invariants: it reads the silo's own metrics alone, of one silo at a time. What it shows is private
to the site: it is read from the site's own Prometheus and leads nowhere else.

Covered: every metric of the silo. Not covered: the federation, which the coordinator's operators
see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deploy.grafana.dashboard import Dashboard, Row, Variable
from deploy.grafana.glance import alert_panels, up_panel
from deploy.grafana.panel import Kind, Panel, Query
from deploy.grafana.presets import DAYS, ENDLESS, SILO
from deploy.grafana.silo.site import budget_row, integrity_row, machine_row, network_row
from deploy.grafana.silo.work import learning_row, rounds_row

__all__ = ["RULE_FILE", "silo"]

RULE_FILE: Final = "silo"
"""The rule file whose alerts concern this dashboard."""
_OF: Final = SILO.of


def silo(alerts: Sequence[str]) -> Dashboard:
    """The dashboard, with the names of the silo's alerts."""
    return Dashboard(
        uid="chorale-silo",
        title="Chorale / Silo",
        description=(
            "One silo: what it learns, what it spends, and how it stands with the coordinator. "
            "These figures are the site's own. None of them is sent to the coordinator, and none "
            "should be: share a screenshot only with those who may see the data."
        ),
        variables=(
            Variable(
                name="instance",
                label="Silo",
                query="label_values(chorale_silo_build_info, instance)",
            ),
        ),
        rows=(
            Row(title="At a glance", panels=_glance(alerts)),
            learning_row(),
            rounds_row(),
            budget_row(),
            network_row(),
            integrity_row(),
            *machine_row(),
        ),
        alerts=tuple(alerts),
        firing=SILO.firing(alerts),
        restarts=f"changes({SILO.scraped('process_start_time_seconds')}[5m]) > 0",
    )


def _glance(alerts: Sequence[str]) -> tuple[Panel, ...]:
    firing, names = alert_panels(SILO, alerts)
    spent, cap = _OF("chorale_silo_dp_epsilon_spent"), _OF("chorale_silo_dp_epsilon_cap")
    contact = _OF("chorale_silo_coordinator_contact_timestamp_seconds")
    expiry = _OF("chorale_silo_certificate_expiry_timestamp_seconds")
    return (
        up_panel(SILO, daemon="silo", doctor="chorale-silo doctor", alert="ChoraleSiloDown"),
        firing,
        Panel(
            kind=Kind.STAT,
            title="Coordinator answered",
            shows="Time since the coordinator last answered a call of this silo.",
            remedy=(
                "`chorale-silo doctor` tells DNS, TCP, TLS and authentication apart. The silo goes "
                "on asking by itself; the round goes on without it."
            ),
            queries=(Query(expr=f"time() - max({contact} > 0)", legend="ago"),),
            unit="s",
            decimals=0,
            thresholds=((None, "green"), (60, "orange"), (300, "red")),
            quiet="no answer known",
            width=4,
            height=4,
            runbooks=("ChoraleSiloCoordinatorUnreachable",),
        ),
        Panel(
            kind=Kind.STAT,
            title="Certificate: days left",
            shows="The daemon renews its 30 days at half-life; below 14 days that fails.",
            remedy=(
                "The log says why the coordinator does not renew it. After its end: ask for an "
                "invite and join again; key, ledger and roster stay."
            ),
            queries=(Query(expr=f"(min({expiry} > 0) - time()) / 86400", legend="left"),),
            unit=DAYS,
            decimals=1,
            thresholds=((None, "red"), (7, "orange"), (14, "green")),
            width=4,
            height=4,
            runbooks=("ChoraleSiloCertificateExpiring", "ChoraleSiloCertificateRenewalFailing"),
        ),
        Panel(
            kind=Kind.STAT,
            title="ε spent of the cap",
            shows=(
                "Of the unit whose budget is nearest to its end. What ε does not speak of is "
                "below, with the privacy budget."
            ),
            remedy=(
                "Above 80 % decide, before rounds are refused, whether the site allows more: "
                "`chorale-silo budget`, then `epsilon_caps` in `policy.toml`."
            ),
            queries=(Query(expr=f"max({spent} / ({cap} > 0))", legend="spent"),),
            unit="percentunit",
            decimals=0,
            thresholds=((None, "green"), (0.8, "orange"), (1, "red")),
            mappings=ENDLESS,
            quiet="no cap known",
            width=4,
            height=4,
            runbooks=("ChoraleSiloEpsilonOver80Percent",),
        ),
        names,
    )
