"""How many silos the run that is driven can lose before what goes on now stops.

While a sum is open, whoever is still in its attempt counts: ``max(t, n_min)`` of them until
survivors are declared and t after that, as the attempt itself asks (``secagg/server``). Otherwise
whoever may be in the next attempt counts, and the plan's quorum opens it.

Covered: every phase, drop-outs, silos that refused for good, sit out or may take no part. Not
covered: which group or half a silo is in, so with those the next attempt may need more than is
said here; silos that are there and never answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from server.figures import STEPS
from server.run.driver import RunDriver

__all__ = ["Strength", "strength"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Strength:
    """Silos that are there, and how many of them it takes."""

    live: int
    needed: int

    @property
    def spare(self) -> int:
        """How many may be lost still; below 0 where too few are there already."""
        return self.live - self.needed


def strength(driver: RunDriver, alive: Callable[[str], bool]) -> Strength:
    """Count for what a driven run does now; ``alive`` says who was heard of lately."""
    attempt = driver.attempt
    if attempt is not None and driver.current.phase in STEPS:
        descriptor = attempt.descriptor.descriptor
        needed = descriptor.threshold
        if driver.current.phase in STEPS[:3]:
            needed = max(needed, descriptor.n_min)
        return Strength(live=sum(map(alive, attempt.active)), needed=needed)
    rounds, sums = driver.plan.rounds, driver.plan.secure_aggregation
    return Strength(
        live=sum(map(alive, driver.cohorts.counted_on)),
        needed=driver.plan.least_groups * rounds.ready_quorum(sums.n_min),
    )
