"""From the unmasked sum to the next adapter and to figures; what a run's sums say of its silos.

Ordered invariants:

1. The sum must be one that honest silos can have made, noise included; otherwise nothing of it is
   applied or shown. Its vector is no longer than n clips. Each figure of the metrics block lies
   between 0 and n times its bound, and no family has more successes than episodes.
2. The mean is over the survivors, unweighted; of gradients it is over K·B̄ with the plan's B̄.
3. The update is the plan's aggregation method and nothing else; every silo recomputes it.
4. That a silo spoils a run's sums, or that the newest stands out, is computed from the closed
   releases alone, which are in the store: a restart changes neither.

Memory: the previous adapter and the sum may be memory maps; beside them there is one copy of the
tensors that the round moves, and tiles. The norm is accumulated in float64, tile by tile in order.

In `record_distributed` the sum is of units' gradients and nothing is published about single silos'
vectors: κ, ζ̂² and the mean squared norm are NaN. So are they where the plan has no figures, which
a plan without noise has only if it asks for them. Figures by family come with step 0 alone.

Covered: every mode, one release at a time; quarantined sums in a row; the newest norm against
earlier ones. Not covered: poison within these bounds. They are the sum's, so one silo may use what
the others leave of n clips and n bounds, and what the noise may be. Nor a silo that spoils every
other sum, and one that moves the norm by no more than it varies by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt

from dp.config import Mode
from dp.noise.estimate import Estimate
from dp.noise.metrics_block import MetricsBlock
from federation.adapter.encoding import Buffer, adapter_parts, decode_adapter, tiles
from federation.adapter.layout import Layout
from federation.aggregate.optimiser import Optimiser
from federation.aggregate.registry import ALTERNATING
from federation.chain.sums import (
    UPDATE_NORM_SQ,
    VETOES,
    agreement,
    heterogeneity,
    least_noise_variance,
    mean_of_parts,
    mean_of_release,
    move_of_release,
    success_ratios,
    update_norm,
)
from federation.plan.plan import Plan
from secagg.decode import SignedVector, split_sum
from secagg.descriptor import EPISODES, SUCCESSES, Descriptor
from secagg.prg import Vector
from server.errors import QuarantinedSumError, RunError
from server.figures import RoundFigures

__all__ = [
    "Aggregated",
    "AggregatedGroups",
    "GroupSum",
    "aggregate",
    "aggregate_groups",
    "norm_ratio",
    "require_possible",
    "require_usable",
]

NOISE_TAIL = 12.0
"""r: how far noise may reach, in standard deviations of the sum's.

A discrete Gaussian's moment generating function is at most the continuous one's: e^(u²σ²/2) times
Σ_k e^(−(k − uσ²)²/2σ²) / Σ_k e^(−k²/2σ²), and of all shifts of the integers the integers themselves
have the largest sum (by Poisson's summation its Fourier coefficients are positive). So a sum of n
shares is subgaussian with s² = n·σ², and

    P(X ≥ r·s) ≤ e^(−r²/2)             one figure, at each of its ends (Chernoff)
    P(‖X‖ ≥ (√d + r)·s) ≤ e^(−r²/2)    the vector (Hsu, Kakade and Zhang, "A tail inequality for
                                       quadratic forms of subgaussian random vectors", Electronic
                                       Communications in Probability 17, 2012, theorem 2.1)

With r = 12 a bound refuses an honest sum with a probability of at most 5.4e-32."""
SUMMED: Final = frozenset({"aggregated", "quarantined"})
"""Outcomes of releases that had a sum; the others say nothing of the silos."""
LEAST_EARLIER: Final = 3
"""Fewer earlier norms have no median worth comparing with."""
_UNKNOWN = Estimate(mean=math.nan, standard_error=math.nan)


@dataclass(frozen=True, kw_only=True, slots=True)
class AggregatedGroups:
    """What the sums of a release's groups yield."""

    adapter: tuple[Buffer, ...]
    """Published bytes of the next global adapter, in parts that follow each other."""
    sums: tuple[memoryview, ...]
    """The integer sums in order of part, as every silo verifies them: views of the totals."""
    update_norm: float
    """L2 norm of the combined mean, the noise included."""
    success: Mapping[str, Estimate]
    """Family to success ratio and its standard error."""
    vetoes: Estimate = _UNKNOWN
    """Of all silos together; NaN where the plan asks for none."""

    def note_in(self, figures: RoundFigures) -> None:
        """Put the sums' figures into those of their step."""
        figures.success = {
            family: (ratio.mean, ratio.standard_error) for family, ratio in self.success.items()
        }
        figures.update_norm = self.update_norm
        figures.update_norm_error = math.nan
        figures.vetoes, figures.vetoes_error = self.vetoes


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregated:
    """What one released sum yields."""

    adapter: tuple[Buffer, ...]
    """Published bytes of the next global adapter, in parts that follow each other."""
    sum_bytes: memoryview
    """The integer sum, delta then metrics block, as every silo verifies it: a view of the total."""
    descriptor_sha256: bytes
    update_norm: float
    """L2 norm of the mean delta or gradient; includes the noise, not the server optimiser."""
    update_norm_error: float
    """Standard error that the noise gives it; so for each ``_error`` below."""
    kappa: float
    """Agreement of the silos; NaN below noise, without figures and for sums of gradients, like the
    next four."""
    kappa_error: float
    zeta_sq: float
    """Spread of the silos' moves; NaN below noise."""
    zeta_sq_error: float
    silo_norm_sq: float
    """Mean of the silos' squared norms, from the metrics block; NaN below noise."""
    silo_norm_sq_error: float
    success: Mapping[str, Estimate] = field(default_factory=dict)
    """Family to success ratio and its standard error; empty after a round's first step, and where
    the plan has no figures."""
    vetoes: Estimate = _UNKNOWN
    """As in ``AggregatedGroups``."""

    def note_in(self, figures: RoundFigures) -> None:
        """Put the sum's figures into those of its step."""
        figures.success = {
            family: (ratio.mean, ratio.standard_error) for family, ratio in self.success.items()
        }
        figures.update_norm = self.update_norm
        figures.update_norm_error = self.update_norm_error
        figures.agreement = self.kappa
        figures.agreement_error = self.kappa_error
        figures.heterogeneity = self.zeta_sq
        figures.heterogeneity_error = self.zeta_sq_error
        figures.silo_norm_sq = self.silo_norm_sq
        figures.silo_norm_sq_error = self.silo_norm_sq_error
        figures.vetoes, figures.vetoes_error = self.vetoes


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSum:
    """The sum of one group of a release, found possible."""

    total: Vector
    """The unmasked sum modulo 2^32, uint32, delta then metrics block."""
    descriptor: Descriptor
    """What it was summed under."""
    survivors: tuple[str, ...]
    """Who is in it."""


def require_possible(total: Vector, descriptor: Descriptor, survivors: tuple[str, ...]) -> GroupSum:
    """A group's sum that honest silos can have made.

    Raises:
        QuarantinedSumError: they cannot.
    """
    decoded, count = split_sum(total, descriptor), len(survivors)
    _require_possible(math.sqrt(_squared_norm(decoded.delta)), descriptor, count)
    layout, figures = descriptor.metrics, decoded.metrics.astype(np.int64)
    block = MetricsBlock(names=layout.names, bounds=layout.bounds, grid=layout.grid)
    _require_possible_figures(block, figures, count, layout.sigma * math.sqrt(count))
    return GroupSum(total=total, descriptor=descriptor, survivors=survivors)


def aggregate_groups(
    *, plan: Plan, previous: Buffer, sums: Sequence[GroupSum], optimiser: Optimiser
) -> AggregatedGroups:
    """Apply the sums of a release's groups, in order of part; otherwise as ``aggregate``.

    Of figures there is success by family, over all groups whose blocks have it, the vetoes of all
    silos, and the norm of the combined mean. Its standard error is NaN, as are the figures that
    compare silos: a median of groups tells nothing of the spread within them.

    Raises:
        OptimiserStateError: the optimiser has not seen the release before this one.
        UpdateError: the update is not finite, or the sums are too few.
        AdapterError: the previous adapter's bytes are not one.
    """
    deltas = [(split_sum(each.total, each.descriptor).delta, len(each.survivors)) for each in sums]
    tensors = decode_adapter(previous, max_bytes=len(previous))
    place = sums[0].descriptor.identity
    mean = mean_of_parts(plan, deltas)
    updated = plan.aggregator(Layout.from_tensors(tensors)).apply(
        tensors,
        move_of_release(plan, optimiser, deltas, round_number=place.round, step=place.step),
        place.round,
        last_step=plan.is_last_step(place.step),
    )
    figures = _added(sums)
    norm_sq = 0.0
    for tile in tiles(deltas[0][0]):
        norm_sq += float(np.sum(mean[tile] ** 2))
    return AggregatedGroups(
        adapter=adapter_parts(updated),
        # The centred lift changes no bit: the ring's bytes are the signed integers' bytes.
        sums=tuple(each.total.data.cast("B").toreadonly() for each in sums),
        update_norm=math.sqrt(norm_sq),
        success=success_ratios(figures),
        vetoes=_mean_of(figures.get(VETOES), sum(len(each.survivors) for each in sums)),
    )


def _mean_of(total: Estimate | None, silos: int) -> Estimate:
    if total is None:
        return _UNKNOWN
    return Estimate(mean=total.mean / silos, standard_error=total.standard_error / silos)


def _added(sums: Sequence[GroupSum]) -> dict[str, Estimate]:
    """Figures of all groups together; a group whose block lacks one adds nothing to it.

    Estimates are means over silos: times the survivors they add up, and so do their variances.
    """
    added: dict[str, Estimate] = {}
    for each in sums:
        layout, count = each.descriptor.metrics, len(each.survivors)
        block = MetricsBlock(names=layout.names, bounds=layout.bounds, grid=layout.grid)
        figures = split_sum(each.total, each.descriptor).metrics.astype(np.int64)
        decoded = block.decode(figures, count, layout.sigma * math.sqrt(count))
        for name, estimate in decoded.items():
            so_far = added.get(name, Estimate(mean=0.0, standard_error=0.0))
            added[name] = Estimate(
                mean=so_far.mean + count * estimate.mean,
                standard_error=math.hypot(so_far.standard_error, count * estimate.standard_error),
            )
    return added


def aggregate(
    *,
    plan: Plan,
    previous: Buffer,
    total: Vector,
    descriptor: Descriptor,
    survivors: tuple[str, ...],
    optimiser: Optimiser,
) -> Aggregated:
    """Apply one sum.

    ``previous`` is the published adapter that the deltas start from, ``total`` the unmasked sum
    modulo 2^32, uint32, delta then metrics block, summed under ``descriptor``. The optimiser is the
    run's, as the release before this one left it. It moves on; applying the same release again is
    allowed and gives the same bytes.

    Raises:
        OptimiserStateError: the optimiser has not seen the release before this one.
        QuarantinedSumError: honest silos cannot have made this sum.
        UpdateError: the update is not finite.
        AdapterError: the previous adapter's bytes are not one.
    """
    decoded = split_sum(total, descriptor)
    count = len(survivors)
    sum_sq = _squared_norm(decoded.delta)
    _require_possible(math.sqrt(sum_sq), descriptor, count)
    layout, figures = descriptor.metrics, decoded.metrics.astype(np.int64)
    block = MetricsBlock(names=layout.names, bounds=layout.bounds, grid=layout.grid)
    metrics_sigma = layout.sigma * math.sqrt(count)
    _require_possible_figures(block, figures, count, metrics_sigma)
    estimates = block.decode(figures, count, metrics_sigma)
    mean = mean_of_release(plan, decoded.delta, count)
    mean_sq = sum_sq / mean.divisor**2
    noise_energy = descriptor.dimension * count * (descriptor.noise_sigma / mean.divisor) ** 2
    tensors = decode_adapter(previous, max_bytes=len(previous))
    place = descriptor.identity
    updated = plan.aggregator(Layout.from_tensors(tensors)).apply(
        tensors,
        optimiser.move(
            mean,
            round_number=place.round,
            step=place.step,
            noise_variance=least_noise_variance(plan, count),
        ),
        place.round,
        last_step=plan.is_last_step(place.step),
    )
    d = descriptor.dimension
    norm = update_norm(mean_sq, noise_energy, dimension=d)
    gradients = plan.spec.mode is Mode.RECORD_DISTRIBUTED
    norm_sq = kappa = zeta_sq = _UNKNOWN
    if plan.has_figures and not gradients:
        norm_sq = estimates[UPDATE_NORM_SQ]
        kappa = agreement(mean_sq, noise_energy, norm_sq, dimension=d)
        zeta_sq = heterogeneity(mean_sq, noise_energy, norm_sq, dimension=d)
    return Aggregated(
        adapter=adapter_parts(updated),
        # The centred lift changes no bit: the ring's bytes are the signed integers' bytes.
        sum_bytes=total.data.cast("B").toreadonly(),
        descriptor_sha256=descriptor.sha256,
        update_norm=norm.mean,
        update_norm_error=norm.standard_error,
        kappa=kappa.reportable,
        kappa_error=kappa.standard_error,
        zeta_sq=zeta_sq.reportable,
        zeta_sq_error=zeta_sq.standard_error,
        silo_norm_sq=norm_sq.reportable,
        silo_norm_sq_error=norm_sq.standard_error,
        success={} if place.step else success_ratios(estimates),
        vetoes=estimates.get(VETOES, _UNKNOWN),
    )


def require_usable(finished: Sequence[RoundFigures], plan: Plan) -> None:
    """End a run whose last sums, as many as its plan says, were all quarantined.

    ``finished`` are its closed releases, oldest first.

    Raises:
        RunError: There are as many; the text says what to do.
    """
    summed = [done.outcome for done in finished if done.outcome in SUMMED]
    in_a_row = list(takewhile("quarantined".__eq__, reversed(summed)))
    if len(in_a_row) >= plan.rounds.max_quarantined:
        raise RunError(
            f"{len(in_a_row)} sums in a row were not applied (rounds.max_quarantined), as honest "
            "silos cannot have made them. Which silo spoils them cannot be seen: ask the sites, "
            "leave out those that cannot explain it (chorale silo suspend), and start a new run "
            "from the last adapter, in which chorale run bisect finds it under noise: "
            "docs/operations/ChoraleSumQuarantined.md"
        )


def norm_ratio(finished: Sequence[RoundFigures], plan: Plan) -> float:
    """‖Δ̄‖ of the newest sum over the median of the run's earlier ones; noise is in all of them.

    ``finished`` are its closed releases, oldest first; the plan says whether the same factors are
    trained in each round. NaN before a fourth sum of the same factors, and where the median is
    zero.
    """
    sums = [done for done in finished if done.outcome == "aggregated"]
    if not sums:
        return math.nan
    newest, period = sums[-1], 2 if plan.aggregation.method in ALTERNATING else 1
    earlier = [done.update_norm for done in sums[:-1] if (newest.round - done.round) % period == 0]
    usual = median(earlier) if len(earlier) >= LEAST_EARLIER else 0.0
    return newest.update_norm / usual if usual > 0.0 else math.nan


def _squared_norm(delta_sum: SignedVector) -> float:
    """Σ q² in grid units: float64 partial sums of tiles, added in the order of the tiles."""
    total = 0.0
    for tile in tiles(delta_sum):
        total += float(np.sum(delta_sum[tile].astype(np.float64) ** 2))
    return total


def _require_possible(norm: float, descriptor: Descriptor, count: int) -> None:
    sigma = descriptor.noise_sigma * math.sqrt(count)
    noise = sigma * (math.sqrt(descriptor.dimension) + NOISE_TAIL)
    clip = descriptor.max_units * descriptor.vector_clip * descriptor.scale
    # One grid unit for the rounding of this very arithmetic.
    bound = count * clip + noise + 1.0
    if norm > bound:
        raise QuarantinedSumError(
            f"the sum's norm is {norm:.4g} grid units where {count} clipped silos reach at most "
            f"{bound:.4g}: it is not applied"
        )


def _require_possible_figures(
    block: MetricsBlock, figures: npt.NDArray[np.int64], count: int, sigma: float
) -> None:
    most, tail = count * block.scale, NOISE_TAIL * sigma
    found = dict(zip(block.names, figures.tolist(), strict=True))
    for name, figure in found.items():
        if not -tail <= figure <= most + tail:
            raise QuarantinedSumError(
                f"the sum's {name} is outside {-tail:.4g} to {most + tail:.4g} grid units, which "
                f"{count} silos and their noise reach: it is not applied"
            )
    for name, successes in found.items():
        if not name.startswith(SUCCESSES):
            continue
        episodes = found[EPISODES + name.removeprefix(SUCCESSES)]
        # Both have one bound and one grid, so each silo's encoded successes are at most its
        # episodes; the noises of the two are independent.
        if successes - episodes > math.sqrt(2.0) * tail:
            raise QuarantinedSumError(
                f"the sum's {name} exceeds its episodes by more than {math.sqrt(2.0) * tail:.4g} "
                "grid units, which noise alone reaches: it is not applied"
            )
