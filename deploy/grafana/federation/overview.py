"""The Federation dashboard: what the coordinator's operators see of rounds, silos and the sum.

Invariants: it reads the coordinator's own metrics alone; every query keeps to the chosen instance,
and none has one series more after a restart under another address.

Covered: every metric of the coordinator. Not covered: figures of single silos, which the
coordinator does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deploy.grafana.dashboard import Dashboard, Row, Variable
from deploy.grafana.federation.host import host_rows
from deploy.grafana.federation.rounds import driven, rounds_row
from deploy.grafana.federation.silos import silos_row
from deploy.grafana.federation.sums import aggregation_row, learning_row
from deploy.grafana.glance import alert_panels, up_panel
from deploy.grafana.panel import FULL_WIDTH, Kind, Override, Panel, Query
from deploy.grafana.presets import COORDINATOR, DASHED, ENDLESS

__all__ = ["RULE_FILE", "federation"]

RULE_FILE: Final = "coordinator"
"""The rule file whose alerts concern this dashboard."""
_OF: Final = COORDINATOR.of


def federation(alerts: Sequence[str]) -> Dashboard:
    """The dashboard, with the names of the coordinator's alerts."""
    return Dashboard(
        uid="chorale-federation",
        title="Chorale / Federation",
        description=(
            "One coordinator: rounds, silos, the sum and its privacy budget, and the process. "
            "Everything here comes from sums or is public to the federation; no figure is one "
            "silo's, beyond when it called and when its certificate ends."
        ),
        variables=(
            Variable(
                name="instance",
                label="Coordinator",
                query="label_values(chorale_build_info, instance)",
                everything=True,
            ),
            Variable(
                name="environment",
                label="Environment",
                query="label_values(chorale_federation_success_ratio, environment)",
                everything=True,
                multiple=True,
            ),
        ),
        rows=(
            Row(title="At a glance", panels=_glance(alerts)),
            rounds_row(),
            silos_row(),
            aggregation_row(),
            learning_row(),
            Row(title="Privacy budget", panels=(_budget(),)),
            *host_rows(),
        ),
        alerts=tuple(alerts),
        firing=COORDINATOR.firing(alerts),
        restarts=f"changes({COORDINATOR.scraped('process_start_time_seconds')}[5m]) > 0",
    )


def _glance(alerts: Sequence[str]) -> tuple[Panel, ...]:
    spent, cap = _OF("chorale_dp_epsilon_spent"), _OF("chorale_dp_epsilon_cap")
    firing, names = alert_panels(COORDINATOR, alerts)
    return (
        up_panel(
            COORDINATOR,
            daemon="coordinator",
            doctor="chorale doctor",
            alert="ChoraleCoordinatorDown",
        ),
        firing,
        Panel(
            kind=Kind.STAT,
            title="Phase",
            shows="The phase that the round of the run under way is in.",
            remedy="If it does not change, look at who is waited for, below.",
            queries=(
                Query(
                    expr=f"max by (phase) ({_OF('chorale_round_phase')}) > 0"
                    f" and on () {driven()} > 0",
                    legend="{{phase}}",
                ),
            ),
            unit="none",
            text="name",
            quiet="no run under way",
            width=4,
            height=4,
            runbooks=("ChoraleRoundStalled",),
        ),
        Panel(
            kind=Kind.STAT,
            title="Round",
            shows="The run's round, from 1, and step, from 0. Most plans have one step in a round.",
            remedy="A round that stays is a round that stalls: see the timeline.",
            queries=(
                Query(expr=f"max({_OF('chorale_round')})", legend="round"),
                Query(expr=f"max({_OF('chorale_round_step')})", legend="step"),
            ),
            unit="none",
            text="value_and_name",
            width=4,
            height=4,
        ),
        Panel(
            kind=Kind.STAT,
            title="ε spent of the cap",
            shows="How much of its privacy budget the run has used.",
            remedy=(
                "Above 80 % plan the end of the run: `chorale budget` says what is left. No run "
                "goes past its cap."
            ),
            queries=(Query(expr=f"max({spent}) / (max({cap}) > 0)", legend="spent"),),
            unit="percentunit",
            decimals=0,
            thresholds=((None, "green"), (0.8, "orange"), (1, "red")),
            mappings=ENDLESS,
            quiet="no cap known",
            width=4,
            height=4,
            runbooks=("ChoraleEpsilonEndsEarly",),
        ),
        names,
    )


def _budget() -> Panel:
    return Panel(
        kind=Kind.LINES,
        title="ε spent and cap",
        shows=(
            "ε (zero-out adjacency) charged so far, for the unit that the plan protects, and what "
            "the plan allows."
        ),
        remedy=(
            "The slope times the rounds left must end below the cap; `chorale run plan PLAN` says "
            "what a plan will cost. Silos keep ledgers of their own and refuse at their own caps."
        ),
        queries=(
            Query(expr=f"max({_OF('chorale_dp_epsilon_spent')})", legend="spent"),
            Query(expr=f"max({_OF('chorale_dp_epsilon_cap')})", legend="cap"),
        ),
        unit="none",
        decimals=2,
        minimum=0,
        steps=True,
        overrides=(Override(name="cap", properties=DASHED),),
        width=FULL_WIDTH,
        height=7,
        runbooks=("ChoraleEpsilonEndsEarly",),
    )
