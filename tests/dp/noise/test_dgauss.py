"""The discrete Gaussian sampler against its exact probabilities, with ties forced.

Failure here means: a wrong pmf at small σ, a float decision that the rationals contradict, or a
tie that is not settled by further bits.
"""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dp.errors import SpecError
from dp.noise import dgauss
from dp.noise.source import NoiseSource

TOP = 2**64 - 1


class ReplaySource:
    """A deterministic source: scripted words first, then a seeded generator."""

    def __init__(self, seed=0, words=()):
        self._script = list(words)
        self._philox = np.random.Philox(seed)
        self.drawn = 0

    def fill_uint64(self, out):
        self.drawn += out.size
        scripted = self._script[: out.size]
        del self._script[: out.size]
        out[: len(scripted)] = scripted
        out[len(scripted) :] = self._philox.random_raw(out.size - len(scripted))

    def fill_uint32(self, out):
        raise NotImplementedError


def chi_square_p(samples, sigma_sq):
    """p-value of the samples under the exact pmf, tails pooled to at least 10 expected."""
    reach = int(12 * math.sqrt(sigma_sq)) + 2
    support = np.arange(-reach, reach + 1)
    weight = np.exp(-(support.astype(float) ** 2) / (2 * sigma_sq))
    expected = weight / weight.sum() * samples.size
    edge = support[expected >= 10].max()
    inner = np.abs(support) < edge
    counts = np.bincount(np.clip(samples, -edge, edge) + edge, minlength=2 * edge + 1)
    tail = expected[support >= edge].sum()
    wanted = np.concatenate([[tail], expected[inner], [tail]])
    return stats.chisquare(counts, wanted * (counts.sum() / wanted.sum())).pvalue


@pytest.mark.parametrize("sigma_sq", [1, 2, 9, 100])
def test_chi_square_against_exact_pmf(sigma_sq):
    samples = dgauss.sample(400_000, math.sqrt(sigma_sq), ReplaySource(seed=sigma_sq))
    assert chi_square_p(samples, sigma_sq) > 1e-3


@pytest.mark.parametrize("sigma_sq", [0.1, 0.3, 1.9, 2.1, 4000])
def test_chi_square_around_changes_of_t(sigma_sq):
    samples = dgauss.sample(200_000, math.sqrt(sigma_sq), ReplaySource(seed=5))
    assert chi_square_p(samples, sigma_sq) > 1e-3


def test_chi_square_notices_wrong_samplers():
    rng = np.random.default_rng(1)
    assert chi_square_p(np.rint(rng.normal(0, 1, 400_000)).astype(np.int64), 1) < 1e-9
    narrow = dgauss.sample(400_000, 9.8, ReplaySource(seed=3))
    assert chi_square_p(narrow, 100) < 1e-9
    doubled_zero = dgauss.sample(400_000, 10.0, ReplaySource(seed=4))
    doubled_zero[::2000] = 0
    doubled_zero[1::100] = 0
    assert chi_square_p(doubled_zero, 100) < 1e-9


@pytest.mark.parametrize("sigma", [2.0**10, 741455.2, 2.0**20, 1.41 * 2**17, 3.0e9])
def test_moments_at_large_sigma(sigma):
    samples = dgauss.sample(200_000, sigma, NoiseSource.fresh("test")).astype(float) / sigma
    root = math.sqrt(samples.size)
    assert abs(samples.mean()) < 6 / root
    assert abs(samples.var() - 1) < 6 * math.sqrt(2) / root
    assert abs((samples**4).mean() - 3) < 6 * math.sqrt(96) / root
    low_bits = np.bincount(np.rint(samples * sigma).astype(np.int64) & 7, minlength=8)
    assert stats.chisquare(low_bits).pvalue > 1e-7


@pytest.mark.parametrize("sigma", [1.0, 3.3, 100.0, 2.0**20 * 0.9])
def test_rational_path_agrees_with_float_path(monkeypatch, sigma):
    fast = dgauss.sample(1500, sigma, ReplaySource(seed=11))
    redone = []
    below_exp = dgauss._LazyUniform.below_exp

    def counted(self, x):
        redone.append(x)
        return below_exp(self, x)

    monkeypatch.setattr(dgauss._LazyUniform, "below_exp", counted)
    monkeypatch.setattr(dgauss, "TIE_MARGIN", 2.0)
    exact = dgauss.sample(1500, sigma, ReplaySource(seed=11))
    assert np.array_equal(fast, exact)
    assert len(redone) > 2 * 1500


def scaled_exp(x, bits):
    """⌊2^bits · e^{−x}⌋ from an independent implementation."""
    with mpmath.workprec(bits + 200):
        return int(mpmath.floor(mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator) * 2**bits))


@given(
    st.fractions(min_value=0, max_value=2000, max_denominator=10**30),
    st.sampled_from([64, 128, 320]),
)
@settings(deadline=None, max_examples=150, derandomize=True)
def test_exp_bounds_enclose(x, bits):
    low, high = dgauss.exp_bounds(x, bits)
    exact = scaled_exp(x, bits)
    # e^{−0} is the only integer case.
    assert low <= exact
    assert high >= exact + (x != 0)
    assert high - low <= 2


@pytest.mark.parametrize(
    ("remainder", "quotient"), [(0, 0), (3, 0), (7, 0), (1, 1), (5, 1), (0, 2), (7, 3)]
)
def test_forced_tie_in_acceptance_is_settled_by_further_bits(remainder, quotient):
    proposal = dgauss._Proposal.nearest(8.0)
    x = proposal.exponent(remainder, quotient)
    assert x == Fraction(remainder, 8) + (remainder + 8 * quotient - Fraction(8)) ** 2 / 128
    prefix, further = divmod(scaled_exp(x, 128), 2**64)
    # W in the middle of the interval in which V = quotient.
    second = int(2**64 * math.exp(-(quotient + 0.5)))
    first = remainder | (1 << 63 if remainder else 0)
    expected = -(remainder + 8 * quotient) if remainder else 8 * quotient

    def draw(extension):
        source = ReplaySource(words=[first, second, prefix, extension])
        return dgauss._draw_tile(proposal, 1, source).tolist(), source.drawn

    assert draw(further - 1) == ([expected], 4)
    assert draw(further + 1) == ([], 4)
    assert draw(0) == ([expected], 4)
    assert draw(TOP) == ([], 4)


@pytest.mark.parametrize("boundary", [1, 2, 10, 20, 43])
def test_forced_tie_in_the_geometric_part(boundary):
    prefix, further = divmod(scaled_exp(Fraction(boundary), 128), 2**64)
    prefixes = np.array([prefix], dtype=np.uint64)
    assert dgauss._geometric(prefixes, ReplaySource(words=[further - 1]))[0] == boundary
    assert dgauss._geometric(prefixes, ReplaySource(words=[further + 1]))[0] == boundary - 1


def test_geometric_tail_is_not_cut_at_64_bits():
    zero = np.array([0], dtype=np.uint64)
    assert dgauss._geometric(zero, ReplaySource(words=[TOP]))[0] == 44
    assert dgauss._geometric(zero, ReplaySource(words=[1 << 63]))[0] == 45
    assert dgauss._geometric(zero, ReplaySource(words=[0, 1 << 63]))[0] == 89
    top = np.array([TOP], dtype=np.uint64)
    assert dgauss._geometric(top, ReplaySource(words=[TOP]))[0] == 0


def test_minus_zero_is_rejected():
    proposal = dgauss._Proposal.nearest(1.0)
    second = 1 << 63
    assert dgauss._draw_tile(proposal, 1, ReplaySource(words=[0, second, 0])).tolist() == [0]
    assert dgauss._draw_tile(proposal, 1, ReplaySource(words=[1 << 63, second, 0])).tolist() == []


def test_independent_across_draws_and_sources():
    d = 40_000
    source = NoiseSource.fresh("one")
    draws = [
        dgauss.sample(d, 2.0**20, source),
        dgauss.sample(d, 2.0**20, source),
        dgauss.sample(d, 2.0**20, NoiseSource.fresh("two")),
    ]
    correlation = np.corrcoef(draws) - np.eye(3)
    assert np.abs(correlation).max() < 6 / math.sqrt(d)
    lagged = np.corrcoef(draws[0][1:], draws[0][:-1])[0, 1]
    assert abs(lagged) < 6 / math.sqrt(d)


def test_sizes_and_ranges():
    assert dgauss.sample(0, 4.0, ReplaySource()).size == 0
    assert dgauss.sample(1, 4.0, ReplaySource()).dtype == np.int64
    for sigma in (0.0, -1.0, math.nan, math.inf, 2.0**41, 2.0**-21):
        with pytest.raises(SpecError):
            dgauss.sample(1, sigma, ReplaySource())
    with pytest.raises(SpecError):
        dgauss.sample(-1, 1.0, ReplaySource())
