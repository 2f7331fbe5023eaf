"""How long phases take: two panels over a histogram by ``phase``, the same at each daemon.

Covered: a table of the range shown, a trend. Not covered: which phases there are.
"""

from __future__ import annotations

from deploy.grafana.panel import Column, Kind, Legend, Panel, Query
from deploy.grafana.presets import Scope

__all__ = ["phase_durations"]


def phase_durations(
    scope: Scope, metric: str, *, done: str, remedy: str, price_of: str
) -> tuple[Panel, Panel]:
    """The table of a scope's phases, and the trend beside it; the metric is a histogram in seconds.

    ``done`` is what happened to a phase that is counted, such as ``closed``; ``remedy`` is what to
    do about one that takes long; ``price_of`` is what can make all of them longer, such as ``plan
    or network``.
    """

    def summed(name: str, function: str, window: str, by: str = "phase") -> str:
        return f"sum by ({by}) ({function}({scope.of(f'{metric}_{name}')}[{window}]))"

    count, total = (summed(name, "increase", "$__range") for name in ("count", "sum"))
    buckets = summed("bucket", "increase", "$__range", "phase, le")
    table = Panel(
        kind=Kind.TABLE,
        title="Phase durations in this range",
        shows=(
            f"How often each phase was {done} in the range shown, its mean duration, and the "
            "duration that nine in ten stayed below."
        ),
        remedy=remedy,
        queries=(
            Query(expr=f"round({count}) > 0"),
            Query(expr=f"{total} / ({count} > 0)"),
            Query(expr=f"histogram_quantile(0.9, {buckets}) >= 0"),
        ),
        unit="none",
        columns=(
            Column(source="phase", title="Phase"),
            Column(source="A", title=done.capitalize()),
            Column(source="B", title="Mean", unit="s"),
            Column(source="C", title="90 % below", unit="s"),
        ),
        quiet=f"no phase {done}",
        width=10,
        height=9,
    )
    count, total = (summed(name, "rate", "1h") for name in ("count", "sum"))
    trend = Panel(
        kind=Kind.LINES,
        title="Phase durations over time",
        shows="Mean duration of each phase, over the hour before each point.",
        remedy=f"A step up after another {price_of} is the price of that change.",
        queries=(Query(expr=f"{total} / ({count} > 0)", legend="{{phase}}"),),
        unit="s",
        logarithmic=True,
        legend=Legend.BESIDE,
        quiet=f"no phase {done}",
        width=14,
        height=9,
    )
    return table, trend
