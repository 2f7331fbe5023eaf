"""What must hold of a finished run: its chain, and its sums to the bit."""

from itertools import pairwise

import numpy as np

from federation.adapter.encoding import decode_adapter
from federation.chain.record import verify_chain
from federation.chain.verify import verify_update
from secagg.suite import verification_key
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY
from tests.kit.server import world as sw


def adapter_of(world, record):
    return decode_adapter(world.context.blobs.get(record.adapter_sha256), max_bytes=1 << 20)


def require_exact(world, survivors, rounds=1):
    found = adapter_of(world, world.driver.head)
    for name, expected in sw.expected_adapter(survivors, rounds).items():
        np.testing.assert_array_equal(found[name], expected)


def require_chain(world, run_id):
    """The records link up, are signed, and each adapter follows from its published sum."""
    records, plan = world.store.records.list(run_id), world.driver.plan
    verify_chain(records, verification_key(COORDINATOR_KEY), sums_per_round=plan.sums_per_round)
    blobs, optimiser = world.context.blobs, plan.optimiser()
    for before, record in pairwise(records):
        if record.kind == "skipped":
            optimiser.skip(round_number=record.round, step=record.step)
        else:
            verify_update(
                plan=plan,
                record=record,
                previous=blobs.get(before.adapter_sha256),
                totals=[
                    np.frombuffer(blobs.get(part.sum_sha256), dtype="<i4") for part in record.parts
                ],
                published=blobs.get(record.adapter_sha256),
                optimiser=optimiser,
            )
    return records
