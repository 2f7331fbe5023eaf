"""What must hold of a round of several releases: its places, tasks and sums."""

import numpy as np

from federation.chain.task import RoundTask
from tests.kit.server.run_checks import require_chain


def require_sums(world, run_id):
    """Each published sum is, modulo 2^32, what the survivors put in; return the records."""
    records = require_chain(world, run_id)
    released = {
        row.identity.round * 1000 + row.identity.step: row.identity
        for number in {record.round for record in records}
        for row in world.store.aggregations.released(run_id, number)
    }
    for record in records:
        if record.kind != "aggregated":
            continue
        identity = released[record.round * 1000 + record.step]
        put_in = [world.silos[name].encoded[identity] for name in record.survivors]
        total = np.frombuffer(world.context.blobs.get(record.sum_sha256), dtype="<u4")
        np.testing.assert_array_equal(total, np.sum(put_in, axis=0, dtype=np.uint32))
    return records


def places(records):
    return [(record.round, record.step) for record in records]


def tasks(silo):
    return [(told.round, told.step) for told in silo.told if isinstance(told, RoundTask)]
