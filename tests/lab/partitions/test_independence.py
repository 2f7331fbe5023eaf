import numpy as np
import pytest

from lab.partitions.errors import PoolError
from lab.partitions.independence import independence
from tests.kit.lab.pools import SOLVED, TYPES


def test_chi_squared_is_pearsons_without_a_correction():
    types = [0] * 40 + [1] * 60
    solved = [True] * 30 + [False] * 10 + [True] * 20 + [False] * 40
    found = independence(types, solved)
    # n(ad - bc)² over the product of the margins.
    assert found.chi2 == pytest.approx(100 * (30 * 40 - 10 * 20) ** 2 / (40 * 60 * 50 * 50))
    assert (found.degrees, found.is_reliable) == (1, True)
    assert found.p_value < 1e-4
    assert found.deviation == pytest.approx(0.25)


def test_a_pool_that_is_even_passes_and_one_whose_types_differ_does_not():
    even = independence(TYPES, SOLVED)
    assert even.p_value > 0.9
    assert even.deviation < 0.01
    rng = np.random.default_rng(0)
    rates = np.array([0.2, 0.25, 0.3, 0.35, 0.4, 0.3])
    assert independence(TYPES, rng.random(len(TYPES)) < rates[TYPES]).p_value < 1e-6


def test_p_values_are_uniform_where_nothing_depends():
    rng = np.random.default_rng(1)
    found = [independence(TYPES, rng.random(len(TYPES)) < 0.3).p_value for _ in range(200)]
    assert 0.02 <= np.mean(np.array(found) < 0.1) <= 0.18


def test_what_cannot_be_tested_is_refused():
    assert not independence([0, 0, 1, 1], [True, False, True, False]).is_reliable
    for types, solved in (
        ([0, 0], [True, False]),
        ([0, 1], [True, True]),
        ([0, 1], [False, False]),
    ):
        with pytest.raises(PoolError, match="two of each"):
            independence(types, solved)
    with pytest.raises(PoolError, match="not of the same tasks"):
        independence([0, 1, 2], [True, False])
