"""The Federation dashboard: is it moving, and if not, who is in the way?

Invariants: it reads the coordinator's own metrics alone; every query keeps to the chosen instance,
and none has one series more after a restart under another address. The first screen has eight
panels, and each has something to say in every mode.

Covered: what the coordinator's operators see of rounds, silos and the sum. Not covered: figures of
single silos, which the coordinator does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.models.dashboard import Panel

from deploy.grafana.dashboard import Dashboard, Variable
from deploy.grafana.federation.host import coordinator_row, silos_row
from deploy.grafana.federation.rounds import learning_row, rounds_row
from deploy.grafana.firing import firing_alerts
from deploy.grafana.panel import CALM, ENDLESS, Column, Query, colour, figures, rows
from deploy.grafana.scope import COORDINATOR, DRIVEN, IDLE, UNKNOWN
from server.context import SILENT_AFTER_S

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
            "One coordinator: is it moving, and if not, who is in the way? Everything here comes "
            "from sums or is public to the federation; no figure is one silo's, beyond when it "
            "called, when its certificate ends and which phases waited for it."
        ),
        variables=(
            Variable(
                name="instance",
                label="Coordinator",
                query="label_values(chorale_build_info, instance)",
                everything=True,
            ),
        ),
        first=(
            _state(),
            _round(),
            _silos(),
            _phase(),
            _waiting(),
            _success(),
            _epsilon(),
            firing_alerts(COORDINATOR, alerts, width=7, height=7, runbooks=("ChoraleWatchdog",)),
        ),
        rows={
            "Rounds": rounds_row(),
            "Silos": silos_row(),
            "Learning and privacy, from sums alone": learning_row(),
            "Coordinator": coordinator_row(),
        },
        alerts=tuple(alerts),
        firing=COORDINATOR.firing(alerts),
        restarts=f"changes({COORDINATOR.scraped('process_start_time_seconds')}[5m]) > 0",
    )


def _state() -> Panel:
    runs = _OF("chorale_runs", 'state=~"running|pausing|paused|queued"')
    stalled = f"max({_OF('chorale_run_stalled_since_timestamp_seconds')} > 0)"
    return figures(
        title="Run",
        shows="Where runs are; in place of that, a run that stalls or a coordinator that is away.",
        remedy=(
            "Stalled: who is waited for, below. Away: does the process run? `chorale doctor` "
            "looks at each part by itself. Paused: `chorale run resume RUN`."
        ),
        queries=(
            Query(expr=f"(max by (state) ({runs}) > 0) unless on () {stalled}", legend="{{state}}"),
            Query(expr=stalled, legend="stalled"),
            Query(expr=f"max({COORDINATOR.scraped('up')}) == 0", legend="coordinator away"),
            Query(expr=f"max({_OF('chorale_driver_alive')}) == 0", legend="nobody drives"),
        ),
        names=False,
        overrides={
            "stalled": colour("red"),
            "coordinator away": colour("red"),
            "nobody drives": colour("red"),
            "paused": colour("orange"),
        },
        quiet="no run",
        width=5,
        height=5,
        runbooks=(
            "ChoraleRoundStalled",
            "ChoraleCoordinatorDown",
            "ChoraleDriverDead",
            "ChoraleRunFailed",
            "ChoraleQueueWaits",
        ),
    )


def _round() -> Panel:
    return figures(
        title="Round",
        shows="The round under way, how many the plan has, and the step in it after the first.",
        remedy="A round that stays is a round that stalls: see the phases over time.",
        queries=(
            Query(expr=f"max({_OF('chorale_round')}) and on () {DRIVEN}", legend="round"),
            Query(expr=DRIVEN, legend="of"),
            Query(expr=f"max({_OF('chorale_round_step')}) > 0 and on () {DRIVEN}", legend="step"),
        ),
        decimals=0,
        quiet=IDLE,
        width=5,
        height=5,
    )


def _silos() -> Panel:
    spare = f"max({_OF('chorale_silos_spare')}) and on () {DRIVEN}"
    return figures(
        title="Silos",
        shows="Alive, needed for a round, and how many may be lost.",
        remedy=(
            "None to spare: the next one that is lost stops the round. `chorale silo list` says "
            "who was not heard of, or sits out."
        ),
        queries=(
            Query(expr=f"max({_OF('chorale_silos_live')}) and on () {DRIVEN}", legend="live"),
            Query(expr=f"max({_OF('chorale_silos_needed')}) > 0", legend="needed"),
            Query(expr=spare, legend="spare"),
        ),
        decimals=0,
        overrides={
            "spare": {
                "thresholds": {
                    "mode": "absolute",
                    "steps": [{"value": None, "color": "orange"}, {"value": 1, "color": CALM}],
                }
            }
        },
        quiet=IDLE,
        width=7,
        height=5,
        runbooks=("ChoraleNoSpareSilo", "ChoraleSecAggBelowThreshold"),
    )


def _phase() -> Panel:
    started = _OF("chorale_round_phase_started_timestamp_seconds")
    deadline = _OF("chorale_round_deadline_timestamp_seconds")
    return figures(
        title="Phase",
        shows="The phase under way, for how long, and how long until it closes.",
        remedy=(
            "Below zero: the deadline passed and nothing closed. The log says why: "
            "`storage_failed` is disk or database, `round_stalled` a training without quorum."
        ),
        queries=(
            Query(
                expr=f"(max by (phase) ({_OF('chorale_round_phase')}) == 1)"
                f" * on () group_left () (time() - max({started} > 0))",
                legend="{{phase}}",
            ),
            Query(expr=f"max({deadline} > 0) - time()", legend="closes in"),
        ),
        unit="s",
        decimals=0,
        overrides={
            "closes in": {
                "thresholds": {
                    "mode": "absolute",
                    "steps": [{"value": None, "color": "red"}, {"value": 0, "color": CALM}],
                }
            }
        },
        quiet=IDLE,
        width=7,
        height=5,
    )


def _waiting() -> Panel:
    waited = f"max by (silo) ({_OF('chorale_round_waiting')}) == 1"
    started = _OF("chorale_round_phase_started_timestamp_seconds")
    seen = _OF("chorale_silo_last_seen_timestamp_seconds")
    return rows(
        title="Who we wait for, and since when",
        shows="Only silos that the phase waits for now: for how long, and when each last called.",
        remedy=(
            "Silent: its operator runs `chorale-silo doctor`. It calls and is not ready: "
            "`chorale-silo status` there; local work takes its time, or a plan waits for approval."
        ),
        queries=(
            Query(expr=f"({waited}) * on () group_left () (time() - max({started} > 0))"),
            Query(expr=f"time() - max by (silo) ({seen} > 0) and on (silo) ({waited})"),
        ),
        columns=(
            Column(source="silo", title="Silo"),
            Column(source="A", title="Waited for", unit="s"),
            Column(source="B", title="Last call, ago", unit="s", above=SILENT_AFTER_S),
        ),
        quiet="nobody",
        width=8,
        height=7,
        runbooks=("ChoraleSiloSilent", "ChoraleSiloDroppingOut"),
    )


def _success() -> Panel:
    ratio = f"max by (environment) ({_OF('chorale_federation_success_ratio')})"
    error = f"max by (environment) ({_OF('chorale_federation_success_ratio_standard_error')})"
    return figures(
        title="Success",
        shows=(
            "Successes per episode of the newest round, from the masked sum, and the standard "
            "error that the noise leaves."
        ),
        remedy=(
            "It fell by more than twice its error: `chorale run watch RUN` shows the curve, "
            "`chorale adapter rollback RUN --to-round N` goes back."
        ),
        queries=(
            Query(expr=f"{ratio} >= 0", legend="{{environment}}"),
            Query(expr=f"{error} and on (environment) {ratio} >= 0", legend="± {{environment}}"),
        ),
        unit="percentunit",
        decimals=1,
        quiet=UNKNOWN,
        width=5,
        height=7,
        runbooks=("ChoraleAgentCollapsed", "ChoraleSuccessDropped"),
    )


def _epsilon() -> Panel:
    spent, cap = _OF("chorale_dp_epsilon_spent"), _OF("chorale_dp_epsilon_cap")
    return figures(
        title="ε",
        shows="Spent (zero-out adjacency), the plan's cap, and the share of the rounds that began.",
        remedy=(
            "Half the budget for a quarter of the rounds is as it should be, more is not: attempts "
            "were lost after the upload. `chorale budget` says what is left."
        ),
        queries=(
            Query(expr=f"max({spent}) and on () {DRIVEN}", legend="spent"),
            Query(expr=f"max({cap}) > 0 and on () {DRIVEN}", legend="cap"),
            Query(expr=f"max({_OF('chorale_round')}) / ({DRIVEN})", legend="of the rounds"),
        ),
        decimals=2,
        mappings=ENDLESS,
        overrides={"of the rounds": {"unit": "percentunit", "decimals": 0}},
        quiet=IDLE,
        width=4,
        height=7,
        runbooks=("ChoraleEpsilonEndsEarly",),
    )
