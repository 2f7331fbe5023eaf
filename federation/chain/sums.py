"""What the one sum says: its bytes, its metrics block, and how much the silos agreed.

The metrics block follows the delta. Both sides derive its coordinates from the plan and from what
the cohort's silos declare, before anyone trains:

    update_norm_sq              ‖Δ_i‖², at most C²; always 0 in ``record_distributed``, where no
                                figure of a silo's own gradient may leave it
    vetoes                      1 where the silo's guard refuses the adapter that the round began
                                with, else 0; only where the plan asks (``[vetoes]``)
    episodes/<family>           at most the plan's episodes per round
    successes/<family>          the same

Invariants of the block:
    1. A family has coordinates only if max(t, n_min) cohort silos or more declare it; the episodes
       of others go to ``other``, which has coordinates under the same condition on the silos that
       would fill it, with families of the plan. Below it those episodes are reported nowhere:
       ``other`` would be the figure of fewer silos than any sum may be about. Each silo checks
       this against the families signed in R0 (``secagg.verification.check_families``), which is
       where the prefixes are defined; in suite v1 without knowing which the plan's are.
    2. Every bound is a function of the plan, never of data.
    3. The order is fixed: the norm, vetoes, then families by name, ``other`` last.
    4. Without noise there are no coordinates at all unless the plan says ``exact_figures``: where
       one silo alone found something to contribute, its figures would be told in clear. The plan
       decides for all silos alike; one that sent figures among zeros would be the one they tell of.

Agreement, from the mean Δ̄ (noise included), the noise's energy E = d·σ²/K² in ‖Δ̄‖², σ² being the
variance of the noise in the sum, and S = mean ‖Δ_k‖² from the block:

    m = ‖Δ̄‖² − E        κ = m / S        ζ̂² = S − m        Var m = 4·m·E/d + 2·E²/d

(the variance of a noncentral χ² with d degrees of freedom: Johnson, Kotz and Balakrishnan,
"Continuous Univariate Distributions" 2, 1995, section 29.4). κ is 1 if all silos moved alike and
1/K if their moves were orthogonal. Noise of the delta and noise of the block are independent, so
the delta method (Casella and Berger, "Statistical Inference", 2002, section 5.5.4) gives

    Var ζ̂² = Var m + Var S        Var κ = (Var m + κ²·Var S)/S²        sd ‖Δ̄‖ = sd(m)/(2·‖Δ̄‖)

``Estimate.reportable`` is NaN, "below noise", where the standard error exceeds the figure.

Covered: the above. Not covered: rounding to the grid, which inflates ‖Δ̄‖² by less than 0.1 % at the
resolutions that ``dp.noise.grid`` accepts and is not part of the standard errors; grid and noise of
the block (``dp.noise.metrics_block``).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from dp.config import Mode
from dp.noise.estimate import Estimate
from federation.adapter.encoding import Buffer, tiles
from federation.aggregate.groups import RobustMean
from federation.aggregate.optimiser import Optimiser
from federation.aggregate.server_step import Mean, MeanOfSum, SignedVector
from federation.errors import LayoutError, UpdateError
from federation.plan.plan import Plan
from secagg import bounds
from secagg.descriptor import EPISODES, OTHER_FAMILY, SUCCESSES
from secagg.errors import MalformedMessageError

UPDATE_NORM_SQ: Final = "update_norm_sq"
VETOES: Final = "vetoes"


def encode_sum(total: npt.NDArray[np.integer]) -> bytes:
    """The published form of a whole sum, delta then metrics: signed 32-bit little-endian.

    These are also the bytes of the ring elements as unsigned 32-bit little-endian.

    Raises:
        UpdateError: If an element is outside 32 bits, which the no-wrap bound excludes.
    """
    return b"".join(_sum_parts(total))


def sum_sha256(sum_bytes: Buffer) -> bytes:
    """What a record calls a published sum."""
    return hashlib.sha256(sum_bytes).digest()


def digest_of_sum(total: npt.NDArray[np.integer]) -> bytes:
    """``sum_sha256(encode_sum(total))`` without the bytes in one piece.

    Raises:
        UpdateError: As ``encode_sum``.
    """
    digest = hashlib.sha256()
    for part in _sum_parts(total):
        digest.update(part)
    return digest.digest()


def _sum_parts(total: npt.NDArray[np.integer]) -> Iterator[bytes]:
    signed = signed_sum(total)
    for tile in tiles(signed):
        narrow = signed[tile].astype("<i4")
        if not np.array_equal(narrow, signed[tile]):
            raise UpdateError("the sum has an element outside 32 bits")
        yield narrow.tobytes()


def signed_sum(total: npt.NDArray[np.integer]) -> SignedVector:
    """The same sum, known to be signed.

    Raises:
        UpdateError: If it is no vector of signed integers; ring elements must be lifted first.
    """
    if total.ndim != 1 or not np.issubdtype(total.dtype, np.signedinteger):
        raise UpdateError(f"a sum is a vector of signed integers, got {total.dtype} {total.shape}")
    return cast("SignedVector", total)


def mean_of_release(plan: Plan, delta: SignedVector, survivors: int) -> MeanOfSum:
    """What a released sum is the sum of, on average: a silo's delta, or one unit's gradient.

    Deltas count once for each silo. Gradients are divided by K·B̄ with the plan's B̄: how many units
    were sampled is nobody's to know.

    ``delta`` is the sum without its metrics block, and may be a memory map; the survivors are K.

    Raises:
        UpdateError: If the sum is not one of int32 or int64, or K is not positive.
    """
    spec = plan.spec
    release, units = spec.release, 1
    if spec.mode is Mode.RECORD_DISTRIBUTED and spec.record is not None:
        units = spec.record.expected_units
    return MeanOfSum(delta, scale=release.grid / release.clip_l2, count=survivors * units)


def mean_of_parts(plan: Plan, parts: Sequence[tuple[SignedVector, int]]) -> Mean:
    """The mean of a release from its sums, each without its metrics block and with its K, by part.

    Without groups it is that of the only sum; with groups the robust mean of the sums' means.

    Raises:
        UpdateError: As ``mean_of_release``; or the plan has no release of so many sums.
        LayoutError: If the sums differ in length.
    """
    groups = plan.aggregation.groups
    if groups is None:
        if len(parts) != 1:
            raise UpdateError(f"a release of this plan has one sum, not {len(parts)}")
        return mean_of_release(plan, *parts[0])
    if not plan.least_groups <= len(parts) <= plan.groups:
        raise UpdateError(
            f"a release of this plan has {plan.least_groups} to {plan.groups} sums, not "
            f"{len(parts)}"
        )
    means = [mean_of_release(plan, delta, survivors) for delta, survivors in parts]
    return RobustMean(means, rule=groups.rule, byzantine=groups.byzantine)


def move_of_release(
    plan: Plan,
    optimiser: Optimiser,
    parts: Sequence[tuple[SignedVector, int]],
    *,
    round_number: int,
    step: int,
) -> Mean:
    """The optimiser's move of a release, from its sums as in ``mean_of_parts``.

    Raises:
        OptimiserStateError: If this release does not follow the newest one.
        UpdateError: As ``mean_of_parts``; or the mean is not finite.
        LayoutError: If the sums differ in length.
    """
    # No optimiser that a plan with groups may have looks at it (``registry.GROUP_OPTIMISERS``).
    alone = len(parts) == 1 and plan.aggregation.groups is None
    return optimiser.move(
        mean_of_parts(plan, parts),
        round_number=round_number,
        step=step,
        noise_variance=least_noise_variance(plan, parts[0][1]) if alone else 0.0,
    )


def least_noise_variance(plan: Plan, survivors: int) -> float:
    """Variance that the masked sum's noise gives at least to a coordinate of the mean: (z·C/K)².

    K silos are in the sum, and the shares of max(t, n_min) − c of them hold (z·Δ)² on the grid
    (``dp.noise.share``). More silos in the sum add more; how much depends on the cohort, which a
    silo that was away does not know. Of ``record_local`` it is the noise of mode ``silo`` on
    top, not that of the local steps. Sums of gradients have it per unit, divided by B̄ as well.

    Raises:
        UpdateError: If K is not positive.
    """
    if survivors < 1:
        raise UpdateError(f"a mean needs a positive count, got {survivors}")
    spec = plan.spec
    count = survivors
    if spec.mode is Mode.RECORD_DISTRIBUTED and spec.record is not None:
        count *= spec.record.expected_units
    deviation = spec.release.noise_multiplier * spec.release.clip_l2 / count
    return deviation * deviation


class MetricsNames(NamedTuple):
    """The block's coordinates in order."""

    names: tuple[str, ...]
    """One for each coordinate."""
    bounds: tuple[float, ...]
    """Upper bound of each; the lower one is zero."""


def metrics_layout(
    plan: Plan,
    declared: Mapping[str, tuple[str, ...]],
    *,
    t: int,
    n_min: int,
    filling: Collection[str] | None = None,
) -> MetricsNames:
    """The metrics block of one cohort, whose silos each declare some families.

    ``t`` is the threshold of the secure aggregation, ``n_min`` the least number of survivors.
    ``filling`` has the families that count for ``other``, those of the plan; None counts all.

    Raises:
        LayoutError: If a declaration is malformed.
    """
    for silo_id, families in declared.items():
        require_families(silo_id, families)
    if not plan.has_figures:
        return MetricsNames(names=(), bounds=())
    least = max(t, n_min)
    counts = Counter(family for families in declared.values() for family in families)
    shown = sorted(
        name for name, silos in counts.items() if silos >= least and name != OTHER_FAMILY
    )
    rest = (set(families) - set(shown) for families in declared.values())
    fillers = sum(1 for left in rest if (left if filling is None else left.intersection(filling)))
    if fillers >= least:
        shown.append(OTHER_FAMILY)
    if not plan.evolve.episodes_per_round:
        # Nothing is explored, so there is nothing to count.
        shown = []
    return figures_of(plan, shown)


def figures_of(plan: Plan, families: Iterable[str]) -> MetricsNames:
    """The coordinates of a plan that has figures, with counts of these families in this order."""
    bounds = {UPDATE_NORM_SQ: plan.spec.release.vector_clip_l2**2}
    if plan.vetoes is not None:
        bounds[VETOES] = 1.0
    for family in families:
        for kind in (EPISODES, SUCCESSES):
            bounds[kind + family] = float(plan.evolve.episodes_per_round)
    return MetricsNames(names=tuple(bounds), bounds=tuple(bounds.values()))


def success_ratios(estimates: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Successes per episode of each family of a decoded block.

    The error is first order: √(e_s² + ρ²·e_n²)/n for ρ = s/n. Where the noise exceeds the number
    of episodes the ratio is NaN with an infinite error.
    """
    ratios = {}
    for name, episodes in estimates.items():
        if name.startswith(EPISODES):
            family = name.removeprefix(EPISODES)
            ratios[family] = _quotient(estimates[SUCCESSES + family], episodes)
    return ratios


def agreement(
    mean_sq: float, noise_energy: float, norm_sq: Estimate, *, dimension: int
) -> Estimate:
    """κ = (‖Δ̄‖² − E)/S.

    Args:
        mean_sq: ‖Δ̄‖², squared norm of the mean delta, noise included.
        noise_energy: E = d·σ²/K², what the noise adds to it on average.
        norm_sq: S with its standard error, the block's ``update_norm_sq``.
        dimension: d, coordinates of the delta.

    Raises:
        UpdateError: If an argument is out of range.
    """
    return _quotient(_denoised(mean_sq, noise_energy, dimension), norm_sq)


def update_norm(mean_sq: float, noise_energy: float, *, dimension: int) -> Estimate:
    """‖Δ̄‖, the noise included, and how much the noise alone makes it vary.

    First order: sd(‖Δ̄‖) = sd(‖Δ̄‖²)/(2·‖Δ̄‖). Arguments and errors are those of ``agreement``.
    """
    moved = _denoised(mean_sq, noise_energy, dimension)
    norm = math.sqrt(mean_sq)
    error = moved.standard_error / (2.0 * norm) if norm > 0.0 else 0.0
    return Estimate(mean=norm, standard_error=error)


def heterogeneity(
    mean_sq: float, noise_energy: float, norm_sq: Estimate, *, dimension: int
) -> Estimate:
    """ζ̂² = S − (‖Δ̄‖² − E), the spread of the silos' moves around their mean.

    Arguments and errors are those of ``agreement``.
    """
    moved = _denoised(mean_sq, noise_energy, dimension)
    return Estimate(
        mean=norm_sq.mean - moved.mean,
        standard_error=math.hypot(moved.standard_error, norm_sq.standard_error),
    )


def _denoised(mean_sq: float, noise_energy: float, dimension: int) -> Estimate:
    in_range = all(math.isfinite(x) and x >= 0 for x in (mean_sq, noise_energy))
    if not in_range or dimension < 1:
        raise UpdateError("agreement needs finite energies that are not negative, and d ≥ 1")
    moved = mean_sq - noise_energy
    variance = (4.0 * max(moved, 0.0) + 2.0 * noise_energy) * noise_energy / dimension
    return Estimate(mean=moved, standard_error=math.sqrt(variance))


def _quotient(numerator: Estimate, denominator: Estimate) -> Estimate:
    """First-order error of a quotient of independent figures; NaN over a figure below noise."""
    if denominator.mean <= denominator.standard_error:
        return Estimate(mean=math.nan, standard_error=math.inf)
    ratio = numerator.mean / denominator.mean
    error = math.hypot(numerator.standard_error, ratio * denominator.standard_error)
    return Estimate(mean=ratio, standard_error=error / denominator.mean)


def require_families(silo_id: str, families: tuple[str, ...]) -> None:
    """Refuse a declaration of families that is too long, repeated or malformed.

    Raises:
        LayoutError: Naming the silo.
    """
    if len(families) > bounds.MAX_FAMILIES or len(set(families)) != len(families):
        raise LayoutError(
            f"silo {silo_id!r} declares a family twice or more than {bounds.MAX_FAMILIES}"
        )
    for family in families:
        try:
            bounds.require_family(family, f"a family declared by {silo_id!r}")
        except MalformedMessageError as error:
            raise LayoutError(str(error)) from error
