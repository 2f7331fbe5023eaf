"""Poisson samples: the right distribution, an exact threshold, fresh words from the system only."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp.errors import NoiseSourceError, SpecError
from dp.noise.source import NoiseSource
from dp.steps import units as units_module
from dp.steps.units import UnitId, group_by_unit, poisson_sample, sampled

N = 2000
POPULATION = tuple(UnitId("grid", f"{i:04}") for i in range(N))


def sample(q, population=POPULATION):
    return poisson_sample(population, q, NoiseSource.fresh("unit sample"))


@pytest.mark.parametrize("q", [0.02, 0.1, 0.5, 0.97])
def test_every_unit_is_in_at_the_rate_and_apart_from_the_others(q):
    draws = 400
    inside = np.zeros((draws, N), dtype=bool)
    index = {unit: i for i, unit in enumerate(POPULATION)}
    for row in inside:
        row[[index[unit] for unit in sample(q)]] = True
    spread = math.sqrt(q * (1 - q))
    assert inside.mean() == pytest.approx(q, abs=6 * spread / math.sqrt(draws * N))
    # Sizes are binomial: a fixed batch, or draws that hang together, would spread less or more.
    sizes = inside.sum(axis=1)
    assert sizes.var() == pytest.approx(N * q * (1 - q), rel=6 * math.sqrt(2 / draws))
    # No unit is preferred: the rates of single units follow χ² with one degree of freedom each.
    statistic = ((inside.sum(axis=0) - draws * q) ** 2).sum() / (draws * q * (1 - q))
    assert abs(statistic - N) < 6 * math.sqrt(2 * N)
    # Neighbours in one draw, and the same unit in the next draw, know nothing of each other.
    centred = (inside - q) / spread
    for product in (centred[:, 1:] * centred[:, :-1], centred[1:] * centred[:-1]):
        assert abs(product.mean()) < 6 / math.sqrt(product.size)


@given(q=st.floats(min_value=0.0, max_value=1.0, exclude_min=True))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_the_threshold_is_exact_and_never_above_the_rate(q):
    threshold = math.floor(Fraction(q) * 2**64)
    words = [0, threshold - 1, threshold, threshold + 1, 2**64 - 1]
    words = [word for word in words if 0 <= word < 2**64]
    expected = [word < threshold for word in words]
    assert sampled(np.array(words, dtype=np.uint64), q).tolist() == expected
    assert Fraction(threshold, 2**64) <= Fraction(q)
    assert Fraction(threshold + 1, 2**64) > Fraction(q)


def test_rates_at_the_ends():
    words = np.array([0, 1, 2**63, 2**64 - 1], dtype=np.uint64)
    assert sampled(words, 1.0).tolist() == [True] * 4
    # The largest float below one leaves 2^11 words outside.
    assert sampled(words, math.nextafter(1.0, 0.0)).tolist() == [True, True, True, False]
    assert sampled(words, 2.0**-63).tolist() == [True, True, False, False]
    # Below 2^-64 the rate is rounded down to nothing, never up.
    assert sampled(words, 2.0**-65).tolist() == [False] * 4
    for q in (0.0, -0.1, 1.0000001, math.nan, math.inf):
        with pytest.raises(SpecError):
            sampled(words, q)


def test_words_decide_in_the_order_of_the_population(monkeypatch):
    """With the system's key fixed, the sample is what the keystream says, word for word."""
    monkeypatch.setattr("dp.noise.source.os.urandom", bytes)
    words = np.empty(N, dtype=np.uint64)
    NoiseSource.fresh("same key").fill_uint64(words)
    expected = tuple(unit for unit, word in zip(POPULATION, words, strict=True) if word < 2**60)
    assert sample(2.0**-4) == expected
    assert 50 < len(expected) < 250


def test_samples_are_fresh():
    assert sample(0.5) != sample(0.5)
    source = NoiseSource.fresh("unit sample")
    first = poisson_sample(POPULATION, 0.5, source)
    assert first != poisson_sample(POPULATION, 0.5, source)


def test_a_predictable_source_is_refused():
    class Seeded:
        def fill_uint64(self, out):
            out[:] = 0

        def fill_uint32(self, out):
            out[:] = 0

    class Predictable(NoiseSource):
        pass

    for source in (Seeded(), Predictable.fresh("unit sample")):
        with pytest.raises(NoiseSourceError, match="NoiseSource only"):
            poisson_sample(POPULATION, 0.5, source)


def test_a_forked_child_does_not_repeat_its_parents_sample(monkeypatch):
    source = NoiseSource.fresh("unit sample")
    monkeypatch.setattr("dp.noise.source.os.getpid", lambda: -1)
    with pytest.raises(NoiseSourceError, match="forked"):
        poisson_sample(POPULATION, 0.5, source)


def test_empty_populations_and_double_members():
    assert sample(0.5, ()) == ()
    assert sample(2.0**-60) == ()
    assert sample(1.0) == POPULATION
    twice = (*POPULATION, UnitId("grid", "0007"))
    with pytest.raises(SpecError, match="once") as caught:
        sample(0.5, twice)
    # Units are the silo's own business, also in its errors.
    assert "0007" not in str(caught.value)
    # The same key in another environment is another unit.
    assert len(sample(1.0, (UnitId("a", "1"), UnitId("b", "1")))) == 2


def test_rows_are_grouped_whole_and_in_order():
    rows = [("a", "1", 0), ("b", "1", 1), ("a", "1", 2), ("a", "2", 3), ("b", "1", 4)]
    groups = group_by_unit(iter(rows), lambda row: UnitId(row[0], row[1]))
    assert groups == {
        UnitId("a", "1"): (rows[0], rows[2]),
        UnitId("b", "1"): (rows[1], rows[4]),
        UnitId("a", "2"): (rows[3],),
    }
    assert list(groups) == [UnitId("a", "1"), UnitId("b", "1"), UnitId("a", "2")]
    assert group_by_unit([], lambda row: row) == {}
    assert units_module.UnitId("a", "1") == ("a", "1")
