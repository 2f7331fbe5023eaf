"""One mean from the means of several groups, in which a few groups may say anything at all.

Coordinate-wise, over h groups of which at most f are ruined (Yin, Chen, Ramchandran and Bartlett,
"Byzantine-Robust Distributed Learning", ICML 2018, arXiv 1803.01498, definitions 1 and 2):

    median         the middle of the sorted values; of an even number the mean of the middle two
    trimmed_mean   the mean of what is left without the f least and the f greatest

Either lies between the least and the greatest value of the sound groups once h ≥ 2f + 1. Groups
count alike, whatever their sizes. It is post-processing of noisy sums and costs no privacy.

Invariants:
    1. The same bits everywhere: float64, values sorted in each coordinate, then added from the
       least to the greatest one by one, and one division.
    2. Nothing is whole in memory: a slice of the mean reads that slice of each group's.

Variance of a coordinate, each group's mean having variance 1 and a normal distribution (the noise;
silos' own spread is not in it). With w_i the weight of the i-th smallest, J(a) = w_1 + … + w_a and
N(x) the number of values up to x (Hoeffding's identity):

    Var T = ∬ Cov(J(N(x)), J(N(y))) dx dy,    (N(x), N(y) − N(x), h − N(y)) multinomial

Covered: the above. Not covered: that silos move alike: a median of means of different silos is no
mean of all silos, which costs some bias even where nobody attacks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from federation.aggregate.server_step import Float64Vector, Mean
from federation.errors import LayoutError, UpdateError

GroupRule = Literal["median", "trimmed_mean"]
Float64Matrix = npt.NDArray[np.float64]
MAX_GROUPS: Final = 15
"""g: a record names at most 16 sums, and an odd number has a middle."""
MAX_BYZANTINE: Final = (MAX_GROUPS - 1) // 2
"""f."""

_REACH: Final = 9.0
"""Standard deviations beyond which a normal tail is nothing in float64."""
_NODES: Final = 181
"""Nodes of the coarser of two quadratures on either axis."""


class RobustMean:
    """The coordinate-wise median or trimmed mean of groups' means, computed where it is read."""

    def __init__(self, means: Sequence[Mean], *, rule: GroupRule, byzantine: int) -> None:
        """Combine the means of h groups, of which ``byzantine`` = f may be ruined.

        Raises:
            UpdateError: If there are fewer than 2f + 1.
            LayoutError: If they differ in length.
        """
        if byzantine < 0 or len(means) < 2 * byzantine + 1:
            raise UpdateError(
                f"{len(means)} groups cannot outvote {byzantine}: {2 * byzantine + 1} are needed"
            )
        if len({mean.shape for mean in means}) != 1:
            raise LayoutError("the groups' means differ in length")
        self._means = tuple(means)
        self._kept = _kept(len(means), rule, byzantine)

    @property
    def shape(self) -> tuple[int, ...]:
        """One side: the coordinates."""
        return self._means[0].shape

    def __getitem__(self, place: slice, /) -> Float64Vector:
        """The combined mean over a slice."""
        ordered = np.sort(np.stack([mean[place] for mean in self._means]), axis=0)
        first, stop = self._kept
        total = ordered[first].copy()
        for row in range(first + 1, stop):
            total += ordered[row]
        return np.asarray(total / (stop - first), dtype=np.float64)

    @property
    def kept(self) -> int:
        """How many groups' values the mean of each coordinate is of."""
        first, stop = self._kept
        return stop - first

    def weighed(self, place: slice, /) -> tuple[Float64Matrix, Float64Matrix]:
        """The groups' means over a slice, and what each weighs in the combined mean; a row a group.

        A coordinate's weights are 1/``kept`` or 0 and add up to one. Of equal values the first
        groups' count as the least.
        """
        means = np.stack([mean[place] for mean in self._means])
        first, stop = self._kept
        rank = np.argsort(np.argsort(means, axis=0, kind="stable"), axis=0, kind="stable")
        weights = ((rank >= first) & (rank < stop)) / (stop - first)
        return means, np.asarray(weights, dtype=np.float64)


@cache
def variance_of_rule(groups: int, rule: GroupRule, byzantine: int) -> float:
    """Variance of the combined value of ``groups`` standard normal values; 1/h for a plain mean.

    Raises:
        UpdateError: If there are fewer than 2f + 1 groups, or more than ``MAX_GROUPS``.
    """
    if byzantine < 0 or not 2 * byzantine + 1 <= groups <= MAX_GROUPS:
        raise UpdateError(f"no rule for {groups} groups of which {byzantine} may be ruined")
    first, stop = _kept(groups, rule, byzantine)
    up_to = [min(max(a - first, 0), stop - first) / (stop - first) for a in range(groups + 1)]
    # The covariance has a kink where x = y, of which the trapezoid rule leaves an error in h².
    coarse, fine = (_double_integral(up_to, nodes) for nodes in (_NODES, 2 * _NODES - 1))
    return (4.0 * fine - coarse) / 3.0


def _double_integral(up_to: Sequence[float], count: int) -> float:
    """∬ Cov(J(N(x)), J(N(y))) dx dy by the trapezoid rule; ``up_to`` is J from 0 to h."""
    groups = len(up_to) - 1
    nodes, width = np.linspace(-_REACH, _REACH, count, retstep=True)
    below = np.array([0.5 * math.erfc(-x / math.sqrt(2.0)) for x in nodes])
    low = np.minimum.outer(below, below)
    high = np.maximum.outer(below, below)
    product = np.zeros_like(low)
    for a in range(groups + 1):
        for b in range(a, groups + 1):
            ways = math.comb(groups, b) * math.comb(b, a)
            chance = low**a * (high - low) ** (b - a) * (1.0 - high) ** (groups - b)
            product += ways * up_to[a] * up_to[b] * chance
    mean = np.zeros_like(below)
    for a in range(groups + 1):
        mean += math.comb(groups, a) * up_to[a] * below**a * (1.0 - below) ** (groups - a)
    return float(np.sum(product - np.outer(mean, mean)) * width * width)


def _kept(groups: int, rule: GroupRule, byzantine: int) -> tuple[int, int]:
    """Which of the sorted values are averaged: from the first up to before the second."""
    cut = byzantine if rule == "trimmed_mean" else (groups - 1) // 2
    return cut, groups - cut
