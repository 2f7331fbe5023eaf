"""Secure aggregation, and what the sums tell about learning.

Covered: steps, drop-outs, aborts, bytes; success, agreement and spread with their standard errors.
Not covered: any silo's own figure: there is none.
"""

from __future__ import annotations

from typing import Final

from deploy.grafana.dashboard import Row
from deploy.grafana.panel import FULL_WIDTH, Kind, Legend, Panel, Query
from deploy.grafana.presets import COORDINATOR, band, counter

__all__ = ["aggregation_row", "learning_row"]

_OF: Final = COORDINATOR.of
_UNKNOWN: Final = "below noise, or not reported"


def aggregation_row() -> Row:
    """Whether sums come about."""
    return Row(
        title="Secure aggregation",
        panels=(_dropouts(), _aborts(), _bytes(), _resumes(), _releases()),
    )


def learning_row() -> Row:
    """What the sums say."""
    return Row(
        title="Learning, from sums alone",
        panels=(
            _success(),
            _agreement(),
            _heterogeneity(),
            _update_norm(),
            _success_with_error(),
        ),
    )


def _dropouts() -> Panel:
    return counter(
        title="Drop-outs by step",
        shows="Silos lost in an attempt since the coordinator started, by the step they missed.",
        remedy=(
            "Up to n − max(t, n_min) may be lost at any step. The same step each round: a silo too "
            "slow for the deadline, or a network that cuts uploads."
        ),
        queries=(
            Query(
                expr=f"sum by (stage) ({_OF('chorale_secagg_dropouts_total')})",
                legend="{{stage}}",
            ),
        ),
        height=9,
        runbooks=("ChoraleSecAggBelowThreshold",),
    )


def _aborts() -> Panel:
    return counter(
        title="Aborts by reason",
        shows=(
            "Attempts without a sum since the coordinator started. `too_few_…`: fewer silos than "
            "needed were left at that step. `refused_…`: too many refused what they were shown. "
            "`quarantined`: honest silos cannot have made the sum."
        ),
        remedy=(
            "`too_few`: bring silos back; the round is tried again by itself. `refused`: checks "
            "failed at the silos; compare their `chorale_silo_failed_checks_total` between sites. "
            "`quarantined`: pause the run before it comes again."
        ),
        queries=(
            Query(
                expr=f"sum by (reason) ({_OF('chorale_secagg_aborts_total')})",
                legend="{{reason}}",
            ),
        ),
        legend=Legend.BESIDE,
        width=16,
        height=9,
        runbooks=("ChoraleSecAggBelowThreshold", "ChoraleSumQuarantined"),
    )


def _bytes() -> Panel:
    received = _OF("chorale_upload_bytes_total")
    return Panel(
        kind=Kind.LINES,
        title="Masked bytes received",
        shows="Masked uploads folded into sums, in bytes per second; counted when an attempt ends.",
        remedy="Bytes without a round that closes: attempts are repeated, see aborts.",
        queries=(Query(expr=f"sum(rate({received}[$__rate_interval]))", legend="received"),),
        unit="Bps",
        minimum=0,
        height=7,
    )


def _resumes() -> Panel:
    return counter(
        title="Resumed",
        shows=(
            "Uploads that went on at an offset after a cut, and attempts that went on after the "
            "coordinator was restarted."
        ),
        remedy=(
            "Uploads, each round: a proxy or firewall cuts long streams. Attempts: something "
            "restarts the coordinator."
        ),
        queries=(
            Query(expr=f"sum({_OF('chorale_upload_resumes_total')})", legend="uploads"),
            Query(expr=f"sum({_OF('chorale_attempts_resumed_total')})", legend="attempts"),
        ),
        height=7,
    )


def _releases() -> Panel:
    return counter(
        title="Steps closed",
        shows="Steps of rounds since the coordinator started, by outcome.",
        remedy=(
            "A round with one aggregated step of two counts as aggregated; the skipped step shows "
            "here, and `chorale audit tail` has its reason."
        ),
        queries=(
            Query(expr=f"sum by (outcome) ({_OF('chorale_releases_total')})", legend="{{outcome}}"),
        ),
        height=7,
    )


def _success() -> Panel:
    ratio = _OF("chorale_federation_success_ratio", 'environment=~"$environment"')
    return Panel(
        kind=Kind.LINES,
        title="Success by environment",
        shows="Successes per episode of the round's exploration, from the masked sum.",
        remedy=(
            "All at once: the adapter got worse; `chorale adapter rollback RUN --to-round N` goes "
            "back. One alone: its silos, or too few episodes (see its standard error below)."
        ),
        queries=(Query(expr=f"max by (environment) ({ratio}) > -Inf", legend="{{environment}}"),),
        unit="percentunit",
        soft_minimum=0,
        soft_maximum=1,
        steps=True,
        quiet=f"no round has closed, {_UNKNOWN}",
        width=12,
        runbooks=("ChoraleSuccessDropped",),
    )


def _agreement() -> Panel:
    queries, overrides = band(
        f"max({_OF('chorale_agreement_ratio')})",
        f"max({_OF('chorale_agreement_ratio_standard_error')})",
        name="κ",
        ratio=True,
    )
    return Panel(
        kind=Kind.LINES,
        title="Agreement κ ± standard error",
        shows=(
            "How far the silos' updates point the same way: 1 if all are equal, 1/n if they have "
            "nothing in common."
        ),
        remedy=(
            "Low from the start: silos learn different things; think of a personal adapter. "
            "Falling: local work drifts; fewer epochs or a lower rate help."
        ),
        queries=queries,
        unit="none",
        decimals=2,
        soft_minimum=0,
        soft_maximum=1,
        steps=True,
        overrides=overrides,
        quiet=_UNKNOWN,
        width=6,
    )


def _heterogeneity() -> Panel:
    queries, overrides = band(
        f"max({_OF('chorale_update_heterogeneity')})",
        f"max({_OF('chorale_update_heterogeneity_standard_error')})",
        name="ζ̂²",
    )
    return Panel(
        kind=Kind.LINES,
        title="Heterogeneity ζ̂² ± standard error",
        shows="Mean squared distance of the silos' updates from their mean.",
        remedy=(
            "Rising while success falls: updates cancel each other; fewer epochs or a lower rate "
            "bring it down."
        ),
        queries=queries,
        unit="none",
        soft_minimum=0,
        steps=True,
        overrides=overrides,
        quiet=_UNKNOWN,
        width=6,
    )


def _update_norm() -> Panel:
    return Panel(
        kind=Kind.LINES,
        title="Norm of the sum against earlier ones",
        shows=(
            "Length of the newest sum's mean over the median of the run's earlier ones, from the "
            "fourth on; noise is part of both."
        ),
        remedy=(
            "A jump: one silo may have used the room that the others left. Judge the adapter, and "
            "go back with `chorale adapter rollback RUN --to-round N`."
        ),
        queries=(Query(expr=f"max({_OF('chorale_update_norm_ratio')}) > -Inf", legend="ratio"),),
        unit="none",
        decimals=2,
        minimum=0,
        steps=True,
        quiet="fewer than four sums",
        width=FULL_WIDTH,
        height=6,
        runbooks=("ChoraleUpdateNormJumped",),
    )


def _success_with_error() -> Panel:
    family = 'environment=~"$environment"'
    queries, overrides = band(
        f"max({_OF('chorale_federation_success_ratio', family)})",
        f"max({_OF('chorale_federation_success_ratio_standard_error', family)})",
        name="success",
        ratio=True,
    )
    return Panel(
        kind=Kind.LINES,
        title="$environment: success ± standard error",
        shows="One environment's success from the masked sum; the area is one standard error.",
        remedy=(
            "A change smaller than the area may be noise. A wide area wants more episodes a round, "
            "or less noise on the figures (`metrics_noise_multiplier`, which costs ε)."
        ),
        queries=queries,
        unit="percentunit",
        soft_minimum=0,
        soft_maximum=1,
        steps=True,
        overrides=overrides,
        quiet=f"no round has closed, {_UNKNOWN}",
        width=FULL_WIDTH,
        height=7,
        repeat="environment",
        runbooks=("ChoraleSuccessDropped",),
    )
