"""The guardian in every mode: what is looser than the plan, or than the site's floors, is refused
by the rule that names it, alone on an otherwise accepted request."""

from dataclasses import replace

import pytest
from silo_policy_samples import (
    BASE,
    COHORT,
    COMPOSED,
    LAYOUT,
    MODES,
    NOW_UNIX_S,
    PLAN,
    edited,
    make_descriptor,
    mode_policy,
)

from dp.charge import epsilon_of
from federation.plan import Plan
from secagg.descriptor import NOISE_DISCRETE_GAUSSIAN, NOISE_NONE
from silo_agent import policy_plan
from silo_agent.policy import ACCEPTED, check_descriptor, check_plan
from silo_agent.policy_plan import charged_steps, charges_of_run, protected_unit

COMPOSED_MODE = (*MODES["record_local"], COMPOSED)
PLANS = {**MODES, "composed": COMPOSED_MODE}
NOISY = ("silo", "record_distributed", "composed")
"""Modes whose summed vector carries noise of the release's own."""
LESS = 1.0 - 1e-12


def plan_of(mode, *changes):
    return Plan.parse(edited(edited(PLAN, *PLANS[mode]), *changes).encode())


def policy_of(mode, *changes):
    return mode_policy("record_local" if mode == "composed" else mode, *changes)


def rule_on_descriptor(mode, descriptor, *, plan=None):
    return check_descriptor(
        policy_of(mode),
        descriptor=descriptor,
        silo_id="silo-a",
        plan=plan or plan_of(mode),
        base_sha256=BASE,
        layout=LAYOUT,
        now_unix_s=NOW_UNIX_S,
    ).rule


def rule_on_plan(policy, plan):
    return check_plan(policy, plan=plan, base_sha256=BASE).rule


@pytest.mark.parametrize("mode", PLANS)
def test_what_follows_from_the_plan_is_accepted(mode):
    plan = plan_of(mode)
    assert rule_on_plan(policy_of(mode), plan) == ACCEPTED
    for step in range(plan.sums_per_round):
        honest = make_descriptor(plan)
        later = replace(honest, identity=replace(honest.identity, step=step))
        assert rule_on_descriptor(mode, later) == ACCEPTED


@pytest.mark.parametrize("mode", PLANS)
def test_a_step_past_the_rounds_last_or_a_second_part_is_refused(mode):
    plan = plan_of(mode)
    honest = make_descriptor(plan)
    past = replace(honest, identity=replace(honest.identity, step=plan.sums_per_round))
    assert rule_on_descriptor(mode, past) == "sums"
    part = replace(honest, identity=replace(honest.identity, part=1))
    assert rule_on_descriptor(mode, part) == "sums"


@pytest.mark.parametrize("mode", PLANS)
def test_less_noise_than_the_plan_has_is_refused(mode):
    honest = make_descriptor(plan_of(mode))
    if mode in NOISY:
        assert honest.noise_mechanism == NOISE_DISCRETE_GAUSSIAN
        less = replace(honest, noise_sigma=honest.noise_sigma * LESS)
        none = replace(honest, noise_mechanism=NOISE_NONE, noise_sigma=0.0)
        assert rule_on_descriptor(mode, none) == "noise"
    else:
        # Noise that the plan does not have would be charged for by nobody.
        assert honest.noise_mechanism == NOISE_NONE
        less = replace(honest, noise_mechanism=NOISE_DISCRETE_GAUSSIAN, noise_sigma=100.0)
    assert rule_on_descriptor(mode, less) == "noise"
    assert rule_on_descriptor(mode, replace(honest, noise_mechanism="gaussian")) == "noise"


@pytest.mark.parametrize("mode", PLANS)
def test_less_noise_on_the_metrics_than_the_plan_has_is_refused(mode):
    honest = make_descriptor(plan_of(mode))
    sigma = 100.0 if mode == "none" else honest.metrics.sigma * LESS
    lower = replace(honest, metrics=replace(honest.metrics, sigma=sigma))
    assert rule_on_descriptor(mode, lower) == "metrics_noise"
    if mode != "none":
        without = replace(honest, metrics=replace(honest.metrics, sigma=0.0))
        assert rule_on_descriptor(mode, without) == "metrics_noise"
        more = replace(honest, metrics=replace(honest.metrics, sigma=2.0 * honest.metrics.sigma))
        assert rule_on_descriptor(mode, more) == ACCEPTED


def test_shared_metrics_noise_is_not_enough_where_each_silo_needs_all_of_it():
    """record_local holds against everybody: its metrics noise is not divided among silos."""
    local = make_descriptor(plan_of("record_local"))
    shared = make_descriptor(plan_of("record_distributed"))
    assert shared.metrics.sigma < local.metrics.sigma
    lower = replace(local, metrics=replace(local.metrics, sigma=shared.metrics.sigma))
    assert rule_on_descriptor("record_local", lower) == "metrics_noise"


@pytest.mark.parametrize("mode", PLANS)
@pytest.mark.parametrize("field", ["unit_clip", "vector_clip", "max_units"])
def test_a_larger_clip_or_more_units_than_the_plan_has_are_refused(mode, field):
    honest = make_descriptor(plan_of(mode))
    value = getattr(honest, field)
    larger = value + 1 if field == "max_units" else value * 1.5
    assert rule_on_descriptor(mode, replace(honest, **{field: larger})) == "descriptor_clip"


@pytest.mark.parametrize("mode", PLANS)
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_another_scale_is_refused(mode, factor):
    honest = make_descriptor(plan_of(mode))
    assert rule_on_descriptor(mode, replace(honest, scale=honest.scale * factor)) == "scale"


@pytest.mark.parametrize("mode", PLANS)
def test_other_bounds_of_the_metrics_are_refused(mode):
    honest = make_descriptor(plan_of(mode))
    block = honest.metrics
    looser = replace(block, bounds=(block.bounds[0], *(2.0 * bound for bound in block.bounds[1:])))
    assert rule_on_descriptor(mode, replace(honest, metrics=looser)) == "metrics_layout"


LOOSER_SPECS = {
    "none": ("clip_l2 = 2.0", "clip_l2 = 1.9"),
    "silo": ("\nnoise_multiplier = 4.0", "\nnoise_multiplier = 4.5"),
    "record_local": ("sampling_rate = 0.25", "sampling_rate = 0.2"),
    "record_distributed": ("sampling_rate = 0.25", "sampling_rate = 0.2"),
    "composed": ("silo_noise_multiplier = 4.0", "silo_noise_multiplier = 4.5"),
}


@pytest.mark.parametrize("mode", PLANS)
def test_the_digest_of_another_privacy_spec_is_refused(mode):
    other = plan_of(mode, LOOSER_SPECS[mode]).privacy_spec().sha256()
    lie = make_descriptor(plan_of(mode), privacy_spec_sha256=other)
    assert rule_on_descriptor(mode, lie) == "privacy_spec"


FLOORS = {
    "noise_multiplier": ("min_noise_multiplier = 4.0", "min_noise_multiplier = 4.1"),
    "clip": ("max_clip_l2 = 2.0", "max_clip_l2 = 1.9"),
    "record_units": ('units = ["task"]', 'units = ["user"]'),
    "sampling_rate": ("max_sampling_rate = 0.25", "max_sampling_rate = 0.24"),
    "epsilon_per_run": ("per_run = 6.0", "per_run = 1.0"),
}


@pytest.mark.parametrize("mode", ["record_local", "record_distributed", "composed"])
@pytest.mark.parametrize("rule", FLOORS)
def test_the_sites_floors_are_about_the_protected_unit(mode, rule):
    assert rule_on_plan(policy_of(mode, FLOORS[rule]), plan_of(mode)) == rule


COMPOSED_FLOORS = {
    "noise_multiplier": ("silo_noise_multiplier = 4.0", "silo_noise_multiplier = 3.9"),
    "clip": ("delta_clip_l2 = 2.0", "delta_clip_l2 = 2.1"),
}


@pytest.mark.parametrize("rule", COMPOSED_FLOORS)
def test_the_sites_floors_are_about_noise_for_the_silo_too(rule):
    """Its clip and noise decide what the silo is charged, so they obey the same floors."""
    assert rule_on_plan(policy_of("composed"), plan_of("composed", COMPOSED_FLOORS[rule])) == rule


def test_without_noise_for_the_silo_the_deltas_clip_hides_nothing():
    wide = plan_of("record_local", ("delta_clip_l2 = 3.0", "delta_clip_l2 = 100.0"))
    assert rule_on_plan(policy_of("record_local"), wide) == ACCEPTED


@pytest.mark.parametrize(
    ("mode", "steps"), [("record_local", 18), ("composed", 18), ("record_distributed", 18)]
)
def test_noisy_steps_of_a_run_count_those_of_spare_attempts(mode, steps):
    """Five rounds of three steps, and ⌈0.2·T⌉ or ⌈0.2·T·S⌉ spare ones."""
    plan = plan_of(mode)
    assert charged_steps(plan) == steps
    fewer = ("max_steps_per_run = 18", f"max_steps_per_run = {steps - 1}")
    assert rule_on_plan(policy_of(mode, fewer), plan) == "steps"


@pytest.mark.parametrize("mode", ["silo", "record_local", "record_distributed"])
def test_a_run_that_alone_would_pass_a_cap_is_refused(mode):
    unit = protected_unit(plan_of(mode).privacy_spec())
    cap = "silo = 50.0" if unit == "silo" else "task = 40.0"
    assert rule_on_plan(policy_of(mode, (cap, f"{unit} = 0.5")), plan_of(mode)) == "run_above_cap"
    # A kind that is not named has no budget at all.
    assert rule_on_plan(policy_of(mode, (cap, f"{unit} = 0")), plan_of(mode)) == "run_above_cap"


def test_noise_for_the_silo_on_top_needs_a_budget_of_its_own():
    plan = plan_of("composed")
    costs = epsilon_of(charges_of_run(plan), 1e-5)
    assert set(costs) == {"silo", "task"}
    assert rule_on_plan(policy_of("composed", ("silo = 50.0", "silo = 0")), plan) == "run_above_cap"
    # Without that noise the silo's whole data set is not protected, and nothing is charged for it.
    alone = plan_of("record_local")
    no_silo = policy_of("record_local", ("silo = 50.0", "silo = 0"))
    assert rule_on_plan(no_silo, alone) == ACCEPTED


@pytest.mark.parametrize("mode", MODES)
def test_a_method_that_does_not_run_under_the_mode_is_refused_with_those_it_does(mode, monkeypatch):
    others = frozenset(MODES) - {mode}
    monkeypatch.setattr(policy_plan, "dp_compat_of", lambda _method: others)
    decision = check_plan(policy_of(mode), plan=plan_of(mode), base_sha256=BASE)
    assert decision.rule == "evolver_dp_compat"
    assert all(other in decision.detail for other in MODES)
    assert "fed-se" not in decision.public_reason


def test_a_user_as_unit_needs_a_budget_for_users():
    plan = plan_of(
        "record_local", ('mode = "record_local"', 'mode = "record_local"\nunit = "user"')
    )
    units = ('units = ["task"]', 'units = ["task", "user"]')
    assert rule_on_plan(policy_of("record_local"), plan) == "record_units"
    assert rule_on_plan(policy_of("record_local", units), plan) == "run_above_cap"
    caps = ("task = 40.0", "user = 40.0")
    assert rule_on_plan(policy_of("record_local", units, caps), plan) == ACCEPTED


def test_a_smaller_cohort_cannot_lower_the_noise():
    """The divisor follows from t and n_min, which are bound to the roster and the plan."""
    plan = plan_of("record_distributed")
    honest = make_descriptor(plan)
    lowered = replace(honest, n_min=2)
    assert rule_on_descriptor("record_distributed", lowered) == "descriptor_survivors"
    assert len(honest.cohort) == len(COHORT)
