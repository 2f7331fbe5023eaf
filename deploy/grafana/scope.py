"""Whose series a dashboard reads.

Covered: selectors of one daemon's series, and of its alerts. Not covered: what is asked of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deploy.grafana.panel import Query

__all__ = ["COORDINATOR", "DRIVEN", "IDLE", "SILO", "UNKNOWN", "Scope"]

_ALWAYS: Final = "ChoraleWatchdog"
"""It fires for Alertmanager, and would only hide the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """The series of one daemon."""

    job: str
    instance: str
    """The matcher of the chosen instance."""

    def of(self, metric: str, *matchers: str) -> str:
        """A selector of the chosen instance, with further matchers as PromQL writes them."""
        return f"{metric}{{{', '.join((*matchers, self.instance))}}}"

    def scraped(self, metric: str) -> str:
        """A selector of a series that every job has, such as ``up``."""
        return self.of(metric, f'job="{self.job}"')

    def firing(self, alerts: Sequence[str]) -> str:
        """Firing alerts of these names, of the chosen instance and those that are about none."""
        names = "|".join(sorted(set(alerts) - {_ALWAYS}))
        matchers = ('alertstate="firing"', f'alertname=~"{names}"')
        nobodys = ", ".join((*matchers, 'instance=""'))
        return f"({self.of('ALERTS', *matchers)} or ALERTS{{{nobodys}}})"

    def counted(self, metric: str, by: str, name: str, *matchers: str) -> Query:
        """How often each thing was counted in the range shown, without those that were not.

        ``by`` is the label to tell apart, and ``name`` what is said before its value.
        """
        increase = f"increase({self.of(metric, *matchers)}[$__range])"
        legend = f"{name}: {{{{{by}}}}}" if by else name
        total = f"sum by ({by}) ({increase})" if by else f"sum({increase})"
        return Query(expr=f"sort_desc(round({total}) > 0)", legend=legend)


COORDINATOR: Final = Scope(job="chorale-coordinator", instance='instance=~"$instance"')
"""All instances at once is the first choice: a restarted pod has another address."""
SILO: Final = Scope(job="chorale-silo", instance='instance="$instance"')
"""One at a time: figures of two silos have no meaning together."""
DRIVEN: Final = f"max({COORDINATOR.of('chorale_rounds_planned')}) > 0"
"""PromQL: of nothing while no run is driven. A phase means something only while one is."""
IDLE: Final = "no run is driven"
"""What a panel says then."""
UNKNOWN: Final = "not reported (mode none without exact figures), or below noise"
"""What a panel says where a sum tells nothing."""
