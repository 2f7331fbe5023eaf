"""The clock that local work goes by: when a silo answers is the plan's choice, not the work's.

Invariants: what is waited for ends early only because the silo is being stopped, and then the
caller says nothing, for it would say it too soon.

Covered: one thread that works, another one that stops it.
"""

from __future__ import annotations

import threading
import time

from dp.config import RECORD_MODES
from federation.plan.plan import Plan

__all__ = ["Due", "Pace"]


class Pace:
    """The machine's own clock; tests have one that needs no waiting."""

    def now(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    def wait_until(self, at: float, stopping: threading.Event) -> bool:
        """Wait until a moment of ``now``; False if the silo is stopped before."""
        return not stopping.wait(max(0.0, at - self.now()))


class Due:
    """When a round's answer is due.

    Under record-level privacy the plan's time begins when the method is set up, else with the task.
    """

    def __init__(self, plan: Plan, pace: Pace, asked_at: float) -> None:
        self.apart = plan.spec.mode in RECORD_MODES
        self._after_s, self._pace = plan.rounds.ready_after_s, pace
        self._since = pace.now() if self.apart else asked_at

    def begin(self) -> None:
        """The method is set up: how long what comes now takes depends on data."""
        if self.apart:
            self._since = self._pace.now()

    def hours(self, site: float | None) -> float | None:
        """How long the work as a whole may take: the plan's time, or the site's if it has one."""
        return self._after_s / 3600.0 if self.apart else site

    @property
    def at(self) -> float:
        """By the clock of ``Pace``."""
        return self._since + self._after_s

    @property
    def passed(self) -> bool:
        """Whether the plan's time is over, where nothing may leave after it."""
        return self.apart and self._pace.now() > self.at
