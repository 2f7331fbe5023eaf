"""What the dials set is what is measured: 20 seeds within 2 standard errors, FedAgent's figures."""

import numpy as np
import pytest

from lab.partitions.dealing import Dealt, coverage, hardness, joint, preference
from lab.partitions.dispersion import (
    coverage_dispersion,
    expected_preference,
    expected_quota,
    hardness_dispersion,
    omega_of,
    preference_dispersion,
    sampling_floor,
    type_spread,
    xi_of,
)
from lab.partitions.errors import DialError, UnreachableError
from lab.partitions.quotas import Bounds, quotas
from lab.partitions.streams import Streams
from tests.kit.lab.pools import P0, SIZE, SOLVED, TYPES

N, L = 100, 100
SEEDS = range(20)
FEDAGENT = Bounds(100, 500, 1000)
HALF = Bounds(0, 50, 100)
# Means over 20 seeds (coverage: 200) of an implementation of the paper's text.
PREFERENCE = {0.01: 0.0161, 0.1: 0.0878, 0.5: 0.409, 0.9: 0.732, 0.99: 0.801}
COVERAGE = {1: 0.392, 4: 0.159, 16: 0.0475, 64: 0.0123, 256: 0.0031}
HARDNESS = {1: 0.120, 4: 0.0498, 16: 0.0145, 64: 0.0037, 256: 0.0010}


def prefer(omega, seed, silos=N):
    return preference(TYPES, omega=omega, length=L, silos=silos, rng=Streams(seed))


def harden(xi_hard, seed):
    given = {"length": L, "solved_counts": HALF, "silos": N, "rng": Streams(seed)}
    return hardness(SOLVED, xi_hard=xi_hard, **given)


def require(values, expected, known):
    """Within 2 standard errors of what is expected, and of another 20 seeds' mean."""
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    assert abs(np.mean(values) - expected) <= 2 * error
    # The figure that is known has an error of its own, and is rounded.
    rounding = 0.5 * 10.0 ** -len(str(known).split(".")[1])
    assert abs(np.mean(values) - known) <= 2 * np.sqrt(2) * error + rounding
    return error


@pytest.mark.parametrize("omega", PREFERENCE)
def test_preference_is_formula_and_floor(omega):
    values = [preference_dispersion(prefer(omega, seed), TYPES) for seed in SEEDS]
    expected = expected_preference(P0, omega, L, N)
    error = require(values, expected.value, PREFERENCE[omega])
    assert expected.formula == pytest.approx(omega * (1 - np.square(P0).sum()))
    if omega < 0.1:
        # The formula alone is not what anybody measures.
        assert np.mean(values) - expected.formula > 20 * error


@pytest.mark.parametrize("xi", COVERAGE)
def test_coverage_is_its_formula(xi):
    sizes = [quotas(FEDAGENT, xi, silos=N, total=500 * N, rng=Streams(seed)) for seed in SEEDS]
    assert FEDAGENT.spread(500) == pytest.approx(0.8)
    expected = expected_quota(FEDAGENT, 500, xi, N)
    assert expected.formula == pytest.approx(0.8 / (xi + 1))
    require([np.var(found / 500) for found in sizes], expected.value, COVERAGE[xi])


def test_coverage_deals_the_sizes_that_are_measured():
    dealt = coverage(SIZE, xi=1, sizes=FEDAGENT, silos=N, rng=Streams(0))
    sizes = quotas(FEDAGENT, 1, silos=N, total=500 * N, rng=Streams(0))
    assert list(dealt.sizes) == list(sizes)
    assert coverage_dispersion(dealt) == pytest.approx(np.var(sizes / 500))


@pytest.mark.parametrize("xi_hard", HARDNESS)
def test_hardness_is_its_formula(xi_hard):
    values = [hardness_dispersion(harden(xi_hard, seed), SOLVED) for seed in SEEDS]
    assert HALF.spread(L) == 0.25
    expected = expected_quota(HALF, L, xi_hard, N)
    assert expected.formula == pytest.approx(0.25 / (xi_hard + 1))
    require(values, expected.value, HARDNESS[xi_hard])


@pytest.mark.parametrize("silos", [3, 10])
def test_few_silos_are_measured_against_their_own_mean(silos):
    values = [preference_dispersion(prefer(0.5, seed, silos), TYPES) for seed in range(200)]
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    expected = expected_preference(P0, 0.5, L, silos)
    assert abs(np.mean(values) - expected.value) <= 2 * error
    assert expected.formula + expected.floor - np.mean(values) > 4 * error


def test_a_dial_moves_its_measure_one_way():
    """(D1)."""
    liked = [preference_dispersion(prefer(omega, 0), TYPES) for omega in PREFERENCE]
    assert liked == sorted(liked)
    for bounds, total in ((FEDAGENT, 500 * N), (HALF, 50 * N)):
        spread = [
            np.var(quotas(bounds, xi, silos=N, total=total, rng=Streams(0))) for xi in COVERAGE
        ]
        assert spread == sorted(spread, reverse=True)


def test_a_dial_leaves_the_other_measures_at_their_floor():
    """(D2), where types and solved tasks are independent."""
    types, easy = type_spread(P0), 0.3 * 0.7
    for omega in (0.01, 0.99):
        dealt = prefer(omega, 0)
        assert coverage_dispersion(dealt) == 0
        floor = sampling_floor(easy, dealt.sizes, SIZE).value
        assert hardness_dispersion(dealt, SOLVED) == pytest.approx(floor, rel=0.5)
    for xi in (1, 256):
        dealt = coverage(SIZE, xi=xi, sizes=FEDAGENT, silos=N, rng=Streams(0))
        for found, spread in (
            (preference_dispersion(dealt, TYPES), types),
            (hardness_dispersion(dealt, SOLVED), easy),
        ):
            assert found == pytest.approx(sampling_floor(spread, dealt.sizes, SIZE).value, rel=0.5)
        dealt = harden(xi, 0)
        assert coverage_dispersion(dealt) == 0
        floor = sampling_floor(types, dealt.sizes, SIZE).value
        assert preference_dispersion(dealt, TYPES) == pytest.approx(floor, rel=0.5)


@pytest.mark.parametrize("target", [(0.05, 0.02, 0.01), (0.4, 0.1, 0.1), (0.7, 0.02, 0.15)])
def test_joint_reaches_three_targets_at_once(target):
    """(D4)."""
    sizes, easy = Bounds(20, 50, 80), Bounds(0.0, 0.5, 1.0)
    dials = {
        "omega": omega_of(target[0], P0, 50, N),
        "xi": xi_of(target[1], sizes, 50, N),
        "xi_hard": xi_of(target[2], easy, 1, N),
    }
    given = {"sizes": sizes, "solved_shares": easy, "silos": N, **dials}
    found = np.array(
        [
            [
                preference_dispersion(d, TYPES),
                coverage_dispersion(d),
                hardness_dispersion(d, SOLVED),
            ]
            for d in (joint(TYPES, SOLVED, rng=Streams(seed), **given) for seed in SEEDS)
        ]
    )
    error = found.std(0, ddof=1) / np.sqrt(len(found))
    # Three standard errors of three measures, and 4 % for sizes that differ from their mean.
    assert (np.abs(found.mean(0) - target) <= 3 * error + 0.04 * np.array(target)).all()


def test_a_dial_is_found_for_what_it_reaches_and_the_range_is_told_for_the_rest():
    for omega in PREFERENCE:
        expected = expected_preference(P0, omega, L, N).value
        assert omega_of(expected, P0, L, N) == pytest.approx(omega)
    for xi in COVERAGE:
        assert xi_of(expected_quota(FEDAGENT, 500, xi, N).value, FEDAGENT, 500, N) == (
            pytest.approx(xi)
        )
    spread = type_spread(P0) * 0.99
    for target in (0.0, spread / L, spread, 1.0, float("nan")):
        with pytest.raises(UnreachableError, match=r"between 0\.0081.* and 0\.81"):
            omega_of(target, P0, L, N)
    with pytest.raises(UnreachableError):
        omega_of(0.1, [1.0], L, N)
    for target in (0.0, 0.8, -1.0, float("nan")):
        with pytest.raises(UnreachableError, match=r"between 0 and 0\.792, not"):
            xi_of(target, FEDAGENT, 500, N)
    with pytest.raises(DialError, match="at least 2"):
        xi_of(0.1, FEDAGENT, 500, 1)
    with pytest.raises(DialError, match="add up to 1"):
        omega_of(0.1, [0.5, 0.4], L, N)
    with pytest.raises(DialError, match="more than 0"):
        xi_of(0.1, Bounds(0, 0, 0), 0, N)


def test_the_measures_are_those_of_the_paper_by_hand():
    apart = Dealt(silos=(np.array([0, 1]), np.array([2, 3])))
    assert preference_dispersion(apart, [7, 7, 9, 9]) == 0.5
    assert hardness_dispersion(apart, [True, True, False, False]) == 0.25
    assert coverage_dispersion(apart) == 0
    unlike = Dealt(silos=(np.array([0]), np.array([1, 2, 3])))
    assert coverage_dispersion(unlike) == 0.25
    # Marginals (1, 0) and (2/3, 1/3) are each (1/6, -1/6) from their mean.
    assert preference_dispersion(unlike, [0, 0, 0, 1]) == pytest.approx(2 / 36)
