"""Published sums of groups, held against the combined update that silos adopted.

Ordered checks of a release before it is told: each of its sums is in the storage of published bytes
under the digest that the signed record has; its descriptor is the one that the record has, and has
its length. A release that fails one is named, with the reason, and told nothing of.

Covered: the above; releases that a rollback took back are left out by the caller. Not covered: what
the figures mean (``federation/chain/group_credit.py``); whether the adapter follows from the sums,
which every silo checks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from federation.aggregate.groups import RobustMean
from federation.chain.group_credit import GroupAlong, GroupRelease, along_update
from federation.chain.record import AdapterRecord, RecordPart
from federation.chain.sums import mean_of_release
from federation.errors import UpdateError
from federation.plan.plan import Plan
from secagg.decode import split_sum
from secagg.descriptor import Descriptor
from secagg.errors import ParameterError
from server.errors import BlobError
from server.store.aggregations import AggregationRow
from server.store.blobs.storage import BlobStorage

__all__ = ["groups_of_run"]


def groups_of_run(
    plan: Plan,
    records: Sequence[AdapterRecord],
    rounds: Collection[int],
    aggregations: Sequence[AggregationRow],
    blobs: BlobStorage,
) -> tuple[tuple[GroupRelease, ...], dict[int, str]]:
    """The groups of each of these rounds, and why one is not told; empty without groups.

    Args:
        plan: The run's.
        records: The run's chain, verified.
        rounds: Those that were applied and not taken back.
        aggregations: All of the run.
        blobs: Published bytes.
    """
    if plan.aggregation.groups is None:
        return (), {}
    descriptors = {
        row.descriptor.descriptor.sha256: row.descriptor.descriptor for row in aggregations
    }
    releases, untold = [], {}
    for record in records:
        if record.kind != "aggregated" or record.round not in rounds:
            continue
        try:
            releases.append(_release(plan, record, descriptors, blobs))
        except (BlobError, ParameterError, UpdateError) as error:
            untold[record.round] = str(error)
    return tuple(releases), untold


def _release(
    plan: Plan,
    record: AdapterRecord,
    descriptors: Mapping[bytes, Descriptor],
    blobs: BlobStorage,
) -> GroupRelease:
    """The groups of one release.

    Raises:
        BlobError: A published sum is not there, or is damaged.
        ParameterError: It has not its descriptor's length.
        UpdateError: There is no such descriptor, or the groups tell nothing.
    """
    groups = plan.aggregation.groups
    if groups is None:
        raise UpdateError("the plan has no groups")
    means, variances = [], []
    for part in record.parts:
        descriptor = _descriptor_of(part, descriptors)
        total = np.frombuffer(blobs.get(part.sum_sha256), dtype="<u4")
        count = len(part.survivors)
        mean = mean_of_release(plan, split_sum(total, descriptor).delta, count)
        means.append(mean)
        # The shares of K silos, divided as the sum is.
        variances.append(count * (descriptor.noise_sigma / mean.divisor) ** 2)
    update = RobustMean(means, rule=groups.rule, byzantine=groups.byzantine)
    along = along_update(update, variances)
    if any(math.isnan(each.mean) for each in along):
        raise UpdateError("nothing moved")
    return GroupRelease(
        round=record.round,
        groups=tuple(
            GroupAlong(part=part.part, silos=part.survivors, along=each)
            for part, each in zip(record.parts, along, strict=True)
        ),
    )


def _descriptor_of(part: RecordPart, descriptors: Mapping[bytes, Descriptor]) -> Descriptor:
    found = descriptors.get(part.descriptor_sha256)
    if found is None:
        raise UpdateError(f"the descriptor of part {part.part} is not kept here")
    return found
