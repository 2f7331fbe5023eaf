"""What panels of both dashboards have in common: whose series, and how usual values read.

Covered: selectors of one daemon's series, panels of counters, mappings. Not covered: any panel's
own words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from deploy.grafana.panel import Kind, Mapped, Override, Panel, Query

__all__ = [
    "COORDINATOR",
    "DASHED",
    "DAYS",
    "ENDLESS",
    "SILO",
    "UP",
    "Scope",
    "band",
    "counter",
    "in_range",
]

UP: Final = (
    Mapped(low=0, high=0.5, text="down", colour="red"),
    Mapped(low=0.5, high=1, text="up", colour="green"),
)
ENDLESS: Final = (Mapped(low=1e30, high=None, text="no bound", colour="red"),)
"""An ε without a bound: something was released without noise."""
DAYS: Final = "suffix:d"
"""Grafana's own unit of days turns 30 of them into weeks."""
DASHED: Final = {"custom.lineStyle": {"fill": "dash", "dash": [8, 6]}, "custom.lineWidth": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """The series of one daemon."""

    job: str
    instance: str
    """The matcher of the chosen instance."""

    def of(self, metric: str, *matchers: str) -> str:
        """A selector of the chosen instance, with further matchers as PromQL writes them."""
        return f"{metric}{{{', '.join((*matchers, self.instance))}}}"

    def firing(self, alerts: Sequence[str]) -> str:
        """Firing alerts of these names, of the chosen instance and those that are about none."""
        matchers = ('alertstate="firing"', f'alertname=~"{"|".join(sorted(alerts))}"')
        nobodys = ", ".join((*matchers, 'instance=""'))
        return f"({self.of('ALERTS', *matchers)} or ALERTS{{{nobodys}}})"

    def scraped(self, metric: str) -> str:
        """A selector of a series that every job has, such as ``up``."""
        return self.of(metric, f'job="{self.job}"')


COORDINATOR: Final = Scope(job="chorale-coordinator", instance='instance=~"$instance"')
"""All instances at once is the first choice: a restarted pod has another address."""
SILO: Final = Scope(job="chorale-silo", instance='instance="$instance"')
"""One at a time: figures of two silos have no meaning together."""


def counter(**fields: Any) -> Panel:
    """A counter drawn as it stands: a step is an event, and the legend counts those in the range.

    A rate of something that happens a few times a day shows fractions of events, in places where
    none was.
    """
    return Panel(
        kind=Kind.LINES,
        unit="none",
        decimals=0,
        minimum=0,
        steps=True,
        calcs=("lastNotNull", "delta"),
        **fields,
    )


def in_range(*, selector: str, by: str, **fields: Any) -> Panel:
    """Bars: how often each thing happened in the range shown, without those that did not.

    The selector is of a counter, and ``by`` is the label to tell apart.
    """
    expr = f"sort_desc(round(sum by ({by}) (increase({selector}[$__range]))) > 0)"
    names = ": ".join(f"{{{{{one.strip()}}}}}" for one in by.split(","))
    return Panel(
        kind=Kind.BARS,
        unit="none",
        decimals=0,
        minimum=0,
        queries=(Query(expr=expr, legend=names),),
        **fields,
    )


def band(
    middle: str, half_width: str, *, name: str, ratio: bool = False
) -> tuple[tuple[Query, ...], tuple[Override, ...]]:
    """A line with an area of one standard error on both sides, both in PromQL.

    Returns queries, and what makes two of them the edges of an area. ``middle`` is one series, not
    drawn where it is not a number. The area of a ratio ends at 0 and 1, for nothing lies beyond.
    """
    lower, upper = "minus a standard error", "plus a standard error"
    middle = f"({middle} > -Inf)"
    colour = {"color": {"mode": "fixed", "fixedColor": "blue"}}
    edge = colour | {
        "custom.lineWidth": 0,
        "custom.showPoints": "never",
        "custom.hideFrom": {"legend": True, "tooltip": False, "viz": False},
    }
    edges = [f"{middle} - {half_width}", f"{middle} + {half_width}"]
    below, above = [f"clamp({each}, 0, 1)" for each in edges] if ratio else edges
    queries = (
        Query(expr=middle, legend=name),
        Query(expr=below, legend=lower),
        Query(expr=above, legend=upper),
    )
    overrides = (
        Override(name=name, properties=colour),
        Override(name=lower, properties=edge),
        Override(
            name=upper,
            properties=edge | {"custom.fillBelowTo": lower, "custom.fillOpacity": 18},
        ),
    )
    return queries, overrides
