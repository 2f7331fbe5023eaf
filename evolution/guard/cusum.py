"""The drift monitor: a one-sided cumulative sum of how far violations are above the base's.

E. S. Page, "Continuous Inspection Schemes", Biometrika 41 (1954), pp. 100-115, with the reference
value k and decision interval h of the tabular form (D. C. Montgomery, "Introduction to Statistical
Quality Control", §9.1.2) ::

    S_0 = 0,   S_r = max(0, S_{r−1} + (v_r − v_0) − k),   alarm in round r if S_r > h

v_r is the share of a panel's tries in which the adapter of round r broke a rule, v_0 the base's on
the same tasks. A rise of less than k counts as none; a rise of d > k raises the alarm after about
h / (d − k) rounds, however far d is below the threshold for a single round.

**The threshold.** h is the least value whose false alarm probability is at most what the site
allows: that some S_r of the first R = 10 rounds is above h although nothing changed. It takes both
sorts of chance into account, that of each round's m tries and that of the base's n, which is in
every round's difference alike ::

    P(h) = ∫ P(max_{r ≤ R} S_r > h | p) · Beta(p; x_0 + 1, n − x_0 + 1) dp,   m·v_r ~ Bin(m, p)

x_0 are the base's violations; the posterior is of a uniform prior. Given p, S_r is a Markov chain
on multiples of 1/(m·q): v_0 + k is rounded down to one, so h is too large rather than too small.
Tries at the same tasks vary less than that, for what differs between tasks is common to both sides.

Covered: h for one panel. Not covered: what h/(d − k) is under noise; more than R rounds, where the
chance of a false alarm goes on growing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["ROUNDS", "climbed", "false_alarm", "threshold"]

ROUNDS: Final = 10
"""R: over how many rounds the probability of a false alarm is taken."""
_NODES: Final = 33
"""Values of p that the integral is taken at."""
_TAIL: Final = 1e-5
"""Of the posterior, left out on each side."""
_GRID: Final = 1 << 14
_STATES: Final = 256
"""Multiples of the lattice's spacing up to the highest threshold that is looked at."""

Floats = npt.NDArray[np.float64]


def climbed(rises: Iterable[float], *, allowance: float) -> float:
    """S after these rises above the base, oldest first; 0 without one."""
    total = 0.0
    for rise in rises:
        total = max(0.0, total + rise - allowance)
    return total


@lru_cache(maxsize=64)
def threshold(
    *, tasks: int, base_tries: int, base_violations: int, allowance: float, chance: float
) -> float:
    """The least h, up to the lattice, whose false alarm probability is at most ``chance``.

    ``base_tries`` and ``base_violations`` are counts: n and x_0.
    """
    most = 0.25
    while True:
        chains = _Chains(tasks, base_tries, base_violations, allowance, most)
        if chains.alarm(chains.states) <= chance or most >= ROUNDS:
            break
        most *= 2
    low, high = -1, chains.states  # alarm(high) is allowed, alarm(low) is not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if chains.alarm(middle) <= chance else (middle, high)
    return high / chains.lattice


def false_alarm(
    h: float, *, tasks: int, base_tries: int, base_violations: int, allowance: float
) -> float:
    """P(h): that nothing changed and some S of the first ``ROUNDS`` rounds is above h."""
    chains = _Chains(tasks, base_tries, base_violations, allowance, h)
    # A little more, for a threshold that is a multiple of the spacing.
    return chains.alarm(math.floor(h * chains.lattice + 1e-9))


class _Chains:
    """S given p as a Markov chain, for several p with their weights."""

    def __init__(
        self, tasks: int, base_tries: int, base_violations: int, allowance: float, most: float
    ) -> None:
        finer = max(1, int(_STATES / (tasks * max(most, 0.25))))
        self.lattice = tasks * finer
        """Multiples in a unit."""
        self.states = math.ceil(most * self.lattice)
        """The highest threshold, in multiples."""
        taken = math.floor((base_violations / base_tries + allowance) * self.lattice)
        places, self._weights = _posterior(base_tries, base_violations)
        counts = np.arange(tasks + 1)
        steps = counts * finer - taken
        self._moves = [_moves(_binomial(tasks, p), steps, self.states) for p in places]

    def alarm(self, h: int) -> float:
        """That some S is above h multiples."""
        quiet = 0.0
        for weight, moves in zip(self._weights, self._moves, strict=True):
            within = np.zeros(h + 1)
            within[0] = 1.0
            for _ in range(ROUNDS):
                within = within @ moves[: h + 1, : h + 1]
            quiet += weight * float(within.sum())
        return max(0.0, 1.0 - quiet)


def _moves(chances: Floats, steps: npt.NDArray[np.int64], states: int) -> Floats:
    """From each S to each S of at most ``states``; what rises above is left out."""
    moves = np.zeros((states + 1, states + 1))
    start = np.arange(states + 1)
    for chance, step in zip(chances, steps, strict=True):
        if chance < 1e-15:
            continue
        end = np.maximum(0, start + step)
        inside = end <= states
        np.add.at(moves, (start[inside], end[inside]), chance)
    return moves


def _binomial(tries: int, p: float) -> Floats:
    counts = np.arange(tries + 1)
    logs = np.array([math.lgamma(count + 1) for count in counts])
    ways = math.lgamma(tries + 1) - logs - logs[::-1]
    found: Floats = np.exp(ways + counts * math.log(p) + (tries - counts) * math.log1p(-p))
    return found


def _posterior(tries: int, violations: int) -> tuple[Floats, Floats]:
    """Values of p from end to end of the posterior, and their weights, which sum to 1."""
    grid = (np.arange(_GRID) + 0.5) / _GRID
    logs = violations * np.log(grid) + (tries - violations) * np.log1p(-grid)
    dense = np.exp(logs - logs.max())
    below = np.cumsum(dense) / dense.sum()
    first, last = grid[np.argmax(below >= _TAIL)], grid[np.argmax(below >= 1 - _TAIL)]
    places = np.linspace(first, last, _NODES)
    weights = np.interp(places, grid, dense)
    weights[[0, -1]] /= 2
    return places, weights / weights.sum()
