"""The accountant against two independent libraries, and its refusals."""

from __future__ import annotations

import math
import warnings

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant

from dp.accounting import rdp
from dp.errors import SpecError

with warnings.catch_warnings():
    # The library's own imports warn; what it computes is what is compared.
    warnings.simplefilter("ignore")
    from opacus.accountants.analysis import rdp as opacus_rdp

RATES = (1e-4, 1e-3, 0.01, 0.05, 0.064, 0.1, 0.25, 0.5, 0.9, 0.999)
MULTIPLIERS = (0.5, 0.7, 0.83, 1.0, 1.38, 2.0, 3.07, 8.21, 20.0, 60.0)
STEPS = (1, 30, 300, 2000, 10_000)
SOME_ORDERS = (*range(2, 17), 24, 32, 48, 64, 100, 128, 200, 256, 512, 1024)
"""What the libraries compute in reasonable time; ``GRID`` is compared at every order."""
GRID = [
    (q, z, steps)
    for q in (1e-4, 0.01, 0.064, 0.5, 0.999, 1.0)
    for z in (0.5, 1.0, 3.07, 20.0)
    for steps in (1, 300, 10_000)
]


@pytest.mark.parametrize("q", RATES)
def test_divergences_agree_with_both_libraries_on_five_hundred_points(q):
    """Ten rates, ten multipliers, five numbers of steps."""
    assert len(RATES) * len(MULTIPLIERS) * len(STEPS) == 500
    chosen = [rdp.ORDERS.index(order) for order in SOME_ORDERS]
    for z in MULTIPLIERS:
        per_step = np.asarray(
            opacus_rdp.compute_rdp(q=q, noise_multiplier=z, steps=1, orders=SOME_ORDERS)
        )
        accountant = rdp_privacy_accountant.RdpAccountant(
            orders=list(SOME_ORDERS),
            neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
        )
        event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
        accountant.compose(event, 1)
        # The library shows no other way to its divergences.
        other = np.asarray(accountant._rdp)
        for steps in STEPS:
            ours = rdp.rdp_subsampled(q, z, steps)[chosen]
            # The absolute part is the references' own rounding of ln A where A is close to one.
            for theirs in (per_step * steps, other * steps):
                np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-13 * steps)


@pytest.mark.parametrize(("q", "z", "steps"), GRID)
def test_agrees_with_opacus(q, z, steps):
    ours = rdp.rdp_subsampled(q, z, steps)
    theirs = np.asarray(
        opacus_rdp.compute_rdp(q=q, noise_multiplier=z, steps=steps, orders=rdp.ORDERS)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-13 * steps)
    for delta in (1e-5, 1e-8):
        with warnings.catch_warnings():
            # It warns where the best order is the first or the last, as it may be here.
            warnings.simplefilter("ignore")
            theirs_eps, _ = opacus_rdp.get_privacy_spent(orders=rdp.ORDERS, rdp=ours, delta=delta)
        assert rdp.epsilon(ours, delta) == pytest.approx(max(0.0, theirs_eps), rel=1e-9)


@pytest.mark.parametrize(("q", "z", "steps"), GRID)
def test_agrees_with_dp_accounting(q, z, steps):
    accountant = rdp_privacy_accountant.RdpAccountant(
        orders=list(rdp.ORDERS),
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    )
    event = dp_accounting.GaussianDpEvent(z)
    if q < 1:
        event = dp_accounting.PoissonSampledDpEvent(q, event)
    accountant.compose(event, steps)
    for delta in (1e-5, 1e-8):
        ours = rdp.epsilon(rdp.rdp_subsampled(q, z, steps), delta)
        theirs = accountant.get_epsilon(delta)
        if theirs == 0.0:
            # It also uses δ ≥ total variation there; the one formula stays above, and is tiny.
            assert 0.0 <= ours < 0.02
        else:
            assert ours == pytest.approx(theirs, rel=1e-9)


def test_published_figures():
    """E epochs at rate q are T = E/q steps; the multipliers for ε = 1, 3, 8 to two decimals."""
    for epochs, q, expected in ((10, 0.05, (3.07, 1.38, 0.83)), (40, 0.1, (8.21, 3.15, 1.51))):
        for target, z in zip((1.0, 3.0, 8.0), expected, strict=True):
            steps = round(epochs / q)
            found = rdp.calibrate(target_epsilon=target, delta=1e-5, steps=steps, q=q)
            assert round(found, 2) == z
    assert rdp.epsilon(rdp.rdp_subsampled(0.064, 1.0, 300), 1e-4) == pytest.approx(7.32, abs=0.005)


def test_gaussian_is_exact_for_the_lattice():
    """R(α) of the discrete Gaussian by direct summation: shift invariance at integer orders."""
    z_steps, shift = 4.0, 3
    x = np.arange(-400, 401, dtype=float)
    for index, order in enumerate(rdp.ORDERS[:6]):
        log_p = -((x - shift) ** 2) / (2 * z_steps**2)
        log_q = -(x**2) / (2 * z_steps**2)
        moment = np.exp(order * log_p - (order - 1) * log_q).sum() / np.exp(log_q).sum()
        expected = math.log(moment) / (order - 1)
        assert rdp.rdp_gaussian(z_steps / shift, 1)[index] == pytest.approx(expected, rel=1e-10)


def test_monotone():
    def eps(q, z, steps, delta=1e-5):
        return rdp.epsilon(rdp.rdp_subsampled(q, z, steps), delta)

    for q in (0.01, 0.1, 1.0):
        values = [eps(q, z, 100) for z in (0.6, 1.0, 2.0, 8.0)]
        assert values == sorted(values, reverse=True)
        values = [eps(q, 2.0, steps) for steps in (1, 10, 100, 1000)]
        assert values == sorted(values)
    values = [eps(q, 1.0, 100) for q in (0.0, 0.001, 0.01, 0.1, 0.5, 1.0)]
    assert values == sorted(values)
    values = [eps(0.1, 1.0, 100, delta) for delta in (1e-3, 1e-6, 1e-9)]
    assert values == sorted(values)


def test_sampling_limits():
    assert not rdp.rdp_subsampled(0.0, 1.0, 5).any()
    assert np.array_equal(rdp.rdp_subsampled(1.0, 1.3, 5), rdp.rdp_gaussian(1.3, 5))
    np.testing.assert_allclose(
        rdp.rdp_subsampled(1 - 1e-12, 1.3, 5), rdp.rdp_gaussian(1.3, 5), rtol=1e-8
    )
    # R(2) ≈ q²(e^{1/z²} − 1) keeps its digits however small q is.
    expected = math.log1p(1e-18 * math.expm1(1.0))
    assert rdp.rdp_subsampled(1e-9, 1.0, 1)[0] == pytest.approx(expected, rel=1e-12)


def test_doubt_is_infinite():
    good = rdp.rdp_gaussian(1.0, 1)
    assert math.isfinite(rdp.epsilon(good, 1e-5))
    for index, value in ((0, math.nan), (5, -1e-9), (-1, math.nan)):
        bad = good.copy()
        bad[index] = value
        assert rdp.epsilon(bad, 1e-5) == math.inf
    assert rdp.epsilon(good[:-1], 1e-5) == math.inf
    assert rdp.epsilon(np.full(len(rdp.ORDERS), math.inf), 1e-5) == math.inf
    assert rdp.epsilon(rdp.rdp_gaussian(1e-170, 1), 1e-5) == math.inf
    assert rdp.epsilon(rdp.rdp_subsampled(0.1, 1e-170, 1), 1e-5) == math.inf
    assert rdp.epsilon(np.zeros(len(rdp.ORDERS)), 1e-5) == 0.0


def test_calibration_is_tight_from_above():
    for target, steps, q in ((8.0, 30, 1.0), (0.5, 100, 0.02), (50.0, 10, 1.0)):
        z = rdp.calibrate(target_epsilon=target, delta=1e-5, steps=steps, q=q)
        assert rdp.epsilon(rdp.rdp_subsampled(q, z, steps), 1e-5) <= target
        assert rdp.epsilon(rdp.rdp_subsampled(q, z * 0.999, steps), 1e-5) > target
    with pytest.raises(SpecError, match="no noise reaches"):
        rdp.calibrate(target_epsilon=1e-4, delta=1e-12, steps=1)
    with pytest.raises(SpecError):
        rdp.calibrate(target_epsilon=0.0, delta=1e-5, steps=1)


def test_charged_attempts():
    assert rdp.charged_attempts(30) == 36
    assert rdp.charged_attempts(1) == 2
    assert rdp.charged_attempts(30, 0) == 30
    for arguments in ((0,), (1, -1)):
        with pytest.raises(SpecError):
            rdp.charged_attempts(*arguments)


@pytest.mark.parametrize(
    ("q", "z", "steps"),
    [(-0.1, 1, 1), (1.1, 1, 1), (math.nan, 1, 1), (0.1, 0, 1), (0.1, math.inf, 1), (0.1, 1, -1)],
)
def test_impossible_releases(q, z, steps):
    with pytest.raises(SpecError):
        rdp.rdp_subsampled(q, z, steps)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_impossible_delta(delta):
    with pytest.raises(SpecError):
        rdp.epsilon(rdp.rdp_gaussian(1.0, 1), delta)
