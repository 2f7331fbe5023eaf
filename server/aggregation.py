"""From the unmasked sum to the next adapter and the figures that may be published.

Ordered invariants:

1. The sum's norm must be possible: at most n·C plus a noise tail; otherwise nothing is applied.
2. The mean is over the survivors, unweighted.
3. The update is the plan's aggregation method and nothing else; every silo recomputes it.

Covered: one clipped vector per silo (`none`, `silo`). Not covered: per-step sums of record-level
modes; a norm below the bound that is still poisoned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dp.metrics_block import Estimate, MetricsBlock
from federation.adapter import decode_adapter, encode_adapter
from federation.aggregate.server_step import mean_of_sum
from federation.layout import Layout
from federation.plan import Plan
from federation.sums import (
    UPDATE_NORM_SQ,
    agreement,
    encode_sum,
    heterogeneity,
    success_ratios,
)
from secagg.decode import split_sum
from secagg.descriptor import Descriptor
from server.errors import QuarantinedSumError

__all__ = ["Aggregated", "aggregate"]

NOISE_TAIL = 12.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregated:
    """What one released sum yields."""

    adapter: bytes
    """Published bytes of the next global adapter."""
    sum_bytes: bytes
    """The integer sum, delta then metrics block, as every silo verifies it."""
    descriptor_sha256: bytes
    update_norm: float
    """L2 norm of the mean update, in units of the delta; includes the noise."""
    kappa: float
    zeta_sq: float
    success: Mapping[str, Estimate] = field(default_factory=dict)
    """Family to success ratio and its standard error."""


def aggregate(
    *,
    plan: Plan,
    previous: bytes,
    total: np.ndarray,
    descriptor: Descriptor,
    survivors: tuple[str, ...],
) -> Aggregated:
    """Apply one sum.

    Args:
        plan: The run's plan.
        previous: Published bytes of the adapter the deltas start from.
        total: Unmasked sum modulo 2^32, uint32, delta then metrics block.
        descriptor: What it was summed under.
        survivors: Whose vectors are in it.

    Raises:
        QuarantinedSumError: the sum is larger than honest silos can make it.
        UpdateError: the update is not finite.
    """
    decoded = split_sum(total, descriptor)
    count = len(survivors)
    delta_sum = decoded.delta.astype(np.int64)
    _require_possible(delta_sum, descriptor, count)
    metrics_sum = decoded.metrics.astype(np.int64)
    layout = descriptor.metrics
    estimates = MetricsBlock(names=layout.names, bounds=layout.bounds, grid=layout.grid).decode(
        metrics_sum, count, layout.sigma * math.sqrt(count)
    )
    mean = mean_of_sum(delta_sum, scale=descriptor.scale, count=count)
    mean_sq = float(mean @ mean)
    noise_energy = descriptor.dimension * (descriptor.noise_sigma / descriptor.scale) ** 2 / count
    tensors = decode_adapter(previous, max_bytes=len(previous))
    updated = plan.aggregator(Layout.from_tensors(tensors)).apply(
        tensors, mean, descriptor.identity.round
    )
    norm_sq, d = estimates[UPDATE_NORM_SQ], descriptor.dimension
    return Aggregated(
        adapter=encode_adapter(updated),
        sum_bytes=encode_sum(np.concatenate([delta_sum, metrics_sum])),
        descriptor_sha256=descriptor.sha256,
        update_norm=math.sqrt(mean_sq),
        kappa=agreement(mean_sq, noise_energy, norm_sq, dimension=d).reportable,
        zeta_sq=heterogeneity(mean_sq, noise_energy, norm_sq, dimension=d).reportable,
        success=success_ratios(estimates),
    )


def _require_possible(delta_sum: np.ndarray, descriptor: Descriptor, count: int) -> None:
    norm = math.sqrt(float(np.sum(delta_sum.astype(np.float64) ** 2)))
    noise = descriptor.noise_sigma * math.sqrt(count * descriptor.dimension)
    bound = count * descriptor.vector_clip * descriptor.scale + NOISE_TAIL * max(noise, 1.0)
    if norm > bound:
        raise QuarantinedSumError(
            f"the sum's norm is {norm:.4g} grid units where {count} clipped silos reach at most "
            f"{bound:.4g}: it is not applied"
        )
