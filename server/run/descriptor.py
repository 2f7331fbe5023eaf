"""Building descriptor D from what everyone already signed or published.

Invariants: nothing in D is the coordinator's choice beyond who is ready and the deadlines; c comes
from the roster, t follows from c and n, the noise from the plan's multipliers and t, n_min, c.

The clips and the scale are those of what is masked (``PrivacySpec.release``): a clipped delta, or
in `record_distributed` a sum of at most B_max clipped gradients. Both clips are C then, because
the ring bound of ``secagg/descriptor.py`` multiplies the vector's clip by B_max itself.

Covered: every mode and method, every step. Not covered: several parts.
"""

from __future__ import annotations

from collections.abc import Mapping

from dp.noise.grid import Grid
from dp.noise.metrics_block import MetricsBlock
from dp.noise.share import metrics_sigma, per_silo_sigma
from federation.adapter.encoding import Buffer, decode_adapter
from federation.adapter.layout import Layout
from federation.chain.sums import metrics_layout
from federation.chain.task import RoundTask
from federation.plan.families import families_of
from federation.plan.plan import Plan
from secagg import digest_tree
from secagg.descriptor import (
    BASE_VERSION,
    HYBRID_VERSION,
    NOISE_DISCRETE_GAUSSIAN,
    NOISE_NONE,
    STEPS,
    SUITES,
    AggregationId,
    Descriptor,
    MetricsLayout,
)
from secagg.parameters import threshold
from secagg.roster import SignedRoster

__all__ = ["build_descriptor"]

MAX_ADAPTER_BYTES = 1 << 30


def build_descriptor(
    *,
    identity: AggregationId,
    plan: Plan,
    plan_sha256: bytes,
    roster: SignedRoster,
    ready: Mapping[str, tuple[str, ...]],
    adapter: Buffer,
    adapter_sha256: bytes,
    now_unix_s: int,
    task: RoundTask | None = None,
) -> Descriptor:
    """D for the silos that reported ready, each with the environment families that it declares.

    The adapter is the published one of the chain's head. Deadlines count from ``now_unix_s``, one
    plan phase each. With the task that the silos were ready for, D is of suite v2 and names it.
    """
    version = BASE_VERSION if task is None else HYBRID_VERSION
    spec = plan.spec
    release = spec.release
    cohort = tuple(sorted(ready))
    colluding = roster.roster.colluding
    t = threshold(len(cohort), colluding)
    n_min = plan.secure_aggregation.n_min
    tensors = decode_adapter(adapter, max_bytes=MAX_ADAPTER_BYTES)
    layout = plan.aggregator(Layout.from_tensors(tensors)).shared_layout(identity.round)
    grid = Grid(clip_l2=release.clip_l2, steps=release.grid, dimension=layout.dimension)
    figures = metrics_layout(plan, ready, t=t, n_min=n_min, filling=families_of(plan))
    block = MetricsBlock.of(figures.names, figures.bounds)
    phase_s = plan.rounds.phase_deadline_s
    return Descriptor(
        version=version,
        suite=SUITES[version],
        identity=identity,
        roster_sha256=roster.roster.sha256,
        roster_epoch=roster.roster.epoch,
        cohort=cohort,
        colluding=colluding,
        threshold=t,
        n_min=n_min,
        plan_sha256=plan_sha256,
        base_model_sha256=bytes.fromhex(plan.model.base_sha256),
        adapter_sha256=adapter_sha256,
        layout_sha256=layout.sha256,
        dimension=layout.dimension,
        unit_clip=release.clip_l2,
        vector_clip=release.clip_l2,
        max_units=release.max_units,
        scale=grid.scale,
        metrics=MetricsLayout(
            names=block.names,
            bounds=block.bounds,
            grid=block.grid,
            sigma=metrics_sigma(
                spec, block, tries=plan.evolve.tries_per_task, t=t, n_min=n_min, c=colluding
            ),
        ),
        ring_bits=plan.secure_aggregation.ring_bits,
        noise_mechanism=NOISE_DISCRETE_GAUSSIAN if release.noise_multiplier > 0 else NOISE_NONE,
        noise_sigma=per_silo_sigma(release.noise_multiplier, release.grid, t, n_min, colluding),
        privacy_spec_sha256=spec.sha256(),
        deadlines_unix_s=tuple(now_unix_s + phase_s * (k + 1) for k in range(len(STEPS))),
        families=() if task is None else families_of(plan),
        task_sha256=b"" if task is None else task.sha256,
        digest_id=0 if task is None else digest_tree.SHA256,
    )
