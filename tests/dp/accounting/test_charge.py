"""What each mode charges, that charges add up, and that a run's reservation covers any history."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp.accounting import rdp
from dp.accounting.charge import (
    Charge,
    attempt_charges,
    epsilon_after,
    run_charges,
    training_charges,
)
from dp.accounting.compose import epsilon_of
from dp.config import Mode, PrivacySpec, RecordSpec
from dp.errors import SpecError

DELTA = 1e-5
LOCAL = PrivacySpec(
    mode=Mode.RECORD_LOCAL,
    unit="task",
    clip_l2=1.0,
    noise_multiplier=1.4,
    delta=DELTA,
    epsilon_cap=8.0,
    metrics_noise_multiplier=6.0,
    record=RecordSpec(sampling_rate=0.05, expected_units=50, steps_per_round=20, delta_clip_l2=1.0),
)
COMPOSED = dataclasses.replace(
    LOCAL, record=dataclasses.replace(LOCAL.record, silo_noise_multiplier=3.0)
)
DISTRIBUTED = dataclasses.replace(
    LOCAL,
    mode=Mode.RECORD_DISTRIBUTED,
    record=dataclasses.replace(LOCAL.record, delta_clip_l2=None),
)
SILO = dataclasses.replace(LOCAL, mode=Mode.SILO, record=None)
NONE = dataclasses.replace(SILO, mode=Mode.NONE, noise_multiplier=0.0, metrics_noise_multiplier=0.0)
SPECS = (NONE, SILO, LOCAL, COMPOSED, DISTRIBUTED)
OVERFLOW = LOCAL.record.overflow_delta
SILO_METRICS, TASK_METRICS = ((unit, "metrics", 1.0, 6.0, 1, 0.0) for unit in ("silo", "task"))


def plain(charges):
    """Charges as the table of the module writes them."""
    return [(one.unit, one.block, one.q, one.z, one.steps, one.delta) for one in charges]


def test_the_table_mode_by_mode():
    table = {
        NONE: ([], [], []),
        SILO: ([], *[[("silo", "vector", 1.0, 1.4, 1, 0.0), SILO_METRICS]] * 2),
        LOCAL: (
            [("task", "vector", 0.05, 1.4, 20, 20 * OVERFLOW)],
            *[[TASK_METRICS]] * 2,
        ),
        COMPOSED: (
            [("task", "vector", 0.05, 1.4, 20, 20 * OVERFLOW)],
            *[[TASK_METRICS, ("silo", "vector", 1.0, 3.0, 1, 0.0), SILO_METRICS]] * 2,
        ),
        DISTRIBUTED: (
            [],
            [("task", "vector", 0.05, 1.4, 1, OVERFLOW), TASK_METRICS],
            [("task", "vector", 0.05, 1.4, 1, OVERFLOW)],
        ),
    }
    for spec, (training, first, later) in table.items():
        found = (
            plain(training_charges(spec)),
            plain(attempt_charges(spec, step=0)),
            plain(attempt_charges(spec, step=7)),
        )
        for ours, expected in zip(found, (training, first, later), strict=True):
            assert [row[:2] for row in ours] == [row[:2] for row in expected]
            for row, wanted in zip(ours, expected, strict=True):
                assert row[2:] == pytest.approx(wanted[2:], rel=1e-14)


def test_a_user_is_charged_as_a_user():
    for spec in (LOCAL, COMPOSED, DISTRIBUTED):
        user = dataclasses.replace(spec, unit="user")
        for charges in (training_charges(user), attempt_charges(user, step=0)):
            assert {one.unit for one in charges} <= {"user", "silo"}
        swapped = [dataclasses.replace(one, unit="user") for one in training_charges(spec)]
        assert list(training_charges(user)) == swapped


def test_charges_of_several_steps_are_the_sum_of_the_steps():
    one = Charge(unit="task", q=0.05, z=1.4, steps=1)
    for steps in (2, 7, 300):
        many = dataclasses.replace(one, steps=steps)
        np.testing.assert_allclose(many.rdp, one.rdp * steps, rtol=1e-13)
    np.testing.assert_array_equal(one.rdp, rdp.rdp_subsampled(0.05, 1.4, 1))
    without = Charge(unit="task", q=1.0, z=1.4, steps=3)
    np.testing.assert_array_equal(without.rdp, rdp.rdp_gaussian(1.4, 3))
    # Divergences are kept, so nobody may write to them.
    with pytest.raises(ValueError, match="read-only"):
        one.rdp[0] = 0.0


def test_epsilon_by_hand():
    """ε = min over α of R(α) + ln(1 − 1/α) − ln(δα)/(α − 1), unit by unit, at δ less failures."""
    charges = (
        Charge(unit="task", q=0.05, z=1.4, steps=40, delta=1e-7),
        Charge(unit="silo", q=1.0, z=5.0, steps=2),
        Charge(unit="task", q=1.0, z=6.0, steps=2, delta=2e-7),
    )

    def by_hand(divergence, delta):
        return min(
            value + math.log(1 - 1 / order) - math.log(delta * order) / (order - 1)
            for order, value in zip(rdp.ORDERS, divergence, strict=True)
        )

    task = rdp.rdp_subsampled(0.05, 1.4, 40) + rdp.rdp_gaussian(6.0, 2)
    found = epsilon_of(charges, DELTA)
    assert list(found) == ["silo", "task", "user"]
    assert found["task"] == pytest.approx(by_hand(task, DELTA - 3e-7), rel=1e-12)
    assert found["silo"] == pytest.approx(by_hand(rdp.rdp_gaussian(5.0, 2), DELTA), rel=1e-12)
    assert found["task"] > epsilon_of(charges[:1], DELTA)["task"] > 0
    # Sampling that may overflow costs something, however little.
    safe = tuple(dataclasses.replace(one, delta=0.0) for one in charges)
    assert epsilon_of(safe, DELTA)["task"] < found["task"]
    assert epsilon_of((), DELTA) == {}


def test_no_delta_is_left_where_failures_take_it_all():
    rising = [
        epsilon_after(rdp.rdp_gaussian(4.0, 1), DELTA, part * DELTA) for part in (0, 0.5, 0.9)
    ]
    assert rising == sorted(rising)
    assert len(set(rising)) == 3
    for failure in (DELTA, 1.5 * DELTA, 1.0):
        assert epsilon_after(rdp.rdp_gaussian(4.0, 1), DELTA, failure) == math.inf
        assert epsilon_after(np.zeros(len(rdp.ORDERS)), DELTA, failure) == math.inf


@st.composite
def histories(draw):
    """A spec, and what a run of it may come to: attempts at steps, with trainings before some."""
    spec = draw(st.sampled_from(SPECS))
    steps = st.integers(0, 3) if spec is DISTRIBUTED else st.just(0)
    return spec, draw(st.lists(steps, min_size=1, max_size=12)), draw(st.integers(0, 12))


@given(history=histories())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_reservation_covers_every_history(history):
    """Whatever was attempted and trained: the run's charges are at least as much, unit by unit."""
    spec, attempts, trainings = history
    trainings = min(trainings, len(attempts))
    firsts = attempts.count(0)
    spent = training_charges(spec) * trainings
    for step in attempts:
        spent += attempt_charges(spec, step=step)
    held = epsilon_of(spent, DELTA)
    exact = epsilon_of(run_charges(spec, releases=len(attempts), first_steps=firsts), DELTA)
    most = epsilon_of(run_charges(spec, releases=len(attempts)), DELTA)
    for unit, used in held.items():
        assert used <= exact[unit] * (1 + 1e-12)
        assert exact[unit] <= most[unit] * (1 + 1e-12)
        # Nothing is reserved that cannot be spent.
        if trainings == len(attempts):
            assert used == pytest.approx(exact[unit], rel=1e-9)
        one_more = epsilon_of(
            run_charges(spec, releases=len(attempts) + 1, first_steps=firsts), DELTA
        )
        assert one_more[unit] > exact[unit]


def test_a_run_of_no_first_steps_or_none_at_all():
    assert run_charges(NONE, releases=30) == ()
    assert run_charges(LOCAL, releases=0) == ()
    assert run_charges(LOCAL, releases=0, trainings=1) == training_charges(LOCAL)
    assert run_charges(LOCAL, releases=1, trainings=0) == attempt_charges(LOCAL, step=0)
    with pytest.raises(SpecError):
        run_charges(LOCAL, releases=1, trainings=-1)
    later = run_charges(DISTRIBUTED, releases=3, first_steps=0)
    assert plain(later) == [("task", "vector", 0.05, 1.4, 3, pytest.approx(3 * OVERFLOW))]
    for arguments in ((3, 4), (3, -1)):
        with pytest.raises(SpecError):
            run_charges(LOCAL, releases=arguments[0], first_steps=arguments[1])


def test_failures_of_many_steps_stay_a_probability():
    crowded = dataclasses.replace(
        DISTRIBUTED, record=dataclasses.replace(DISTRIBUTED.record, expected_units=1)
    )
    (first, *_) = run_charges(crowded, releases=10**8, first_steps=0)
    assert 0.5 < first.delta < 1
    assert epsilon_of((first,), DELTA)["task"] == math.inf


@pytest.mark.parametrize(
    "change",
    [
        {"unit": "row"},
        {"unit": None},
        {"q": 0.0},
        {"q": 1.01},
        {"q": math.nan},
        {"z": 0.0},
        {"z": -1.0},
        {"z": math.inf},
        {"z": math.nan},
        {"steps": 0},
        {"steps": 1.0},
        {"steps": True},
        {"steps": 1 << 41},
        {"delta": -1e-12},
        {"delta": 1.0},
        {"delta": math.nan},
        {"block": "metrics"},
        {"block": "joint"},
        {"block": None},
    ],
)
def test_impossible_charges(change):
    with pytest.raises(SpecError):
        dataclasses.replace(Charge(unit="task", q=0.1, z=1.0, steps=1), **change)
