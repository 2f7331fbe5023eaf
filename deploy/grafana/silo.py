"""The Silo dashboard: what a site's own operators see of their silo.

Invariants: it reads the silo's own metrics alone, of one silo at a time. What it shows is private
to the site: it is read from the site's own Prometheus and leads nowhere else. Figures that only
some modes and methods have share a panel with one that is always there.

Covered: learning, budget, policy, standing with the coordinator, machine. Not covered: the
federation, which the coordinator's operators see; trajectories, which no metric tells of; GPUs that
only a vLLM server uses, which the exporter of their maker shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.models.dashboard import Panel

from deploy.grafana.dashboard import Dashboard, Variable
from deploy.grafana.firing import firing_alerts
from deploy.grafana.panel import (
    CALM,
    DASHED,
    DAYS,
    ENDLESS,
    FULL_WIDTH,
    RIGHT,
    Query,
    bars,
    colour,
    figures,
    lines,
)
from deploy.grafana.scope import SILO

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
        first=(
            _daemon(),
            _contact(),
            _approvals(),
            _certificate(),
            _epsilon(),
            _success(),
            _ends(),
            firing_alerts(SILO, alerts, width=8, height=8),
        ),
        rows={
            "Learning at this site": (_curve(), _training(), _tokens()),
            "What this site serves": (_panels(), _served()),
            "Rounds and privacy": (_phases(), _sent(), _budget()),
            "Daemon and machine": (_faults(), _space(), _load(), _ages()),
        },
        alerts=tuple(alerts),
        firing=SILO.firing(alerts),
        restarts=f"changes({SILO.scraped('process_start_time_seconds')}[5m]) > 0",
    )


# The first screen.


def _daemon() -> Panel:
    return figures(
        title="Silo",
        shows="Whether Prometheus reaches the silo's probe port.",
        remedy=(
            "Does the process run, and does `/readyz` answer on its host? `chorale-silo doctor` "
            "looks at each part by itself."
        ),
        queries=(Query(expr=f"min({SILO.scraped('up')})", legend="silo"),),
        mappings=((0, 0.5, "down", "red"), (0.5, 1, "up", CALM)),
        quiet="not scraped",
        width=4,
        height=5,
        runbooks=("ChoraleSiloDown",),
    )


def _contact() -> Panel:
    contact = _OF("chorale_silo_coordinator_contact_timestamp_seconds")
    return figures(
        title="Coordinator answered",
        shows="Time since the coordinator last answered a call of this silo.",
        remedy=(
            "`chorale-silo doctor` tells DNS, TCP, TLS and authentication apart. The silo goes on "
            "asking by itself; the round goes on without it."
        ),
        queries=(Query(expr=f"time() - max({contact} > 0)", legend="ago"),),
        unit="s",
        decimals=0,
        steps=((None, CALM), (60, "orange"), (300, "red")),
        quiet="no answer known",
        width=5,
        height=5,
        runbooks=("ChoraleSiloCoordinatorUnreachable", "ChoraleSiloRefused"),
    )


def _approvals() -> Panel:
    return figures(
        title="Approvals waiting",
        shows="Runs that wait until somebody here approves or refuses them.",
        remedy="`chorale-silo runs` lists them; `chorale-silo approve RUN` or `refuse RUN`.",
        queries=(
            Query(expr=f"max({_OF('chorale_silo_approvals_waiting')})", legend="runs that wait"),
        ),
        decimals=0,
        steps=((None, CALM), (1, "orange")),
        width=5,
        height=5,
    )


def _certificate() -> Panel:
    expiry = _OF("chorale_silo_certificate_expiry_timestamp_seconds")
    return figures(
        title="Certificate: days left",
        shows="The daemon renews its 30 days at half-life; below 14 days that fails.",
        remedy=(
            "The log says why the coordinator does not renew it. After its end: ask for an invite "
            "and join again; key, ledger and roster stay."
        ),
        queries=(Query(expr=f"(min({expiry} > 0) - time()) / 86400", legend="left"),),
        unit=DAYS,
        decimals=1,
        steps=((None, "red"), (7, "orange"), (14, CALM)),
        width=5,
        height=5,
        runbooks=("ChoraleSiloCertificateExpiring", "ChoraleSiloCertificateRenewalFailing"),
    )


def _epsilon() -> Panel:
    spent, cap = _OF("chorale_silo_dp_epsilon_spent"), _OF("chorale_silo_dp_epsilon_cap")
    return figures(
        title="ε spent of the cap",
        shows="By protected unit; a unit without a cap is not shown.",
        remedy=(
            "Above 80 % decide, before rounds are refused, whether the site allows more: "
            "`chorale-silo budget`, then `epsilon_caps` in `policy.toml`."
        ),
        queries=(Query(expr=f"{spent} / ({cap} > 0)", legend="{{unit}}"),),
        unit="percentunit",
        decimals=0,
        steps=((None, CALM), (0.8, "orange"), (1, "red")),
        mappings=ENDLESS,
        quiet="no cap known",
        width=5,
        height=5,
        runbooks=("ChoraleSiloEpsilonOver80Percent",),
    )


def _success() -> Panel:
    return figures(
        title="Success",
        shows="Successes per episode of this silo's last exploration. The site's own figure.",
        remedy=(
            "Zero from the start: environment or tasks are at fault; `chorale-silo preview RUN` "
            "shows what is sent. A fall after a round: `chorale-silo status` compares adapters on "
            "held-out tasks."
        ),
        queries=(
            # A family that was never played has no number, and is not shown.
            Query(expr=f"{_OF('chorale_silo_success_ratio')} >= 0", legend="{{environment}}"),
        ),
        unit="percentunit",
        decimals=0,
        quiet="nothing was played yet",
        width=6,
        height=8,
    )


def _ends() -> Panel:
    counted = SILO.counted
    return bars(
        title="Rounds, verdicts and errors in this range",
        shows=(
            "Rounds by how they ended here, verdicts of the policy by rule, errors that the daemon "
            "survived, checks of the protocol that failed, renewals, and what was mended."
        ),
        remedy=(
            "A refusal names its rule; change `policy.toml` and restart, or ask for another plan: "
            "`chorale-silo policy check PLAN`. `local_work` each round: this silo contributes "
            "zeros. The same failed check at several sites: ask the admin."
        ),
        queries=(
            counted("chorale_silo_rounds_total", "outcome", "round"),
            counted("chorale_silo_policy_decisions_total", "rule", "verdict"),
            counted("chorale_silo_errors_total", "kind", "error"),
            counted("chorale_silo_failed_checks_total", "check", "failed check"),
            counted("chorale_silo_certificate_renewals_total", "outcome", "certificate"),
            counted("chorale_silo_resumed_uploads_total", "", "upload finished after a restart"),
            counted("chorale_silo_nonfinite_deltas_total", "", "delta not finite, zeros sent"),
        ),
        decimals=0,
        quiet="nothing happened",
        width=10,
        runbooks=("ChoraleSiloErrors", "ChoraleSiloChecksFailing", "ChoraleSiloNonfiniteDeltas"),
    )


# Learning.


def _curve() -> Panel:
    return lines(
        title="Success, and what tries were compared for",
        shows=(
            "Success of each exploration. With a method that compares tries: tasks of the round "
            "whose tries differed, and tokens whose policy ratio was cut."
        ),
        remedy=(
            "Few tasks that differ: they are too easy or too hard, or there are too few tries of "
            "each. Many cut tokens: fewer mini-batches, or a smaller learning rate."
        ),
        queries=(
            Query(expr=f"{_OF('chorale_silo_success_ratio')} >= 0", legend="{{environment}}"),
            Query(
                expr=f"{_OF('chorale_silo_groups_used_ratio')} >= 0", legend="tasks that differed"
            ),
            Query(expr=f"{_OF('chorale_silo_clipped_tokens_ratio')} >= 0", legend="cut {{side}}"),
        ),
        unit="percentunit",
        minimum=0,
        maximum=1,
        overrides={"/^(tasks that differed|cut )/": DASHED},
        quiet="nothing was played yet",
        width=12,
    )


def _training() -> Panel:
    return lines(
        title="What the last training said",
        shows=(
            "Mean reward of the exploration. Loss, outside record modes. Of a method that compares "
            "tries, in nats a token: entropy, divergence from the reference, and how far what "
            "played and what trained disagreed before the first step."
        ),
        remedy=(
            "Reward that rises while success does not: partial credit is learned, not the task. "
            "Loss rising: lower the learning rate. Entropy at a tenth: nothing is tried any more. "
            "Mismatch: the model server's version, data type or adapter."
        ),
        queries=(
            Query(expr=f"{_OF('chorale_silo_task_reward')} > -Inf", legend="reward"),
            Query(expr=f"{_OF('chorale_silo_train_loss')} > -Inf", legend="loss"),
            Query(expr=f"{_OF('chorale_silo_entropy_nats')} > -Inf", legend="entropy"),
            Query(expr=f"{_OF('chorale_silo_kl_nats')} > -Inf", legend="divergence"),
            Query(expr=f"{_OF('chorale_silo_engine_mismatch_nats')} > -Inf", legend="mismatch"),
        ),
        decimals=3,
        quiet="nothing was played yet",
        width=12,
        runbooks=("ChoraleSiloEntropyOffCourse", "ChoraleSiloEngineMismatch"),
    )


def _tokens() -> Panel:
    return lines(
        title="Tokens trained on, and trajectories left out",
        shows=(
            "Tokens of the agent's own turns since the start, not counted in record modes. Right "
            "axis: trajectories longer than the plan's `max_sequence_tokens`."
        ),
        remedy=(
            "No tokens over several rounds: nothing succeeded, so there was nothing to learn from. "
            "Many left out: ask for a plan with a larger `max_sequence_tokens`."
        ),
        queries=(
            Query(expr=_OF("chorale_silo_rollout_tokens_total"), legend="tokens"),
            Query(expr=_OF("chorale_silo_too_long_trajectories_total"), legend="left out"),
        ),
        unit="short",
        minimum=0,
        overrides={"left out": RIGHT},
        width=FULL_WIDTH,
        height=6,
    )


# What this site serves.


def _panels() -> Panel:
    success, violations = (
        f"{_OF(f'chorale_silo_guard_{name}_ratio')} >= 0" for name in ("success", "violation")
    )
    return lines(
        title="The guard's panels: solved, and rules broken",
        shows=(
            "Of the newest adapter that was judged and of the base, on the same tasks. The site's "
            "own figures."
        ),
        remedy=(
            "Rules broken more often than the base does: what was learned pays by breaking them. "
            "`chorale-silo guard` has the figures of each round; an admin can go back to one."
        ),
        queries=(
            Query(expr=success, legend="{{environment}}: {{player}} solves"),
            Query(expr=violations, legend="{{environment}}: {{player}} breaks rules"),
        ),
        unit="percentunit",
        minimum=0,
        maximum=1,
        overrides={"/: base /": DASHED},
        quiet="nothing was judged yet, or there is no guard",
        width=12,
        runbooks=("ChoraleGuardRefused", "ChoraleGuardDrift"),
    )


def _served() -> Panel:
    return lines(
        title="Drift, and what is served",
        shows=(
            "The sum over rounds of how far violations are above the base's, and above what it "
            "raises the alarm. Right axis: the round of the adapter that is served, and 1 for what "
            "judging the newest came to."
        ),
        remedy=(
            "A sum that climbs: no single round is bad enough, together they are. A served round "
            "that stays behind: newer adapters did not pass. `failed`: the log says why it could "
            "not be judged."
        ),
        queries=(
            Query(expr=f"{_OF('chorale_silo_guard_drift')} >= 0", legend="{{environment}}: drift"),
            Query(
                expr=f"{_OF('chorale_silo_guard_drift_threshold')} >= 0",
                legend="{{environment}}: alarm",
            ),
            Query(expr=f"{_OF('chorale_silo_guard_served_round')} >= 0", legend="served round"),
            Query(expr=f"{_OF('chorale_silo_guard_verdict')} > 0", legend="newest {{verdict}}"),
        ),
        decimals=2,
        minimum=0,
        overrides={
            "/: alarm$/": DASHED,
            "/^(served round|newest )/": {**RIGHT, "decimals": 0},
        },
        quiet="nothing was judged yet, or there is no guard",
        width=12,
        runbooks=("ChoraleGuardDrift",),
    )


# Rounds and privacy.


def _phases() -> Panel:
    total, count = (
        f"sum by (phase) (rate({_OF(f'chorale_silo_phase_duration_seconds_{part}')}[1h]))"
        for part in ("sum", "count")
    )
    return lines(
        title="How long phases take",
        shows="Means over the hour before each point.",
        remedy=(
            "`explore` and `train` are this site's own work: more GPUs, or a vLLM server. "
            "`masked_input` is the upload. A silo that is too slow for a deadline misses the round."
        ),
        queries=(Query(expr=f"{total} / ({count} > 0)", legend="{{phase}}"),),
        unit="s",
        logarithmic=True,
        quiet="no phase was done",
        width=12,
    )


def _sent() -> Panel:
    return lines(
        title="Bytes sent",
        shows="Masked vectors, those sent again included; per second.",
        remedy="Far more than one adapter a round: uploads are cut and begin again; see the log.",
        queries=(
            Query(
                expr=f"sum(rate({_OF('chorale_silo_sent_bytes_total')}[$__rate_interval]))",
                legend="sent",
            ),
        ),
        unit="Bps",
        minimum=0,
        width=12,
    )


def _budget() -> Panel:
    return lines(
        title="ε by unit: spent and cap",
        shows=(
            "ε (zero-out adjacency) in this silo's ledger for each unit, and what its own policy "
            "allows. Right axis: releases that ε does not speak of, protected for a smaller unit "
            "only or in mode none; they never go away."
        ),
        remedy=(
            "The ledger binds: at the cap this silo refuses, whatever the plan says. "
            "`chorale-silo budget` shows what is reserved besides. Noise after mode `none` is "
            "refused unless `after_none` in `policy.toml` allows it."
        ),
        queries=(
            Query(expr=_OF("chorale_silo_dp_epsilon_spent"), legend="{{unit}}: spent"),
            Query(expr=f"{_OF('chorale_silo_dp_epsilon_cap')} > 0", legend="{{unit}}: cap"),
            Query(
                expr=f"{_OF('chorale_silo_dp_partial_releases')} > 0",
                legend="releases for a smaller unit than {{unit}}",
            ),
            Query(
                expr=f"{_OF('chorale_silo_dp_unprotected_releases')} > 0",
                legend="releases in mode none",
            ),
        ),
        decimals=2,
        minimum=0,
        overrides={"/: cap$/": DASHED, "/^releases /": {**RIGHT, "decimals": 0}},
        width=FULL_WIDTH,
        runbooks=("ChoraleSiloEpsilonOver80Percent",),
    )


# Daemon and machine.


def _faults() -> Panel:
    return figures(
        title="Faults since the start",
        shows=(
            "Failed checks of this site's audit chain, heads that went back or forked, lost log "
            "lines; and the newest audit record."
        ),
        remedy=(
            "Chain and heads do not break by themselves: `chorale-silo audit verify`, and compare "
            "with what the admin has, `chorale-silo audit heads --out HEADS`."
        ),
        queries=(
            Query(expr=_OF("chorale_silo_audit_verify_failures_total"), legend="audit chain"),
            Query(expr=_OF("chorale_silo_audit_head_conflicts_total"), legend="audit heads"),
            Query(expr=_OF("chorale_silo_log_write_failures_total"), legend="log lines lost"),
            Query(expr=_OF("chorale_silo_audit_head_index"), legend="newest audit record"),
        ),
        decimals=0,
        steps=((None, CALM), (1, "red")),
        overrides={"newest audit record": colour(CALM)},
        width=12,
        height=6,
        runbooks=("ChoraleSiloAuditChainBroken", "ChoraleSiloAuditHeadConflict"),
    )


def _space() -> Panel:
    return lines(
        title="Free disk, memory, GPU memory",
        shows=(
            "Bytes free for the data directory, the daemon's resident memory, and on each GPU that "
            "it uses what is in use by anyone and what there is."
        ),
        remedy=(
            "Make room before the disk is full: what cannot be written to the ledger is not "
            "released. GPU in use near the whole: lower `batch_size` or `max_sequence_tokens`, or "
            "turn on gradient checkpointing."
        ),
        queries=(
            Query(expr=f"min({_OF('chorale_silo_data_free_bytes')})", legend="free disk"),
            Query(expr=f"max({SILO.scraped('process_resident_memory_bytes')})", legend="memory"),
            Query(expr=_OF("chorale_silo_gpu_memory_used_bytes"), legend="GPU {{device}}: used"),
            Query(expr=_OF("chorale_silo_gpu_memory_total_bytes"), legend="GPU {{device}}: all"),
        ),
        unit="bytes",
        logarithmic=True,
        overrides={"/: all$/": DASHED},
        width=12,
        height=6,
        runbooks=("ChoraleSiloDiskFilling",),
    )


def _load() -> Panel:
    spent = SILO.scraped("process_cpu_seconds_total")
    opened, limit = SILO.scraped("process_open_fds"), SILO.scraped("process_max_fds")
    return lines(
        title="Processor and open files",
        shows="Processor time per second, 100 % is one core; open files of those allowed.",
        remedy=(
            "Busy between rounds is not normal. Files near 100 %: raise `LimitNOFILE`, and find "
            "out who opens so many."
        ),
        queries=(
            Query(expr=f"sum(rate({spent}[$__rate_interval]))", legend="processor"),
            Query(expr=f"max({opened} / {limit})", legend="open files"),
        ),
        unit="percentunit",
        decimals=1,
        minimum=0,
        width=12,
        height=6,
    )


def _ages() -> Panel:
    started = f"(time() - max({SILO.scraped('process_start_time_seconds')}))"
    return figures(
        title="Versions, and running for",
        shows="How long the process has run, and with what.",
        remedy="Minutes, and nobody restarted it: it crashes. The log before the start says why.",
        queries=(
            Query(
                expr=f"max by (version) ({_OF('chorale_silo_build_info')}) * on () group_left ()"
                f" {started}",
                legend="Chorale {{version}}",
            ),
            Query(
                expr=f"max by (version) ({SILO.scraped('python_info')})"
                f" * on () group_left () {started}",
                legend="Python {{version}}",
            ),
        ),
        unit="s",
        width=12,
        height=6,
    )
