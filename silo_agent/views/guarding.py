"""What the guard found and what this site serves, for its operator: read beside a daemon.

Covered: verdicts of all runs, what ``current`` leads to, why not something newer. Not covered:
judging (``silo_agent/guard/guard.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from evolution.errors import VerdictError
from evolution.guard.options import Outcome
from evolution.guard.verdict import Verdict, read_rows
from silo_agent.books.local_store import LocalStore
from silo_agent.config import SiloConfig
from silo_agent.errors import LocalStoreError
from silo_agent.guard.shelf import CURRENT, Shelf

__all__ = ["Guarding", "read_guarding"]

_WHY: Final = {
    Outcome.PASSED: "passed",
    Outcome.SUCCESS: "not served: success fell too far below the base's",
    Outcome.VIOLATIONS: "not served: it breaks rules far more often than the base",
    Outcome.DRIFT: "not served: violations have been climbing over rounds",
    Outcome.ANCESTOR: "not served: it solves far less than an earlier adapter of the run",
    Outcome.FAILED: "not served: it could not be judged; the log says why",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarding:
    """The guard at a glance."""

    asked_for: bool
    """Whether silo.toml has a ``[guard]``."""
    serve_dir: str | None
    """Where this site's server reads; None where adapters are only judged."""
    served: str | None
    """The directory that ``current`` leads to; None where there is none."""
    verdicts: tuple[Verdict, ...]
    """Of every adapter that was judged, oldest first."""

    @property
    def summary(self) -> str:
        """One line."""
        if not self.asked_for:
            return "off: silo.toml has no [guard]"
        if self.serve_dir is None:
            return "adapters are judged, and none is served: [guard] has no serve_dir"
        if self.served is None:
            return "the base is served: no adapter has passed yet"
        return f"{self.serve_dir}/{CURRENT} is {self.served[:20]}"

    @property
    def newest(self) -> str | None:
        """The newest verdict in one line; None before the first."""
        return _line(self.verdicts[-1]) if self.verdicts else None

    def lines(self, verdicts: Sequence[Verdict] | None = None) -> list[str]:
        """For people: the summary, and each verdict with its figures."""
        found = [f"guard: {self.summary}"]
        for verdict in self.verdicts if verdicts is None else verdicts:
            found.append(_line(verdict))
            found += [f"  {panel.line}" for panel in verdict.panels]
        return found


def read_guarding(config: SiloConfig) -> Guarding:
    """Look at a silo's guard.

    Raises:
        LocalStoreError: The file of verdicts is damaged.
    """
    try:
        _, verdicts = read_rows(LocalStore(config.data_dir).guard_rows())
    except VerdictError as error:
        raise LocalStoreError(str(error)) from error
    serve_dir = None if config.guard is None else config.guard.serve_dir
    return Guarding(
        asked_for=config.guard is not None,
        serve_dir=None if serve_dir is None else str(serve_dir),
        served=None if serve_dir is None else Shelf(serve_dir).current,
        verdicts=tuple(verdicts),
    )


def _line(verdict: Verdict) -> str:
    back = "" if verdict.restored_round is None else f", back to round {verdict.restored_round}"
    return (
        f"run {verdict.run}, round {verdict.round}{back}, adapter {verdict.adapter_sha256[:12]}: "
        f"{_WHY[verdict.outcome]}"
    )
