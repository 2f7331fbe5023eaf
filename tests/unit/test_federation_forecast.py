"""Forecasts: figures agree with the privacy core, and every gate refuses and can be passed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dp.rdp import epsilon, joint_noise_multiplier, rdp_gaussian
from dp.share import per_silo_sigma
from dp.snr import predicted_cosine
from federation import Layout, Plan, PlanError, TensorSpec, forecast_plan, shared_dimension

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
SILO_DP = (EXAMPLES / "plan-silo-dp.toml").read_text()
DIMENSION = 4000


def plan_with(*edits: tuple[str, str], base: str = SILO_DP) -> Plan:
    for old, new in edits:
        assert base.count(old) == 1, old
        base = base.replace(old, new)
    return Plan.parse(base.encode())


def test_the_figures_are_those_of_the_privacy_core():
    plan = plan_with()
    shown = forecast_plan(plan, silos=200, colluding=20, dimension=DIMENSION)
    assert shown.refusals == ()
    assert shown.threshold == 111
    assert shown.drops == 40
    z = plan.privacy.noise_multiplier
    joint = joint_noise_multiplier(z, plan.privacy.metrics_noise_multiplier)
    assert shown.joint_noise_multiplier == joint
    assert shown.charged_attempts == 12
    assert shown.epsilon_round == epsilon(rdp_gaussian(joint, 1), 1e-5)
    assert shown.epsilon_total == epsilon(rdp_gaussian(joint, 12), 1e-5)
    assert shown.epsilon_total < 8 < epsilon(rdp_gaussian(joint, 24), 1e-5)
    assert shown.silo_sigma == per_silo_sigma(z, 2**20, 111, 160, 20)
    assert shown.predicted_cosine == predicted_cosine(
        noise_multiplier=z, dimension=DIMENSION, silos=200, divisor=140
    )
    assert 0 < shown.ring_headroom_bits < 31


def test_bytes_follow_the_vector():
    plan = plan_with()
    small = forecast_plan(plan, silos=200, colluding=20, dimension=4000, metrics_coordinates=5)
    large = forecast_plan(plan, silos=200, colluding=20, dimension=5000, metrics_coordinates=5)
    assert large.bytes_up - small.bytes_up == 4 * 1000
    assert large.bytes_down - small.bytes_down == 8 * 1000
    assert small.bytes_up == 4 * 4005 + 1024 * 200


def test_the_cosine_gate_refuses_and_is_passed_only_by_the_flag():
    shown = forecast_plan(plan_with(), silos=200, colluding=20, dimension=1_000_000)
    (refusal,) = shown.refusals
    assert refusal.startswith("privacy.min_cosine")
    assert str(shown.silos_for_min_cosine) in refusal
    assert shown.silos_for_min_cosine > 200
    enough = predicted_cosine(
        noise_multiplier=2.4,
        dimension=1_000_000,
        silos=shown.silos_for_min_cosine,
        divisor=(shown.silos_for_min_cosine + 20) // 2 + 1 - 20,
    )
    assert 0.5 <= enough < 0.51
    accepted = plan_with(("min_cosine = 0.5", "min_cosine = 0.5\naccept_low_cosine = true"))
    assert forecast_plan(accepted, silos=200, colluding=20, dimension=1_000_000).refusals == ()


def test_epsilon_over_the_cap_is_refused():
    shown = forecast_plan(
        plan_with(("epsilon_cap = 8.0", "epsilon_cap = 4.0")),
        silos=200,
        colluding=20,
        dimension=DIMENSION,
    )
    (refusal,) = shown.refusals
    assert refusal.startswith("privacy.epsilon_cap")


def test_spare_attempts_are_paid_for():
    spare = forecast_plan(
        plan_with(("count = 10", "count = 10\nspare_attempts = 30")),
        silos=200,
        colluding=20,
        dimension=DIMENSION,
    )
    assert spare.charged_attempts == 40
    assert any("epsilon_cap" in refusal for refusal in spare.refusals)


def test_a_small_cohort_is_refused_with_figures_all_the_same():
    shown = forecast_plan(plan_with(), silos=2, colluding=1, dimension=10)
    text = " ".join(shown.refusals)
    assert "roster" in text
    assert "n_min" in text
    assert "quorum" in text
    assert shown.drops < 0
    with pytest.raises(PlanError):
        forecast_plan(plan_with(), silos=0, colluding=1, dimension=10)


def test_a_sum_that_could_wrap_is_refused():
    plan = plan_with(("epsilon_cap = 8.0", "epsilon_cap = 8.0\ngrid = 16777216"))
    shown = forecast_plan(plan, silos=200, colluding=20, dimension=DIMENSION)
    assert any(refusal.startswith("ring:") for refusal in shown.refusals)
    assert shown.ring_headroom_bits < 0


def test_a_grid_too_coarse_for_the_dimension_is_refused():
    plan = plan_with(("epsilon_cap = 8.0", "epsilon_cap = 8.0\ngrid = 1000"))
    shown = forecast_plan(plan, silos=200, colluding=20, dimension=DIMENSION)
    assert any(refusal.startswith("privacy.grid:") for refusal in shown.refusals)


def test_noise_below_the_discrete_gaussian_is_refused():
    plan = plan_with(
        ("\nnoise_multiplier = 2.4", "\nnoise_multiplier = 1e-5"),
        ("epsilon_cap = 8.0", "epsilon_cap = 1e15"),
    )
    shown = forecast_plan(plan, silos=200, colluding=20, dimension=DIMENSION)
    assert any(refusal.startswith("noise:") for refusal in shown.refusals)


def test_record_modes_are_refused_until_they_exist():
    plan = plan_with(('mode = "silo"', 'mode = "record_local"'))
    shown = forecast_plan(plan, silos=200, colluding=20, dimension=DIMENSION)
    assert any(refusal.startswith("privacy.mode:") for refusal in shown.refusals)


def test_without_noise_no_privacy_is_claimed():
    plan = Plan.parse((EXAMPLES / "plan-constant.toml").read_bytes())
    shown = forecast_plan(plan, silos=4, colluding=1, dimension=100)
    assert shown.refusals == ()
    assert shown.epsilon_round == shown.epsilon_total == math.inf
    assert shown.predicted_cosine == 1.0
    assert shown.silo_sigma == 0.0


def test_the_shared_dimension_is_the_larger_factor():
    layout = Layout(
        (
            TensorSpec(name="l.lora_A.weight", shape=(2, 5)),
            TensorSpec(name="l.lora_B.weight", shape=(7, 2)),
        )
    )
    assert shared_dimension(plan_with(), layout) == 14
    assert shared_dimension(plan_with(('method = "rolora"', 'method = "fedavg"')), layout) == 24
