"""F: a short federated probe beside the theorem's floor, where T1, T2 and T3 all fail.

A few rounds of federated averaging over the worlds, from θ_0, and as many steps alone in each
(T1's π̂_i). On tasks of its own each world counts successes of both::

    gap_i = J_i(π̂_i) − J_i(θ̂_fed)        the worst of them beside   floor = Rmax·H·δ̂_eff / 2

In success rates Rmax·H is 1. F1: the worst gap lies within a small constant of the floor: latent
pattern D. F2: well below. Nothing is said where no world has learned anything alone, for then there
is nothing that averaging could lose.

Covered: two worlds and more, uniform averages. Not covered: more rounds, in which a gap may grow;
clips, noise and partial participation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evolution.diagnose.bounds import Fallback, fallback, policy_gap_floor
from evolution.diagnose.policies import Held, Policies
from evolution.diagnose.rates import Rate
from evolution.diagnose.worlds import World
from evolution.trajectory import Task

__all__ = ["Floor", "Gap", "beside_floor"]

_Z: float = 1.959963984540054


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """One world."""

    world: str
    start: Rate
    """θ_0's success."""
    alone: Rate
    """π̂_i's."""
    together: Rate
    """θ̂_fed's."""

    @property
    def value(self) -> float:
        """How far together lies below alone."""
        return self.alone.value - self.together.value

    @property
    def error(self) -> float:
        """Standard error of that, binomial."""
        return _error(self.alone, self.together)

    @property
    def learned(self) -> bool:
        """Whether alone lies above the start beyond binomial noise."""
        return self.alone.value - self.start.value > _Z * _error(self.alone, self.start)


@dataclass(frozen=True, kw_only=True, slots=True)
class Floor:
    """The test."""

    verdict: Fallback | None
    why: str
    gaps: tuple[Gap, ...]
    worst: float
    """The largest gap."""
    floor: float


def beside_floor(
    worlds: Sequence[World],
    policies: Policies,
    *,
    start: Held,
    alone: Mapping[str, Held],
    together: Held,
    delta: float,
    episodes: int,
) -> Floor:
    """Judge the probe's adapters; ``delta`` is T1's largest δ̂_eff."""

    def rate(policy: Held, world: World) -> Rate:
        # From the end: those at the beginning are what T1 to T3 looked at.
        ids = world.tasks[-episodes:]
        tasks = [Task(environment=world.environment, task_id=task) for task in ids]
        played = policies.play(policy, world, tasks).trajectories
        return Rate(count=sum(one.success for one in played), total=len(played))

    gaps = tuple(
        Gap(
            world=world.name,
            start=rate(start, world),
            alone=rate(alone[world.name], world),
            together=rate(together, world),
        )
        for world in worlds
    )
    floor = policy_gap_floor(most_return=1.0, delta=delta)
    counted = [gap for gap in gaps if gap.alone.known and gap.together.known and gap.start.known]
    if not counted or not any(gap.learned for gap in counted):
        worst = max((gap.value for gap in counted), default=math.nan)
        return Floor(
            verdict=None,
            why="no world learned anything alone in so few steps: take more, or larger ones",
            gaps=gaps,
            worst=worst,
            floor=floor,
        )
    far = max(counted, key=lambda gap: gap.value)
    half = _Z * far.error
    verdict = fallback((far.value - half, far.value + half), floor)
    said = {"F1": "at the floor", "F2": "well below the floor", None: "not apart from the limit"}
    return Floor(
        verdict=verdict,
        why=(
            f"{far.world} lies {100 * far.value:.1f} ± {100 * half:.1f} points below alone, "
            f"{said[verdict]} of {100 * floor:.1f} points"
        ),
        gaps=gaps,
        worst=far.value,
        floor=floor,
    )


def _error(one: Rate, other: Rate) -> float:
    return math.sqrt(
        sum(rate.value * (1 - rate.value) / max(1, rate.total - 1) for rate in (one, other))
    )
