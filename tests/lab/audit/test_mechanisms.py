"""Each audit passes an exact mechanism and flags each way in which it can be wrong.

The mechanisms here are models of a few lines; ``tests/adversary/audit`` runs the real ones.
"""

from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from dp.errors import SpecError
from lab.audit.canaries import Observations, observe
from lab.audit.gaussian import audit_gaussian
from lab.audit.noise import audit_independence, audit_presence, audit_scale
from lab.audit.steps import audit_steps, step_log_likelihood_ratio

Q, Z, STEPS, DELTA, CLAIMED = 0.1, 1.0, 100, 1e-3, 4.784


def gaussian(n, *, sigma=1.0, shift=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return audit_gaussian(
        present=shift + sigma * rng.standard_normal(n // 2),
        absent=sigma * rng.standard_normal(n // 2),
        noise_multiplier=1.0,
    )


def test_a_shortfall_of_three_per_cent_is_flagged_at_two_hundred_thousand_releases():
    honest = [gaussian(200_000, seed=seed) for seed in range(20)]
    short = [gaussian(200_000, sigma=0.97, seed=seed) for seed in range(20)]
    assert sum(result.holds for result in honest) >= 18
    assert sum(not result.holds for result in short) >= 18
    assert honest[0].estimate == pytest.approx(1.0, abs=0.02)


def test_a_contribution_longer_than_the_clip_is_flagged():
    assert not gaussian(200_000, shift=1.05).holds


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_releases_that_are_no_numbers_fail_the_audit(bad):
    values = np.zeros(10)
    values[3] = bad
    assert not audit_gaussian(present=values, absent=np.zeros(10), noise_multiplier=1.0).holds


def test_the_log_likelihood_ratio_is_the_logarithm_of_the_densities():
    x = np.linspace(-6, 7, 50)
    out = np.exp(-(x**2) / (2 * 4))
    inside = 0.8 * out + 0.2 * np.exp(-((x - 1) ** 2) / (2 * 4))
    assert step_log_likelihood_ratio(x, q=0.2, z=2.0) == pytest.approx(np.log(inside / out))
    assert step_log_likelihood_ratio(x, q=1.0, z=2.0) == pytest.approx((2 * x - 1) / 8)


def run(*, sampled=Q, sigma=Z, shift=1.0, seed=1, n=30_000):
    rng = np.random.default_rng(seed)
    there = (rng.random((n // 2, STEPS)) < sampled) * shift
    observed = Observations(
        present=there + sigma * rng.standard_normal((n // 2, STEPS)),
        absent=sigma * rng.standard_normal((n // 2, STEPS)),
    )
    return audit_steps(
        observed, q=Q, z=Z, delta=DELTA, claimed_epsilon=CLAIMED, name=f"steps, seed {seed}"
    )


def test_the_claim_is_what_the_accountant_of_privacy_loss_distributions_says():
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    step = dp_accounting.PoissonSampledDpEvent(Q, dp_accounting.GaussianDpEvent(Z))
    claimed = accountant.compose(step, STEPS).get_epsilon(DELTA)
    assert claimed == pytest.approx(CLAIMED, abs=0.005)


def test_correct_steps_hold_and_each_bug_is_measured_above_the_claim():
    correct = run()
    assert correct.holds
    assert 2.5 < correct.measured < 3.8
    assert run(sigma=Z / 2).measured == pytest.approx(6.0, abs=0.4)
    assert run(shift=1.75).measured == pytest.approx(5.8, abs=0.4)
    assert run(sampled=1.0).measured == pytest.approx(7.9, abs=0.01)


def test_observations_that_are_no_numbers_fail_the_audit():
    broken = Observations(present=np.full((9, 2), np.nan), absent=np.zeros((9, 2)))
    assert not audit_steps(broken, q=Q, z=Z, delta=DELTA, claimed_epsilon=CLAIMED).holds


def noise(steps=100, d=2000, seed=3):
    return np.random.default_rng(seed).standard_normal((steps, d))


def test_independent_noise_holds_and_noise_used_twice_does_not():
    vectors = noise()
    assert audit_independence(vectors).holds
    vectors[70] = vectors[3]
    assert audit_independence(vectors).measured == pytest.approx(1.0)
    # A tenth of the vector is enough.
    vectors = noise(d=20_000, steps=10)
    vectors[7, :2000] = -vectors[2, :2000]
    assert not audit_independence(vectors).holds
    assert not audit_independence(np.zeros((3, 50))).holds


def test_the_bound_on_correlation_is_that_of_one_pair_or_wider_for_many():
    assert audit_independence(noise(steps=2)).claimed == pytest.approx(5 / 2000**0.5)
    assert audit_independence(noise(steps=100)).claimed == pytest.approx(6.46 / 2000**0.5, rel=1e-2)


def test_noise_must_be_there_in_every_coordinate():
    vectors = noise()
    assert all(result.holds for result in audit_presence(vectors, sigma=1.0))
    vectors[:, 1234] = 0.0
    each, overall = audit_presence(vectors, sigma=1.0)
    assert (each.holds, overall.holds) == (False, True)


def test_noise_that_is_one_per_cent_too_small_everywhere_is_noticed():
    each, overall = audit_presence(0.99 * noise(), sigma=1.0)
    assert (each.holds, overall.holds) == (True, False)


def test_too_few_steps_say_so_instead_of_passing():
    with pytest.raises(SpecError, match="too few"):
        audit_presence(noise(steps=10), sigma=1.0)


def test_noise_divided_by_the_number_of_units_is_noticed():
    rng = np.random.default_rng(5)
    fixed = {n: rng.standard_normal(40_000) / 8 for n in (0, 8, 9)}
    assert audit_scale(fixed).holds
    leaking = {n: rng.standard_normal(40_000) / max(n, 1) for n in (0, 8, 9)}
    assert not audit_scale(leaking).holds
    assert not audit_scale({0: np.zeros(5), 1: np.ones(5)}).holds
    with pytest.raises(SpecError):
        audit_scale({8: fixed[8], 9: fixed[9]})


def test_canaries_change_places_and_are_sorted_by_presence():
    seen = []

    def make():
        def mechanism(present, step):
            seen.append(present)
            return present + 10.0 * step

        return mechanism

    observed = observe(make, canaries=6, steps=3, runs=4)
    assert observed.present.shape == observed.absent.shape == (12, 3)
    assert (observed.present == [1, 11, 21]).all()
    assert (observed.absent == [0, 10, 20]).all()
    assert sum(present.astype(int) for present in seen).tolist() == [6] * 6
    first, rest = observed.split(0.25)
    assert (len(first.present), len(rest.absent)) == (3, 9)


def test_a_mechanism_of_another_dimension_is_refused():
    with pytest.raises(SpecError):
        observe(lambda: lambda present, step: np.zeros(5), canaries=6, steps=1, runs=1)
