"""Power-of-choice and Oort as they were published: by each silo's own loss. Simulated silos only.

Under secure aggregation nobody outside a silo knows its loss, and whom a policy asked would tell
who has a high one. The product's forms go by published facts
(``federation/selection/by_facts.py``).

    power-of-choice    d candidates drawn in proportion to their data, d > K; of them the K of the
                       highest loss (Cho et al. 2022, arXiv 2010.01243, algorithm 1)
    oort               u = |B| sqrt(1/|B| Σ loss²) + sqrt(0.1 ln t / last), times (T / t_i)² where a
                       silo takes longer than T; ⌈(1 − ε) K⌉ drawn by u from those at 0.95 of the
                       cut-off or above, the rest from those never seen (Lai et al. 2021, algorithm
                       1; constants as in K-Agent's code)

Ordered invariants:

1. The loss counts: a choice among as many candidates as are asked is refused.
2. What Oort has learned of a silo is kept from one call to the next, by whoever holds ``losses``.

A silo's loss is the share of its tries that failed when it was last in a sum. One that never was
has none: in power-of-choice it counts as the highest, so that all become known.

Covered: the two rules. Not covered: Oort's pacer, which moves T.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from lab.experiment.errors import ExperimentError

__all__ = ["SiloLoss", "oort", "power_of_choice", "utility"]

CUT_OFF: Final = 0.95
PENALTY: Final = 2.0
_LEAST_WEIGHT: Final = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloLoss:
    """What is known of a silo that was in a sum."""

    loss: float
    """Root of the mean square over its samples, when it was last in one."""
    samples: int
    """|B|: how many."""
    seconds: float
    """t_i: how long it took."""
    round: int
    """Which round that was, from one."""


def power_of_choice(
    sizes: Mapping[str, int],
    losses: Mapping[str, SiloLoss],
    *,
    count: int,
    candidates: int,
    rng: Random,
) -> tuple[str, ...]:
    """The K of the highest loss of d that are drawn in proportion to their data.

    Raises:
        ExperimentError: The loss would not count, or there are too few silos.
    """
    if not count < candidates:
        raise ExperimentError(f"of {candidates} candidates {count} are no choice: draw more")
    if count > len(sizes):
        raise ExperimentError(f"{count} of {len(sizes)} silos cannot be asked")
    drawn = _drawn({s: float(sizes[s]) for s in sorted(sizes)}, min(candidates, len(sizes)), rng)

    def loss(silo_id: str) -> float:
        return losses[silo_id].loss if silo_id in losses else math.inf

    return tuple(sorted(sorted(drawn, key=loss, reverse=True)[:count]))


def utility(known: SiloLoss, *, number: int, desired_s: float) -> float:
    """Oort's u of a silo, in the round of that number."""
    found = known.samples * known.loss + math.sqrt(0.1 * math.log(number) / known.round)
    slower = known.seconds > desired_s
    return found * (desired_s / known.seconds) ** PENALTY if slower else found


def oort(
    live: tuple[str, ...],
    losses: Mapping[str, SiloLoss],
    *,
    count: int,
    explore: float,
    number: int,
    desired_s: float,
    rng: Random,
) -> tuple[str, ...]:
    """Most of K by utility, and the rest from those that were never in a sum.

    Raises:
        ExperimentError: There are too few silos.
    """
    if count > len(live):
        raise ExperimentError(f"{count} of {len(live)} silos cannot be asked")
    known = {
        silo_id: utility(losses[silo_id], number=number, desired_s=desired_s)
        for silo_id in sorted(live)
        if silo_id in losses
    }
    new = sorted(set(live) - known.keys())
    exploited = min(math.ceil((1 - explore) * count), len(known))
    explored = min(count - exploited, len(new))
    # Where too few are new, more of the known are asked.
    exploited = count - explored
    best = sorted(known.values(), reverse=True)
    near = (
        {s: u for s, u in known.items() if u >= CUT_OFF * best[exploited - 1]} if exploited else {}
    )
    return tuple(sorted([*_drawn(near, exploited, rng), *rng.sample(new, explored)]))


def _drawn(weights: Mapping[str, float], count: int, rng: Random) -> list[str]:
    """So many, one after another, each in proportion to its weight."""
    left = {silo_id: max(weight, _LEAST_WEIGHT) for silo_id, weight in weights.items()}
    drawn: list[str] = []
    while len(drawn) < count:
        (silo_id,) = rng.choices(list(left), weights=list(left.values()))
        drawn.append(silo_id)
        del left[silo_id]
    return drawn
