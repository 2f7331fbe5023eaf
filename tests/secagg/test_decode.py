"""The centred lift is exact at both ends of the ring."""

import numpy as np
import pytest

from secagg.decode import centred_lift, split_sum
from secagg.errors import ParameterError
from tests.kit.secagg.secagg_samples import make_descriptor, make_roster


def test_lift_at_the_bounds():
    integers = np.array([0, 1, -1, 2**31 - 1, -(2**31), 12345, -12345], dtype=np.int64)
    ring = (integers % 2**32).astype("<u4")
    assert np.array_equal(centred_lift(ring).astype(np.int64), integers)


def test_the_ring_sum_is_the_integer_sum_up_to_the_bound():
    # The largest sums that the no-wrap inequality admits, and the first that it does not.
    silos = 4
    for value in (2**29 - 1, -(2**29) + 1):
        ring = np.zeros(1, dtype="<u4")
        for _ in range(silos):
            ring += np.array([value % 2**32], dtype="<u4")
        assert int(centred_lift(ring)[0]) == silos * value
    wrapped = np.array([(silos * 2**29) % 2**32], dtype="<u4")
    assert int(centred_lift(wrapped)[0]) != silos * 2**29


def test_split_parts_delta_and_metrics():
    descriptor = make_descriptor(make_roster(), dimension=3)
    decoded = split_sum(np.array([1, 2, 2**32 - 3, 7, 2**32 - 8], dtype="<u4"), descriptor)
    assert decoded.delta.tolist() == [1, 2, -3]
    assert decoded.metrics.tolist() == [7, -8]
    with pytest.raises(ParameterError):
        split_sum(np.zeros(4, dtype="<u4"), descriptor)
    with pytest.raises(ParameterError):
        centred_lift(np.zeros(4, dtype=np.int32))
