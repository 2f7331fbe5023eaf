"""Behind the first screen: rounds over time, what they cost, and what the sums say of learning.

Covered: rows Rounds, and Learning and privacy. Not covered: what a phase does (protocol.md); any
silo's own figure, for there is none.
"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Panel

from deploy.grafana.panel import DASHED, FULL_WIDTH, RIGHT, Query, bars, lines, timeline
from deploy.grafana.scope import COORDINATOR, DRIVEN, IDLE, UNKNOWN
from server.figures import Phase

__all__ = ["learning_row", "rounds_row"]

_OF: Final = COORDINATOR.of


def rounds_row() -> tuple[Panel, ...]:
    """Phases, who was waited for, and how rounds ended."""
    return _phases(), _waited(), _ends(), _durations(), _bytes()


def learning_row() -> tuple[Panel, ...]:
    """What the sums say, and the budget that they cost."""
    return _curve(), _updates(), _budget()


def _is(label: str, value: str) -> str:
    return f'{label}="{value}"'


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
                expr=f"max({_OF('chorale_round_phase', _is('phase', phase))}) and on () {DRIVEN}",
                legend=phase,
            )
            for phase in Phase
        ),
        mappings=((0, 0.5, "no", "transparent"), (0.5, 1, "now", "blue")),
        steps=((None, "transparent"), (0.5, "blue")),
        quiet=IDLE,
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
            counted("chorale_advice_total", "outcome", "advice"),
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
        quiet=UNKNOWN,
        width=12,
        height=9,
        runbooks=("ChoraleAgentCollapsed", "ChoraleSuccessDropped"),
    )


def _updates() -> Panel:
    return lines(
        title="What the sum says of the updates",
        shows=(
            "Agreement κ: 1 if all updates are equal, 1/n if they have nothing in common. Norm of "
            "the newest sum over the median of the run's earlier ones, from the fourth on. Right "
            "axis: spread ζ̂², the mean squared distance from their mean. Vetoes: share of silos "
            "whose guard refuses the adapter that the round began with, where the plan asks."
        ),
        remedy=(
            "A norm that jumps: one silo may have used the room that the others left; judge the "
            "adapter. κ falling, ζ̂² rising: local work drifts; fewer epochs or a lower rate help. "
            "κ low from the start: silos learn different things. Vetoes at the plan's share pause "
            "the run: `chorale run watch RUN` says what to go back to."
        ),
        queries=(
            Query(expr=f"max({_OF('chorale_agreement_ratio')}) > -Inf", legend="κ"),
            Query(
                expr=f"max({_OF('chorale_agreement_ratio_standard_error')}) > -Inf",
                legend="κ: standard error",
            ),
            Query(expr=f"max({_OF('chorale_update_norm_ratio')}) > -Inf", legend="norm"),
            Query(expr=f"max({_OF('chorale_vetoes_ratio')}) > -Inf", legend="vetoes"),
            Query(
                expr=f"max({_OF('chorale_vetoes_ratio_standard_error')}) > -Inf",
                legend="vetoes: standard error",
            ),
            Query(expr=f"max({_OF('chorale_update_heterogeneity')}) > -Inf", legend="ζ̂²"),
            Query(
                expr=f"max({_OF('chorale_update_heterogeneity_standard_error')}) > -Inf",
                legend="ζ̂²: standard error",
            ),
        ),
        overrides={
            "κ: standard error": DASHED,
            "vetoes: standard error": DASHED,
            "ζ̂²": RIGHT,
            "ζ̂²: standard error": {**RIGHT, **DASHED},
        },
        quiet="fewer than four sums, or below noise",
        width=12,
        height=9,
        runbooks=("ChoraleUpdateNormJumped", "ChoraleRunVetoed"),
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
