"""T1: one policy for all, where kernels agree wherever it goes (condition C1).

(a) A few policy-improvement steps from the same θ_0 in every world give π̂_i. They have to do the
same on visited states as often as two improvements in one world with two seeds do, but for
``LIMITS.agreement``.

(b) The effective distance of kernels::

    δ̂_eff(π̂; i, j) = E_{(s,a) ~ d_π̂} TV(P_i(.|s,a), P_j(.|s,a))

An episode that π̂_i played in world i is replayed in world j: same task, same actions. As long as
everything was answered alike the two are in the same state, and the next answers are compared:
observation, reward, whether it is over and solved. In a deterministic environment the total
variation of a step is 0 or 1. From the first difference on nothing is compared. The noise floor is
the same replay in world i twice. δ̂_eff is above it where its lower limit is.

Both are needed: (b) alone says that kernels agree where nobody has learned anything yet.

Rewards are compared although the agent does not see them: a difference of kernels may show in the
state alone, and a reward is what of it everybody but the agent can see.

Covered: environments whose reset decides the episode. Not covered: two worlds that answer alike
but are in different states, which show only later or never; random environments beyond their noise
floor, for TV of a step is taken from one draw of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from evolution.diagnose.policies import Held, Policies, histories
from evolution.diagnose.rates import Rate
from evolution.diagnose.worlds import World, replay
from evolution.trajectory import Task, Trajectory

__all__ = ["LIMITS", "T1", "Limits", "Pair", "distance", "kernels_agree"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Every number of the tests' verdicts."""

    agreement: float = 0.05
    """T1: so much less than two seeds of one world two worlds' policies may agree."""
    coincide: float = 0.95
    """T2: least share of shared states at which best actions agree."""
    least_states: int = 8
    """T2: fewer shared states that prefer any action tell nothing."""
    error: float = 0.05
    """T3: most of η̂_cls."""
    saturated: float = 0.02
    """T3: accuracy within this of the best is saturated."""


LIMITS: Final = Limits()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two worlds, the first of which was played in."""

    one: str
    other: str
    agreement: Rate
    """Of π̂_i and π̂_j where π̂_i goes in world i."""
    distance: Rate
    """δ̂_eff(π̂_i; i, j)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class T1:
    """The test."""

    passed: bool | None
    """None where nothing could be compared."""
    why: str
    pairs: tuple[Pair, ...]
    agreement_floor: Rate
    """Of two improvements in one world."""
    distance_floor: Rate
    """Of the same world twice, all worlds together."""
    moved: Rate
    """At how many visited states an improved policy does something else than θ_0 does."""
    dropped: int
    """Episodes and replays that failed."""

    @property
    def delta(self) -> float:
        """The largest δ̂_eff; 0 where nothing was compared."""
        return max((p.distance.value for p in self.pairs if p.distance.known), default=0.0)


def distance(one: World, other: World, trajectories: Sequence[Trajectory]) -> tuple[Rate, int]:
    """δ̂_eff over episodes that were played in ``one``, and how many could not be replayed."""
    count = total = dropped = 0
    for trajectory in trajectories:
        actions = [*trajectory.task.prefix, *(step.action for step in trajectory.steps)]
        mine = replay(one, trajectory.task.task_id, actions)
        theirs = replay(other, trajectory.task.task_id, actions)
        if mine is None or theirs is None:
            dropped += 1
            continue
        if mine[0] != theirs[0]:
            # They do not even begin alike: one comparison, and nothing after it.
            count, total = count + 1, total + 1
            continue
        for here, there in zip(mine[1:], theirs[1:], strict=False):
            total += 1
            if here != there:
                count += 1
                break
    return Rate(count=count, total=total), dropped


def kernels_agree(
    worlds: Sequence[World],
    policies: Policies,
    *,
    start: Held,
    improved: Mapping[str, Held],
    again: Held,
    episodes: int,
    states: int,
    limits: Limits = LIMITS,
) -> T1:
    """Run T1 with policies that were improved already, by the name of the world.

    ``again`` is the first world's, improved with another seed.
    """
    nothing, dropped = Rate(count=0, total=0), 0
    floor, moved, pairs = nothing, nothing, []
    agreement_floor = nothing
    for place, world in enumerate(worlds):
        mine = improved[world.name]
        tasks = [Task(environment=world.environment, task_id=t) for t in world.tasks[:episodes]]
        batch = policies.play(mine, world, tasks)
        dropped += batch.dropped
        visited = histories(batch.trajectories, states)
        same, failed = distance(world, world, batch.trajectories)
        floor, dropped = floor + same, dropped + failed
        stayed = policies.agreement(start, mine, visited)
        moved += Rate(count=stayed.total - stayed.count, total=stayed.total)
        if place == 0:
            agreement_floor = policies.agreement(mine, again, visited)
        for other in worlds:
            if other.name == world.name:
                continue
            found, failed = distance(world, other, batch.trajectories)
            dropped += failed
            alike = policies.agreement(mine, improved[other.name], visited)
            pairs.append(Pair(one=world.name, other=other.name, agreement=alike, distance=found))
    passed, why = _verdict(pairs, agreement_floor, floor, limits)
    return T1(
        passed=passed,
        why=why,
        pairs=tuple(pairs),
        agreement_floor=agreement_floor,
        distance_floor=floor,
        moved=moved,
        dropped=dropped,
    )


def _verdict(
    pairs: Sequence[Pair], agreement_floor: Rate, floor: Rate, limits: Limits
) -> tuple[bool | None, str]:
    compared = [p for p in pairs if p.distance.known and p.agreement.known]
    if len(compared) < len(pairs) or not pairs or not agreement_floor.known or not floor.known:
        return None, "no episode could be replayed in every world"
    far = max(compared, key=lambda pair: pair.distance.low)
    if far.distance.low > floor.value:
        return False, (
            f"kernels differ where policies go: {far.one} and {far.other} by {far.distance}, the "
            f"noise floor is {100 * floor.value:.1f} %"
        )
    apart = min(compared, key=lambda pair: pair.agreement.value)
    least = agreement_floor.value - limits.agreement
    if apart.agreement.value < least and apart.agreement.high < agreement_floor.value:
        return False, (
            f"policies part: those of {apart.one} and {apart.other} agree at {apart.agreement} of "
            f"the states, two seeds of one world at {100 * agreement_floor.value:.1f} %"
        )
    return True, "kernels agree where policies go, and policies agree as two seeds of one do"
