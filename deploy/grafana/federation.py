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
from deploy.grafana.panel import (
    CALM,
    DASHED,
    FULL_WIDTH,
    RIGHT,
    Column,
    Query,
    bars,
    colour,
    figures,
    lines,
    rows,
    timeline,
)
from deploy.grafana.scope import COORDINATOR
from server.context import SILENT_AFTER_S
from server.figures import Phase
from server.members.presence import SILENT_S

__all__ = ["RULE_FILE", "federation"]

RULE_FILE: Final = "coordinator"
"""The rule file whose alerts concern this dashboard."""
_OF: Final = COORDINATOR.of
_DRIVEN: Final = f"max({_OF('chorale_rounds_planned')}) > 0"
"""PromQL: of nothing while no run is driven. A phase means something only while one is."""
_IDLE: Final = "no run is driven"
_UNKNOWN: Final = "not reported (mode none without exact figures), or below noise"
_ANSWERED: Final = 'grpc_method!~"Poll|WatchRun"'
"""Calls that are answered at once; the others wait for something to tell."""
_DAYS: Final = "suffix:d"
"""Grafana's own unit of days turns 30 of them into weeks."""
_ENDLESS: Final = ((1e30, None, "no bound", "orange"),)
"""An ε without a bound: something is released without noise."""


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
            _firing(alerts),
        ),
        rows={
            "Rounds": (_phases(), _waited(), _ends(), _durations(), _bytes()),
            "Silos": (_called(), _states(), _certificates(), _events()),
            "Learning and privacy, from sums alone": (_curve(), _updates(), _budget()),
            "Coordinator": (_calls(), _times(), _faults(), _space(), _load(), _ages()),
        },
        alerts=tuple(alerts),
        firing=COORDINATOR.firing(alerts),
        restarts=f"changes({COORDINATOR.scraped('process_start_time_seconds')}[5m]) > 0",
    )


def _is(label: str, value: str) -> str:
    return f'{label}="{value}"'


# The first screen.


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
            Query(
                expr=f"max({_OF('chorale_standby')}) == 1"
                f" unless on () (min({_OF('chorale_standby')}) == 0)",
                legend="standby",
            ),
            Query(expr=f"max({COORDINATOR.scraped('up')}) == 0", legend="coordinator away"),
            Query(
                expr=f"max({_OF('chorale_driver_alive')}) == 0"
                f" unless on () max({_OF('chorale_standby')}) == 1",
                legend="nobody drives",
            ),
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
            Query(expr=f"max({_OF('chorale_round')}) and on () {_DRIVEN}", legend="round"),
            Query(expr=_DRIVEN, legend="of"),
            Query(expr=f"max({_OF('chorale_round_step')}) > 0 and on () {_DRIVEN}", legend="step"),
        ),
        decimals=0,
        quiet=_IDLE,
        width=5,
        height=5,
    )


def _silos() -> Panel:
    spare = f"max({_OF('chorale_silos_spare')}) and on () {_DRIVEN}"
    return figures(
        title="Silos",
        shows="Alive, needed for a round, and how many may be lost.",
        remedy=(
            "None to spare: the next one that is lost stops the round. `chorale silo list` says "
            "who was not heard of, or sits out."
        ),
        queries=(
            Query(expr=f"max({_OF('chorale_silos_live')}) and on () {_DRIVEN}", legend="live"),
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
        quiet=_IDLE,
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
        quiet=_IDLE,
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
        quiet=_UNKNOWN,
        width=5,
        height=7,
        runbooks=("ChoraleSuccessDropped",),
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
            Query(expr=f"max({spent}) and on () {_DRIVEN}", legend="spent"),
            Query(expr=f"max({cap}) > 0 and on () {_DRIVEN}", legend="cap"),
            Query(expr=f"max({_OF('chorale_round')}) / ({_DRIVEN})", legend="of the rounds"),
        ),
        decimals=2,
        mappings=_ENDLESS,
        overrides={"of the rounds": {"unit": "percentunit", "decimals": 0}},
        quiet=_IDLE,
        width=4,
        height=7,
        runbooks=("ChoraleEpsilonEndsEarly",),
    )


def _firing(alerts: Sequence[str]) -> Panel:
    return rows(
        title="Firing alerts",
        shows="Each firing alert, and how many series fire it; the watchdog left out.",
        remedy="Open the alert's runbook: what it means, what to look at, whom to wake.",
        queries=(Query(expr=f"sum by (alertname, severity) ({COORDINATOR.firing(alerts)})"),),
        columns=(
            Column(source="severity", title="Severity"),
            Column(source="alertname", title="Alert"),
            Column(source="A", title="Series"),
        ),
        overrides={
            "Severity": {
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
        },
        quiet="nothing fires",
        width=7,
        height=7,
        runbooks=("ChoraleWatchdog",),
    )


# Rounds.


def _phases() -> Panel:
    return timeline(
        title="Phases over time",
        shows=(
            "The phase of the round, in the protocol's order from top to bottom, while a run is "
            "driven. Phases shorter than the scrape interval may not show."
        ),
        remedy=(
            "A phase that lasts waits for a silo; the next panel names it. `training` closes when "
            "nobody is waited for any more, or at its deadline with a quorum; every other phase at "
            "its deadline at the latest."
        ),
        queries=tuple(
            Query(
                expr=f"max({_OF('chorale_round_phase', _is('phase', phase))}) and on () {_DRIVEN}",
                legend=phase,
            )
            for phase in Phase
        ),
        mappings=((0, 0.5, "no", "transparent"), (0.5, 1, "now", "blue")),
        steps=((None, "transparent"), (0.5, "blue")),
        quiet=_IDLE,
        width=FULL_WIDTH,
        runbooks=("ChoraleRoundStalled",),
    )


def _waited() -> Panel:
    return timeline(
        title="Who was waited for",
        shows="Marked while a phase waited for that silo.",
        remedy=(
            "The same silo to the end of each phase: it is slower than the others, or its phase is "
            "cut off at the deadline. `chorale audit tail` names the phases."
        ),
        queries=(Query(expr=f"max by (silo) ({_OF('chorale_round_waiting')})", legend="{{silo}}"),),
        mappings=((0, 0.5, "no", "transparent"), (0.5, 1, "waited for", "orange")),
        steps=((None, "transparent"), (0.5, "orange")),
        quiet="no silo in a roster",
        width=FULL_WIDTH,
        height=7,
        runbooks=("ChoraleRoundStalled", "ChoraleSiloSilent"),
    )


def _ends() -> Panel:
    counted = COORDINATOR.counted
    return bars(
        title="How rounds and attempts ended, in this range",
        shows=(
            "Rounds and their steps by outcome; attempts without a sum by reason, silos lost by "
            "the step they missed; what went on after a cut or a restart."
        ),
        remedy=(
            "`too_few_…`: bring silos back; the round is tried again by itself. `refused_…`: "
            "compare `chorale_silo_failed_checks_total` between sites. `quarantined`: pause the "
            "run before it comes again. `chorale audit tail` has each reason."
        ),
        queries=(
            counted("chorale_rounds_total", "outcome", "round"),
            counted("chorale_releases_total", "outcome", "step"),
            counted("chorale_secagg_aborts_total", "reason", "attempt given up"),
            counted("chorale_secagg_dropouts_total", "stage", "silo lost at"),
            counted("chorale_upload_resumes_total", "", "upload resumed"),
            counted("chorale_attempts_resumed_total", "", "attempt resumed"),
        ),
        decimals=0,
        quiet="no round closed",
        width=12,
        height=9,
        runbooks=("ChoraleSecAggBelowThreshold", "ChoraleSumQuarantined"),
    )


def _durations() -> Panel:
    def mean(metric: str, by: str) -> str:
        total, count = (
            f"sum by ({by}) (rate({_OF(f'{metric}_{part}')}[1h]))" for part in ("sum", "count")
        )
        return f"{total} / ({count} > 0)"

    return lines(
        title="How long phases and rounds take",
        shows="Means over the hour before each point.",
        remedy=(
            "`training` is the silos' local work, `masked_input` their upload. A phase that comes "
            "near its deadline loses silos: raise the deadline in the plan, or find the slow site."
        ),
        queries=(
            Query(expr=mean("chorale_round_phase_duration_seconds", "phase"), legend="{{phase}}"),
            Query(expr=mean("chorale_round_duration_seconds", "job"), legend="whole round"),
        ),
        unit="s",
        logarithmic=True,
        quiet="no phase closed",
        width=12,
        height=9,
    )


def _bytes() -> Panel:
    received, sent = _OF("chorale_upload_bytes_total"), _OF("chorale_sent_bytes_total")
    return lines(
        title="Bytes received and sent",
        shows="Masked uploads, counted when an attempt ends, and answers to calls; per second.",
        remedy="Bytes without a round that closes: attempts are repeated, see how they ended.",
        queries=(
            Query(expr=f"sum(rate({received}[$__rate_interval]))", legend="received"),
            Query(expr=f"sum(rate({sent}[$__rate_interval]))", legend="sent"),
        ),
        unit="Bps",
        minimum=0,
        width=FULL_WIDTH,
        height=6,
    )


# Silos.


def _called() -> Panel:
    seen = _OF("chorale_silo_last_seen_timestamp_seconds")
    return bars(
        title="Time since a silo called",
        shows=f"A silo not heard of for {SILENT_AFTER_S:g} seconds is not waited for.",
        remedy=(
            "The silo's operator looks at the daemon; `chorale-silo doctor` tells network, "
            "certificate and clock apart. Started again, it takes part from the next round task."
        ),
        queries=(Query(expr=f"sort_desc(time() - max by (silo) ({seen} > 0))", legend="{{silo}}"),),
        unit="s",
        decimals=0,
        maximum=SILENT_S,
        steps=((None, CALM), (SILENT_AFTER_S, "orange"), (SILENT_S, "red")),
        quiet="no silo has called",
        runbooks=("ChoraleSiloSilent",),
    )


def _states() -> Panel:
    return lines(
        title="Silos by state",
        shows=(
            "Where silos are on their way into rounds, how many are out, and how many approvals a "
            "proposed roster still needs."
        ),
        remedy=(
            "`enrolled` ones wait for a roster: `chorale roster propose`. `sitting_out` ones were "
            "lost again and again and wait some rounds, `suspended` ones are refused, both until "
            "`chorale silo reinstate SILO` at the latest; `revoked` ones for good."
        ),
        queries=(
            Query(expr=f"max by (state) ({_OF('chorale_silos')})", legend="{{state}}"),
            Query(
                expr=f"max({_OF('chorale_roster_approvals_waiting')})",
                legend="approvals of a roster waited for",
            ),
        ),
        decimals=0,
        minimum=0,
        runbooks=("ChoraleNoSpareSilo",),
    )


def _certificates() -> Panel:
    def left(metric: str, by: str = "") -> str:
        ends = f"min by ({by}) ({_OF(metric)} > 0)" if by else f"min({_OF(metric)} > 0)"
        return f"sort(({ends} - time()) / 86400)"

    return bars(
        title="Certificates: days left",
        shows="A silo renews 30 days at half-life, the server 397; the CA is rotated by hand.",
        remedy=(
            "The silo's log says why it was not renewed; after the end it joins again with a new "
            "invite. Server: the coordinator's log. CA: `chorale ca rotate --overlap 30d`, while "
            "silos are there to learn of it."
        ),
        queries=(
            Query(
                expr=left("chorale_certificate_expiry_timestamp_seconds", "silo"),
                legend="{{silo}}",
            ),
            Query(
                expr=left("chorale_server_certificate_expiry_timestamp_seconds"), legend="server"
            ),
            Query(expr=left("chorale_ca_certificate_expiry_timestamp_seconds"), legend="CA"),
        ),
        unit=_DAYS,
        decimals=0,
        maximum=60,
        steps=((None, "red"), (7, "orange"), (14, CALM)),
        quiet="no silo has joined",
        runbooks=("ChoraleCertificateExpiring",),
    )


def _events() -> Panel:
    counted = COORDINATOR.counted
    return bars(
        title="What happened to silos in this range",
        shows=(
            "Attempts that waited for a silo in vain, requests to join by outcome, certificates "
            "renewed, silos left out because their privacy ledger had gone back."
        ),
        remedy=(
            "Waited for in vain: each cost everybody the deadline of a phase; `chorale audit tail` "
            "names it. `invite_unknown` again and again: somebody guesses, or dials the wrong "
            "coordinator."
        ),
        queries=(
            counted("chorale_silo_dropouts_total", "silo", "waited for in vain"),
            counted("chorale_enrolments_total", "outcome", "asked to join"),
            counted("chorale_certificate_renewals_total", "", "certificate renewed"),
            counted("chorale_ledger_rollbacks_total", "", "ledger gone back"),
        ),
        decimals=0,
        quiet="nothing happened",
        width=FULL_WIDTH,
        runbooks=("ChoraleSiloDroppingOut", "ChoraleLedgerRolledBack"),
    )


# Learning and privacy.


def _curve() -> Panel:
    ratio = f"max by (environment) ({_OF('chorale_federation_success_ratio')})"
    error = f"max by (environment) ({_OF('chorale_federation_success_ratio_standard_error')})"
    return lines(
        title="Success by environment, and one standard error",
        shows="Successes per episode of each round's exploration, from the masked sum.",
        remedy=(
            "A change smaller than the error may be noise: more episodes a round, or less noise on "
            "the figures (`metrics_noise_multiplier`, which costs ε). All at once: the adapter got "
            "worse; `chorale adapter rollback RUN --to-round N` goes back."
        ),
        queries=(
            Query(expr=f"{ratio} >= 0", legend="{{environment}}"),
            Query(expr=f"clamp_min(({ratio} >= 0) - {error}, 0)", legend="{{environment}} less"),
            Query(expr=f"clamp_max(({ratio} >= 0) + {error}, 1)", legend="{{environment}} more"),
        ),
        unit="percentunit",
        minimum=0,
        maximum=1,
        overrides={
            "/ (less|more)$/": {
                **DASHED,
                "custom.hideFrom": {"legend": True, "tooltip": False, "viz": False},
            }
        },
        quiet=_UNKNOWN,
        width=12,
        height=9,
        runbooks=("ChoraleSuccessDropped",),
    )


def _updates() -> Panel:
    return lines(
        title="What the sum says of the updates",
        shows=(
            "Agreement κ: 1 if all updates are equal, 1/n if they have nothing in common. Norm of "
            "the newest sum over the median of the run's earlier ones, from the fourth on. Right "
            "axis: spread ζ̂², the mean squared distance from their mean."
        ),
        remedy=(
            "A norm that jumps: one silo may have used the room that the others left; judge the "
            "adapter. κ falling, ζ̂² rising: local work drifts; fewer epochs or a lower rate help. "
            "κ low from the start: silos learn different things."
        ),
        queries=(
            Query(expr=f"max({_OF('chorale_agreement_ratio')}) > -Inf", legend="κ"),
            Query(
                expr=f"max({_OF('chorale_agreement_ratio_standard_error')}) > -Inf",
                legend="κ: standard error",
            ),
            Query(expr=f"max({_OF('chorale_update_norm_ratio')}) > -Inf", legend="norm"),
            Query(expr=f"max({_OF('chorale_update_heterogeneity')}) > -Inf", legend="ζ̂²"),
            Query(
                expr=f"max({_OF('chorale_update_heterogeneity_standard_error')}) > -Inf",
                legend="ζ̂²: standard error",
            ),
        ),
        overrides={
            "κ: standard error": DASHED,
            "ζ̂²": RIGHT,
            "ζ̂²: standard error": {**RIGHT, **DASHED},
        },
        quiet="fewer than four sums, or below noise",
        width=12,
        height=9,
        runbooks=("ChoraleUpdateNormJumped",),
    )


def _budget() -> Panel:
    return lines(
        title="ε spent and cap",
        shows=(
            "ε (zero-out adjacency) charged so far, for the unit that the plan protects, and what "
            "the plan allows."
        ),
        remedy=(
            "It grows more slowly than rounds; a straight line up is attempts that are lost. "
            "`chorale run plan PLAN` says what a plan will cost. Silos keep ledgers of their own "
            "and refuse at their own caps."
        ),
        queries=(
            Query(expr=f"max({_OF('chorale_dp_epsilon_spent')})", legend="spent"),
            Query(expr=f"max({_OF('chorale_dp_epsilon_cap')})", legend="cap"),
        ),
        decimals=2,
        minimum=0,
        overrides={"cap": DASHED},
        width=FULL_WIDTH,
        height=7,
        runbooks=("ChoraleEpsilonEndsEarly",),
    )


# The coordinator itself.


def _calls() -> Panel:
    counted = COORDINATOR.counted
    return bars(
        title="Calls refused and failed, in this range",
        shows=(
            "Refused calls by reason, calls that did not end as `OK` by code, connections that "
            "never made a call."
        ),
        remedy=(
            "`certificate_*`, `silo_*`: certificates and standing. `wrong_round`: late silos, "
            "harmless now and then. `malformed_message`, `foreign_message`, `access_denied`: find "
            "out who calls. `INTERNAL` is a defect: its traceback is in the log."
        ),
        queries=(
            counted("chorale_rejected_messages_total", "reason", "refused"),
            counted("grpc_server_handled_total", "grpc_code", "failed", 'grpc_code!="OK"'),
            counted("chorale_tls_handshake_failures_total", "", "connection without a call"),
        ),
        decimals=0,
        quiet="nothing was refused",
        width=12,
        height=9,
        runbooks=("ChoraleCoordinatorErrors",),
    )


def _times() -> Panel:
    def high(metric: str, *matchers: str) -> str:
        buckets = _OF(f"{metric}_bucket", *matchers)
        return f"histogram_quantile(0.9, sum by (le) (rate({buckets}[$__rate_interval]))) >= 0"

    return lines(
        title="Time to answer, and what it waits for",
        shows=(
            "Nine in ten were faster: calls (long polls left out), transactions, the wait for the "
            "writers' lock, and what is due in the event loop."
        ),
        remedy=(
            "Lock or writes: somebody holds the database. The loop: the processor is busy, or the "
            "machine swaps. Calls alone: large uploads."
        ),
        queries=(
            Query(expr=high("grpc_server_handling_seconds", _ANSWERED), legend="call"),
            Query(expr=high("chorale_store_seconds", 'kind="read"'), legend="read"),
            Query(expr=high("chorale_store_seconds", 'kind="write"'), legend="write"),
            Query(expr=high("chorale_store_lock_wait_seconds"), legend="lock"),
            Query(expr=high("chorale_event_loop_lag_seconds"), legend="event loop"),
        ),
        unit="s",
        logarithmic=True,
        quiet="no calls",
        width=12,
        height=9,
        runbooks=("ChoraleEventLoopSlow", "ChoraleStorageFailing"),
    )


def _faults() -> Panel:
    return figures(
        title="Faults since the start",
        shows=(
            "Failed checks of the audit chain, audit heads that went back or forked, failed "
            "writes, defects while driving runs, lost log lines; and the newest audit record."
        ),
        remedy=(
            "Chain and heads do not break by themselves: a backup was put back, a disk is damaged, "
            "or somebody changed a file. Keep the evidence: `chorale audit verify --heads HEADS`. "
            "Writes: make room, or bring the database back."
        ),
        queries=(
            Query(expr=f"sum({_OF('chorale_audit_verify_failures_total')})", legend="audit chain"),
            Query(expr=f"sum({_OF('chorale_audit_head_conflicts_total')})", legend="audit heads"),
            Query(expr=f"sum({_OF('chorale_storage_faults_total')})", legend="writes"),
            Query(expr=f"sum({_OF('chorale_driver_failures_total')})", legend="defects"),
            Query(expr=f"sum({_OF('chorale_log_write_failures_total')})", legend="log lines lost"),
            Query(expr=f"max({_OF('chorale_audit_head_index')})", legend="newest audit record"),
        ),
        decimals=0,
        steps=((None, CALM), (1, "red")),
        overrides={"newest audit record": colour(CALM)},
        width=12,
        runbooks=(
            "ChoraleAuditChainBroken",
            "ChoraleAuditHeadConflict",
            "ChoraleStorageFailing",
            "ChoraleCoordinatorErrors",
        ),
    )


def _space() -> Panel:
    free, resident = (
        _OF("chorale_data_free_bytes"),
        COORDINATOR.scraped("process_resident_memory_bytes"),
    )
    return lines(
        title="Free disk and memory",
        shows="Bytes free for the data directory, and the daemon's resident memory.",
        remedy=(
            "Make room before the disk is full: the round waits until it is written. Memory that "
            "grows over days is a leak: restart, and report it."
        ),
        queries=(
            Query(expr=f"min({free})", legend="free disk"),
            Query(expr=f"max({resident})", legend="memory"),
        ),
        unit="bytes",
        logarithmic=True,
        width=6,
        runbooks=("ChoraleDiskFilling",),
    )


def _load() -> Panel:
    spent = COORDINATOR.scraped("process_cpu_seconds_total")
    opened, limit = COORDINATOR.scraped("process_open_fds"), COORDINATOR.scraped("process_max_fds")
    return lines(
        title="Processor and open files",
        shows="Processor time per second, 100 % is one core; open files of those allowed.",
        remedy=(
            "Busy between rounds is not normal: look at what is refused. Files near 100 %: raise "
            "`LimitNOFILE`, and find out who opens so many."
        ),
        queries=(
            Query(expr=f"sum(rate({spent}[$__rate_interval]))", legend="processor"),
            Query(expr=f"max({opened} / {limit})", legend="open files"),
        ),
        unit="percentunit",
        decimals=1,
        minimum=0,
        width=6,
    )


def _ages() -> Panel:
    started = f"(time() - max({COORDINATOR.scraped('process_start_time_seconds')}))"
    backup = _OF("chorale_backup_last_success_timestamp_seconds")
    return figures(
        title="Versions, running for, newest backup",
        shows="How long the process has run, with what, and how old the newest backup is.",
        remedy=(
            "Minutes, and nobody restarted it: it crashes; the log before the start says why. No "
            "backup: `chorale backup --out FILE`, and a timer for it."
        ),
        queries=(
            Query(
                expr=f"max by (version) ({_OF('chorale_build_info')}) * on () group_left ()"
                f" {started}",
                legend="Chorale {{version}}",
            ),
            Query(
                expr=f"max by (version) ({COORDINATOR.scraped('python_info')})"
                f" * on () group_left () {started}",
                legend="Python {{version}}",
            ),
            Query(expr=f"time() - max({backup} > 0)", legend="newest backup"),
        ),
        unit="s",
        width=FULL_WIDTH,
        height=5,
        runbooks=("ChoraleBackupOld",),
    )
