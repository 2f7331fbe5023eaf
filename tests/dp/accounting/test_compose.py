"""What a charge of one kind of unit costs the others, and what is counted beside ε."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from dp.accounting import rdp
from dp.accounting.charge import Charge, attempt_charges, training_charges
from dp.accounting.compose import Epsilon, Spent, capped_kinds, charged_kinds, kinds_inside
from dp.config import Mode
from tests.kit.dp.ledgers import DELTA, LOCAL

Z, Z_METRICS = 1.5, 6.0
BARE = dataclasses.replace(
    LOCAL, record=dataclasses.replace(LOCAL.record, silo_noise_multiplier=0.0)
)
SILO = dataclasses.replace(
    LOCAL, mode=Mode.SILO, record=None, noise_multiplier=Z, metrics_noise_multiplier=Z_METRICS
)
NONE = dataclasses.replace(SILO, mode=Mode.NONE, noise_multiplier=0.0, metrics_noise_multiplier=0.0)
DISTRIBUTED = dataclasses.replace(
    LOCAL,
    mode=Mode.RECORD_DISTRIBUTED,
    record=dataclasses.replace(BARE.record, delta_clip_l2=None),
)
QUIET = np.zeros(len(rdp.ORDERS))


def user(spec):
    return dataclasses.replace(spec, unit="user")


def released(spec, *, step=0):
    return Spent.of(attempt_charges(spec, step=step), releases=1)


def gaussian(*multipliers):
    """RDP of Gaussian releases on the same data, written down on its own."""
    return np.array([order / 2 * sum(z**-2 for z in multipliers) for order in rdp.ORDERS])


def test_a_silo_release_costs_the_units_inside_at_their_own_sensitivity():
    spent = released(SILO)
    np.testing.assert_allclose(spent.kinds["silo"].rdp, gaussian(Z, Z_METRICS), rtol=1e-12)
    inside = gaussian(Z / 2, Z_METRICS / math.sqrt(2))
    for kind in ("user", "task"):
        np.testing.assert_allclose(spent.kinds[kind].rdp, inside, rtol=1e-12)
    # What an earlier ledger wrote as one joint z counts for no less.
    joint = Charge(unit="silo", q=1.0, z=(Z**-2 + Z_METRICS**-2) ** -0.5, steps=1)
    old = Spent.of((joint,), releases=1)
    np.testing.assert_allclose(old.kinds["silo"].rdp, spent.kinds["silo"].rdp, rtol=1e-12)
    assert (old.kinds["task"].rdp > inside).all()


@pytest.mark.parametrize("q", [1e-3, 0.05, 0.5])
@pytest.mark.parametrize("z", [0.4, 1.0, 8.0])
def test_a_sampled_release_costs_the_units_inside_by_the_lesser_bound(q, z):
    def divergence(order):
        """ln A of the order, by (order − 1), term by term in logarithms."""
        terms = [
            math.lgamma(order + 1)
            - math.lgamma(k + 1)
            - math.lgamma(order - k + 1)
            + (order - k) * math.log1p(-q)
            + k * math.log(q)
            + (k * k - k) / (2 * z * z)
            for k in range(order + 1)
        ]
        most = max(terms)
        return (most + math.log(math.fsum(math.exp(t - most) for t in terms))) / (order - 1)

    found = rdp.rdp_replaced(q, z, 3)
    for index in (0, 1, 2, 40, 254, -2, -1):
        order = rdp.ORDERS[index]
        through_null = (order - 0.5) / (order - 1) * divergence(2 * order)
        through_null += divergence(2 * order - 1)
        expected = 3 * min(2 * order / z**2, through_null)
        assert found[index] == pytest.approx(expected, rel=1e-9, abs=1e-12)
        # Never less than the same release against the null contribution.
        assert found[index] > rdp.rdp_subsampled(q, z, 3)[index]


def test_without_sampling_the_lesser_bound_is_half_the_noise():
    np.testing.assert_allclose(rdp.rdp_replaced(1.0, 3.0, 7), rdp.rdp_gaussian(1.5, 7), rtol=1e-12)


@pytest.mark.parametrize(("q", "z"), [(0.1, 0.8), (0.3, 1.2), (0.02, 0.5)])
def test_the_bound_holds_for_two_opposite_contributions(q, z):
    """Rényi divergence of (1−q)N(0)+qN(1) from (1−q)N(0)+qN(−1), integrated on a grid."""
    x = np.linspace(-80 * z, 80 * z, 400_001)

    def log_density(mean):
        apart = (x - mean) ** 2 / (2 * z * z)
        return np.logaddexp(math.log1p(-q) - x**2 / (2 * z * z), math.log(q) - apart)

    up, down = log_density(1.0), log_density(-1.0)
    norm = math.log(z * math.sqrt(2 * math.pi))
    for order in (2, 3, 5, 8, 16):
        log_terms = order * up + (1 - order) * down - norm
        integral = np.logaddexp.reduce(log_terms) + math.log(x[1] - x[0])
        exact = integral / (order - 1)
        bound = rdp.rdp_replaced(q, z, 1)[rdp.ORDERS.index(order)]
        assert 0 < exact <= bound * (1 + 1e-9)
        # Half the bound, or the null contribution alone, would be too little for some of these.
    assert exact > rdp.rdp_subsampled(q, z, 1)[rdp.ORDERS.index(order)]


def test_a_user_release_costs_its_tasks_failures_included():
    training = Spent.of(training_charges(user(BARE)), releases=0)
    (charge,) = training_charges(user(BARE))
    np.testing.assert_array_equal(training.kinds["user"].rdp, charge.rdp)
    np.testing.assert_array_equal(
        training.kinds["task"].rdp, rdp.rdp_replaced(charge.q, charge.z, charge.steps)
    )
    assert training.kinds["task"].failure == training.kinds["user"].failure == charge.delta > 0
    np.testing.assert_array_equal(training.kinds["silo"].rdp, QUIET)
    upload = released(user(BARE))
    np.testing.assert_allclose(upload.kinds["user"].rdp, gaussian(6.0), rtol=1e-12)
    np.testing.assert_allclose(upload.kinds["task"].rdp, gaussian(6.0 / math.sqrt(2)), rtol=1e-12)


def test_silo_noise_over_a_protected_delta_costs_its_own_unit_once():
    task = released(LOCAL)
    np.testing.assert_allclose(task.kinds["task"].rdp, gaussian(6.0), rtol=1e-12)
    np.testing.assert_allclose(
        task.kinds["user"].rdp, gaussian(3.0 / 2, 6.0 / math.sqrt(2)), rtol=1e-12
    )
    np.testing.assert_allclose(task.kinds["silo"].rdp, gaussian(3.0, 6.0), rtol=1e-12)
    # A user's own release hides its tasks too, so the silo's noise costs neither of them.
    persons = released(user(LOCAL))
    np.testing.assert_allclose(persons.kinds["user"].rdp, gaussian(6.0), rtol=1e-12)
    np.testing.assert_allclose(persons.kinds["task"].rdp, gaussian(6.0 / math.sqrt(2)), rtol=1e-12)
    assert dict(task.partial) == dict(persons.partial) == {"silo": 0, "task": 0, "user": 0}
    # A training before its first upload is no release: nobody is charged for the silo's noise.
    training = Spent.of(training_charges(LOCAL), releases=0)
    np.testing.assert_array_equal(training.kinds["user"].rdp, QUIET)
    assert not any(training.partial.values())


@pytest.mark.parametrize(
    ("spec", "partial", "unprotected"),
    [
        (NONE, {}, 1),
        (SILO, {}, 0),
        (LOCAL, {}, 0),
        (BARE, {"silo": 1, "user": 1}, 0),
        (user(BARE), {"silo": 1}, 0),
        (user(LOCAL), {}, 0),
        (DISTRIBUTED, {"silo": 1, "user": 1}, 0),
        (user(DISTRIBUTED), {"silo": 1}, 0),
    ],
)
def test_what_no_epsilon_speaks_of_is_counted(spec, partial, unprotected):
    spent = released(spec) + released(spec, step=3) + released(SILO)
    found = spent.epsilons(DELTA)
    for kind, epsilon in found.items():
        assert epsilon.partial_releases == 2 * partial.get(kind, 0)
        assert epsilon.unprotected_releases == 2 * unprotected
        assert bool(epsilon.exceptions) == bool(partial.get(kind, 0) or unprotected)


def test_releases_of_several_kinds_add_up():
    """The sum that ledgers once kept apart: a task pays for all of them."""
    task, silo, persons = released(BARE), released(SILO), released(user(BARE))
    both = task + silo + persons + released(NONE)
    for kind in ("silo", "task", "user"):
        total = sum(one.kinds[kind].rdp for one in (task, silo, persons))
        np.testing.assert_allclose(both.kinds[kind].rdp, total, rtol=1e-12)
    alone = task.epsilons(DELTA)["task"].epsilon
    assert both.epsilons(DELTA)["task"].epsilon > 2 * alone
    assert both.epsilons(DELTA)["silo"] == Epsilon(
        silo.epsilons(DELTA)["silo"].epsilon, partial_releases=2, unprotected_releases=1
    )


def test_an_epsilon_is_never_shown_without_what_it_leaves_out():
    assert str(Epsilon(6.7712)) == "6.771"
    assert f"{Epsilon(1.5, partial_releases=1)}" == (
        "1.5 and 1 release protected for a smaller unit only"
    )
    flagged = Epsilon(0.0, partial_releases=2, unprotected_releases=3)
    assert str(flagged) == (
        "0 and 2 releases protected for a smaller unit only and 3 releases in mode none"
    )
    assert dataclasses.asdict(flagged) == {
        "epsilon": 0.0,
        "partial_releases": 2,
        "unprotected_releases": 3,
        "adjacency": "zero-out",
    }
    with pytest.raises(TypeError):
        f"{flagged:.3g}"


def test_which_kinds_are_charged_and_which_are_capped():
    charges = attempt_charges(SILO, step=0)
    assert charged_kinds(charges) == ("silo", "task", "user")
    assert capped_kinds(charges, {}) == ("silo",)
    assert capped_kinds(charges, {"silo": 1.0, "task": 2.0}) == ("silo", "task")
    assert capped_kinds(charges, {"user": 0.0}) == ("silo",)
    assert capped_kinds(attempt_charges(BARE, step=0), {"silo": 9.0}) == ("task",)
    assert [kinds_inside(kind) for kind in ("silo", "user", "task")] == [
        ("task", "user"),
        ("task",),
        (),
    ]
