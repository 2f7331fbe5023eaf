"""A silo holds two full vectors at most: the delta and the buffer that becomes the upload.

numpy reports to tracemalloc, so the figures are what was allocated. Covered: noise, encoding,
masks, hash, spool and upload of one real session. Not covered: training, and the chain's files.
"""

import tracemalloc

import numpy as np
import pytest

from dp.config import Mode
from tests.kit.silo_agent.session_round import Round

DIMENSION = 3_000_000
VECTOR_BYTES = 4 * DIMENSION
SLACK_BYTES = 5 << 20


@pytest.mark.parametrize("mode", [Mode.NONE, Mode.SILO])
def test_a_session_never_holds_a_third_vector(tmp_path, mode):
    one = Round(tmp_path, mode=mode, dimension=DIMENSION, delta=np.zeros(1, np.float32))
    held = {}

    def upload(_identity, header, spool):
        held["upload"] = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        held["bytes"] = sum(len(chunk) for chunk in spool.chunks(0, 1 << 20))
        held["sending"] = tracemalloc.get_traced_memory()
        one.wire.sent.append(("upload", header))

    one.wire.upload = upload
    one.sum = None
    tracemalloc.start()
    try:
        # As the local work keeps it for another attempt of the round.
        one.delta = np.full(DIMENSION, 1e-3, dtype=np.float32)
        message = one.delivery()
        one.session.handle(message)
    finally:
        tracemalloc.stop()
        one.session.close()
        one.ledger.close()
    assert held["bytes"] == VECTOR_BYTES + 4
    now, peak = held["upload"]
    assert 2 * VECTOR_BYTES < peak < 2 * VECTOR_BYTES + SLACK_BYTES
    # Before the first byte leaves, the vector is on disk alone, and so it stays.
    for size in (now, *held["sending"]):
        assert VECTOR_BYTES < size < VECTOR_BYTES + SLACK_BYTES
