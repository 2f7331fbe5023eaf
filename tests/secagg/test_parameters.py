"""t follows from n and c, as tabled in the protocol's specification."""

import pytest

from secagg.errors import ParameterError
from secagg.parameters import Parameters, threshold


@pytest.mark.parametrize(
    ("n", "c", "t"),
    [(3, 1, 3), (4, 1, 3), (5, 1, 4), (10, 3, 7), (20, 6, 14), (50, 16, 34), (200, 66, 134)],
)
def test_threshold_table(n, c, t):
    assert threshold(n, c) == t


def test_threshold_bounds_hold_everywhere():
    for n in range(3, 201):
        for c in range(1, n):
            try:
                t = threshold(n, c)
            except ParameterError:
                assert c + 2 > n
                continue
            assert 2 * t > n + c
            assert t - c >= 2
            # No smaller t would do.
            assert 2 * (t - 1) <= n + c or t - 1 - c < 2


@pytest.mark.parametrize(("n", "c"), [(2, 1), (201, 1), (5, 0), (5, -1), (3, 2), (5, 4)])
def test_impossible_sizes_are_refused(n, c):
    with pytest.raises(ParameterError):
        threshold(n, c)


def test_derived_sizes():
    parameters = Parameters(n=10, c=3, n_min=8)
    assert (parameters.t, parameters.least_survivors, parameters.drops) == (7, 8, 2)
    with pytest.raises(ParameterError):
        Parameters(n=10, c=3, n_min=11)
