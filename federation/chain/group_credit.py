"""What the groups of a release added: each group's published sum held against the combined update.

A plan with groups publishes a sum for each of them, in a partition of the round's silos
(``federation.chain.groups``). With m_g the group's mean, noise included, T the combined update
(``federation.aggregate.groups``), w_g what m_g weighs in each coordinate of T, s_g² the variance of
the noise in a coordinate of m_g and d coordinates,

    a_g = (⟨m_g, T⟩ − s_g²·Σ w_g) / ‖T‖²

is how far the group went along the update, in lengths of the update as it was released: 1 if it
alone went all the way along it, 0 if none of it is along it, below 0 if it went against it. T holds
the group's own noise, which ⟨m_g, T⟩ would count in its favour; the second term is its expectation
(Stein's lemma: E⟨n, T(μ + n)⟩ = s²·E[Σ ∂T/∂m_g], and ∂T/∂m_g = w_g almost everywhere), so that the
numerator's is ⟨μ_g, E T⟩, with μ_g the mean without noise.

The standard error is an upper bound. By the Gaussian Poincaré inequality (Boucheron, Lugosi and
Massart, "Concentration Inequalities", 2013, theorem 3.20) for independent noises

    Var⟨m_g, T⟩ ≤ E Σ [s_g²·(T + m_g·w_g)² + Σ_{k≠g} s_k²·(m_g·w_k)²]

whose expectation is taken as what the sums say; Σ w_g is a sum of independent values of 0 or 1/k,
with a deviation of at most √d/(2k). Both deviations are added, for they may go together. ‖T‖² is
the released update's and is taken as it is.

Ordered invariants:

1. Totals are derived from the groups and never from a sum of their own: a release's is the mean of
   its groups' a_g, a group's part of it a_g/h with h groups, a silo's an equal part of that.
2. Groups of one release share T, so their errors go together and add up as they are; those of
   different releases are independent and add up as squares.
3. All of it follows from published sums and signed records, which every silo of the roster holds:
   whoever reads a report learns nothing that the sums did not say.

Covered: the above; which silos no release has told apart. Not covered: noise that is not the
sums' own, as that of local steps in mode ``record_local``; that a silo differs from its group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dp.noise.estimate import Estimate
from federation.adapter.encoding import TILE
from federation.aggregate.groups import RobustMean
from federation.errors import UpdateError


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupAlong:
    """One group of a release."""

    part: int
    """As in the record."""
    silos: tuple[str, ...]
    """In its sum, in ascending order."""
    along: Estimate
    """a_g, with the bound of its standard error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRelease:
    """The groups of one release that was applied."""

    round: int
    groups: tuple[GroupAlong, ...]
    """In order of part."""

    @property
    def total(self) -> Estimate:
        """Mean of the groups' a_g."""
        count = len(self.groups)
        return Estimate(
            mean=math.fsum(group.along.mean for group in self.groups) / count,
            standard_error=math.fsum(g.along.standard_error for g in self.groups) / count,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloInGroups:
    """What a silo is credited with because of the groups that it was in."""

    silo_id: str
    releases: int
    added: Estimate
    """Its equal parts of its groups' parts."""
    together: tuple[str, ...]
    """The other silos that were in its group each time: the releases do not tell them apart."""


def along_update(update: RobustMean, noise_variances: Sequence[float]) -> tuple[Estimate, ...]:
    """a_g of each group of a release, NaN where nothing moved.

    Args:
        update: T, with the groups' means.
        noise_variances: s_g² of each group, in the same order.

    Raises:
        UpdateError: If they are not as many as the groups, or not finite and positive or zero.
    """
    variances = np.array(noise_variances, dtype=np.float64)
    if not (np.isfinite(variances).all() and (variances >= 0.0).all()):
        raise UpdateError("a variance of noise is finite and not negative")
    (dimension,) = update.shape
    count = len(variances)
    dot, weight, own, others = (np.zeros(count) for _ in range(4))
    norm_sq = 0.0
    for start in range(0, dimension, TILE):
        place = slice(start, min(start + TILE, dimension))
        means, weights = update.weighed(place)
        if len(means) != count:
            raise UpdateError(f"{count} variances of noise for {len(means)} groups")
        combined = update[place]
        norm_sq += float(np.sum(combined**2))
        dot += np.sum(means * combined, axis=1)
        weight += np.sum(weights, axis=1)
        own += np.sum((combined + means * weights) ** 2, axis=1)
        # Σ_{k≠g} s_k²·(m_g·w_k)²: all of them, less the group's own.
        spread = variances[:, None] * weights**2
        others += np.sum(means**2 * (np.sum(spread, axis=0) - spread), axis=1)
    if norm_sq == 0.0:
        return (Estimate(mean=math.nan, standard_error=math.inf),) * count
    numerator = dot - variances * weight
    error = np.sqrt(variances * own + np.maximum(others, 0.0))
    error += variances * math.sqrt(dimension) / (2.0 * update.kept)
    return tuple(
        Estimate(mean=float(a) / norm_sq, standard_error=float(e) / norm_sq)
        for a, e in zip(numerator, error, strict=True)
    )


def silos_in_groups(releases: Sequence[GroupRelease]) -> tuple[SiloInGroups, ...]:
    """What each silo is credited with over the releases, in ascending order of silos.

    The means add up to the total of ``total_of_groups``.
    """
    found: dict[str, list[Estimate]] = {}
    together: dict[str, frozenset[str]] = {}
    for release in releases:
        for group in release.groups:
            part = 1.0 / (len(release.groups) * len(group.silos))
            mine = Estimate(
                mean=group.along.mean * part, standard_error=group.along.standard_error * part
            )
            for silo_id in group.silos:
                found.setdefault(silo_id, []).append(mine)
                group_now = frozenset(group.silos)
                together[silo_id] = together.get(silo_id, group_now) & group_now
    return tuple(
        SiloInGroups(
            silo_id=silo_id,
            releases=len(found[silo_id]),
            added=_sum_of_independent(found[silo_id]),
            together=tuple(sorted(together[silo_id] - {silo_id})),
        )
        for silo_id in sorted(found)
    )


def total_of_groups(releases: Sequence[GroupRelease]) -> Estimate:
    """The releases' totals together."""
    return _sum_of_independent([release.total for release in releases])


def _sum_of_independent(found: Sequence[Estimate]) -> Estimate:
    return Estimate(
        mean=math.fsum(each.mean for each in found),
        standard_error=math.hypot(*(each.standard_error for each in found)),
    )
