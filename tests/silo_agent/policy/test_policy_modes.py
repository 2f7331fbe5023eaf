"""The guardian in every mode: what is looser than the plan, or than the site's floors, is refused
by the rule that names it, alone on an otherwise accepted request."""

import importlib
import sys
from dataclasses import replace

import pytest

from dp.accounting.compose import epsilon_of
from dp.config import RECORD_MODES
from evolution.package import package_sha256
from federation.chain.preflight import REASONS
from federation.plan.charges import charged_steps, charges_of_run, protected_unit
from federation.plan.read import read_plan
from federation.plan.recipe import PartChoice, PartsSection
from secagg.descriptor import NOISE_DISCRETE_GAUSSIAN, NOISE_NONE, MetricsLayout
from silo_agent.policy.approvals import Standing
from silo_agent.policy.document import NO_PRIVACY
from silo_agent.policy.passed_time import Passed
from silo_agent.policy.policy import (
    ACCEPTED,
    check_descriptor,
    check_followed,
    check_plan,
    check_task,
)
from tests.kit.silo_agent.policy_samples import (
    ACCEPTED_NONE,
    ALLOW_EXACT,
    COHORT,
    COMPOSED,
    EXACT,
    LAYOUT,
    MODES,
    NOW_UNIX_S,
    PLAN,
    SITE,
    edited,
    make_descriptor,
    make_task,
    mode_policy,
)

COMPOSED_MODE = (*MODES["record_local"], COMPOSED)
PLANS = {**MODES, "composed": COMPOSED_MODE, "exact": (*MODES["none"], EXACT)}
QUIET = ("none", "exact")
"""Modes without any noise; with figures only where the plan asks for them."""
NOISY = ("silo", "record_distributed", "composed")
"""Modes whose summed vector carries noise of the release's own."""
LESS = 1.0 - 1e-12


def plan_of(mode, *changes):
    return read_plan(edited(edited(PLAN, *PLANS[mode]), *changes).encode())


def policy_of(mode, *changes):
    if mode == "exact":
        return mode_policy("none", ALLOW_EXACT, *changes)
    return mode_policy("record_local" if mode == "composed" else mode, *changes)


def rule_on_descriptor(mode, descriptor, *, plan=None):
    return check_descriptor(
        policy_of(mode),
        descriptor=descriptor,
        silo_id="silo-a",
        plan=plan or plan_of(mode),
        site=SITE,
        layout=LAYOUT,
        now_unix_s=NOW_UNIX_S,
        task=make_task(),
    ).rule


def rule_on_plan(policy, plan):
    return check_plan(policy, plan=plan, site=SITE).rule


@pytest.mark.parametrize("mode", PLANS)
def test_what_follows_from_the_plan_is_accepted(mode):
    plan = plan_of(mode)
    assert rule_on_plan(policy_of(mode), plan) == ACCEPTED
    for step in range(plan.sums_per_round):
        honest = make_descriptor(plan)
        later = replace(honest, identity=replace(honest.identity, step=step))
        assert rule_on_descriptor(mode, later) == ACCEPTED


@pytest.mark.parametrize("mode", PLANS)
def test_a_step_past_the_rounds_last_or_a_part_past_the_most_is_refused(mode):
    plan = plan_of(mode)
    honest = make_descriptor(plan)
    past = replace(honest, identity=replace(honest.identity, step=plan.sums_per_round))
    assert rule_on_descriptor(mode, past) == "sums"
    part = replace(honest, identity=replace(honest.identity, part=64))
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
    sigma = 100.0 if mode in QUIET else honest.metrics.sigma * LESS
    lower = replace(honest, metrics=replace(honest.metrics, sigma=sigma))
    assert rule_on_descriptor(mode, lower) == "metrics_noise"
    if mode not in QUIET:
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


@pytest.mark.parametrize("mode", sorted({*PLANS} - {"none"}))
def test_other_bounds_of_the_metrics_are_refused(mode):
    honest = make_descriptor(plan_of(mode))
    block = honest.metrics
    looser = replace(block, bounds=(block.bounds[0], *(2.0 * bound for bound in block.bounds[1:])))
    assert rule_on_descriptor(mode, replace(honest, metrics=looser)) == "metrics_layout"


def test_figures_that_a_plan_without_noise_does_not_ask_for_are_refused():
    """A silo that alone has something to tell would tell it in clear, among zeros."""
    quiet, exact = make_descriptor(plan_of("none")), make_descriptor(plan_of("exact"))
    assert quiet.metrics == MetricsLayout(names=(), bounds=(), grid=0, sigma=0.0)
    names = exact.metrics.names
    assert {"update_norm_sq", "successes/craft"} < set(names)
    for figures in (exact.metrics, replace(exact.metrics, names=names[:1], bounds=(4.0,))):
        assert rule_on_descriptor("none", replace(quiet, metrics=figures)) == "metrics_layout"
    # Nor are figures that it does ask for left out: all silos do the same.
    assert rule_on_descriptor("exact", replace(exact, metrics=quiet.metrics)) == "metrics_layout"
    coarse = replace(quiet.metrics, grid=2**16)
    assert rule_on_descriptor("none", replace(quiet, metrics=coarse)) == "metrics_layout"


NOISELESS = {
    "no_privacy_accepted": (ACCEPTED_NONE[0][1], 'units = ["task"]'),
    "exact_figures": ("allow_exact_figures = true", "allow_exact_figures = false"),
    "thin_round": ("min_episodes_per_round = 128\n", ""),
}


@pytest.mark.parametrize("rule", NOISELESS)
def test_a_run_without_noise_needs_more_than_the_modes_name(rule):
    decision = check_plan(policy_of("exact", NOISELESS[rule]), plan=plan_of("exact"), site=SITE)
    assert decision.rule == rule
    said = {
        "no_privacy_accepted": f'accept_no_privacy = "{NO_PRIVACY}"',
        "exact_figures": "allow_exact_figures",
        "thin_round": "limits.min_episodes_per_round",
    }
    assert said[rule] in decision.detail
    assert not any(character.isdigit() for character in decision.public_reason)


CHOSEN = (
    "[secure_aggregation]",
    '[selection]\npolicy = "round-robin"\ncount = 4\n[secure_aggregation]',
)
WORD = ("count = 4", "count = 4\ncohort_may_vary = true")
MAY_VARY = ("max_epsilon_per_run", "cohort_may_vary = true\nmax_epsilon_per_run")


def test_other_silos_in_each_round_need_the_sites_own_word_without_noise():
    plan = plan_of("none", CHOSEN, WORD)
    decision = check_plan(policy_of("none"), plan=plan, site=SITE)
    assert decision.rule == "selection"
    assert decision.public_reason == REASONS["selection"]
    for said in ("cohort_may_vary = true in [privacy]", "approve RUN --cohort-may-vary"):
        assert said in decision.detail
    task, descriptor = make_task(), make_descriptor(plan)
    for may_vary, rule in ((False, "selection"), (True, ACCEPTED)):
        case = {"plan": plan, "site": SITE, "cohort_may_vary": may_vary}
        assert check_plan(policy_of("none"), **case).rule == rule
        case |= {"now_unix_s": NOW_UNIX_S, "task": task}
        assert check_task(policy_of("none"), **case).rule == rule
        case |= {"descriptor": descriptor, "silo_id": "silo-a", "layout": LAYOUT}
        assert check_descriptor(policy_of("none"), **case).rule == rule
        followed = check_followed(
            policy_of("none"),
            plan=plan,
            site=SITE,
            standing=Standing.OPEN,
            cohort_may_vary=may_vary,
        )
        assert followed.rule == rule
    # The file's word is for every run.
    assert rule_on_plan(policy_of("none", MAY_VARY), plan) == ACCEPTED


ADVISED = (
    "[secure_aggregation]",
    '[selection]\npolicy = "advised"\nranges.local_epochs = [1, 3]\n[secure_aggregation]',
)


def test_a_plan_that_asks_everybody_on_advice_needs_no_word():
    assert rule_on_plan(policy_of("none"), plan_of("none", ADVISED)) == ACCEPTED


@pytest.mark.parametrize(
    ("epochs", "rule"), [(0, ACCEPTED), (1, ACCEPTED), (3, ACCEPTED), (4, "task_epochs")]
)
def test_a_task_that_moves_local_epochs_stays_in_its_plans_range(epochs, rule):
    policy = policy_of("none")
    case = {"site": SITE, "now_unix_s": NOW_UNIX_S, "task": make_task(local_epochs=epochs)}
    assert check_task(policy, plan=plan_of("none", ADVISED), **case).rule == rule
    if epochs:
        # Without a range nothing may move.
        assert check_task(policy, plan=plan_of("none"), **case).rule == "task_epochs"


def test_the_most_local_epochs_are_those_of_the_range():
    for most, rule in ((2, "local_epochs"), (3, ACCEPTED)):
        limit = ("max_episodes_per_round", f"max_local_epochs = {most}\nmax_episodes_per_round")
        assert rule_on_plan(policy_of("none", limit), plan_of("none", ADVISED)) == rule


def test_who_has_to_approve_the_run_is_asked_for_that_word_first():
    """It stands beside the approval, so without one nothing is decided yet."""
    plan, policy = plan_of("none", CHOSEN, WORD), policy_of("none")
    for standing, may_vary, rule in (
        (Standing.PENDING, False, "approval_pending"),
        (Standing.APPROVED, False, "selection"),
        (Standing.APPROVED, True, ACCEPTED),
    ):
        decision = check_plan(
            policy, plan=plan, site=SITE, standing=standing, cohort_may_vary=may_vary
        )
        assert decision.rule == rule


@pytest.mark.parametrize("mode", NOISY)
def test_with_noise_a_choice_needs_no_word(mode):
    assert rule_on_plan(policy_of(mode), plan_of(mode, CHOSEN)) == ACCEPTED


def test_one_task_tried_many_times_is_a_thin_round_too():
    """Of all its tries one trajectory is kept: the floor is on tasks as well as on episodes."""
    plan = plan_of("none", ("tries_per_task = 4", "tries_per_task = 128"))
    decision = check_plan(policy_of("none"), plan=plan, site=SITE)
    assert (decision.rule, "1 tasks are below" in decision.detail) == ("thin_round", True)
    unnamed = policy_of("none", ("min_tasks_per_round = 32\n", ""))
    assert rule_on_plan(unnamed, plan) == "thin_round"


def test_a_plan_that_explores_nothing_is_the_thinnest_of_all():
    silent = plan_of("none", ("tries_per_task = 4", "tries_per_task = 4\nexplore = false"))
    assert rule_on_plan(policy_of("none"), silent) == "thin_round"


@pytest.mark.parametrize("mode", ["silo", "record_local", "record_distributed", "composed"])
def test_with_noise_a_policy_without_floors_goes_on_as_before(mode):
    plan = plan_of(mode, ("tries_per_task = 4", "tries_per_task = 128"))
    assert rule_on_plan(policy_of(mode), plan) == ACCEPTED
    floor = ("[limits]", "[limits]\nmin_tasks_per_round = 2")
    assert rule_on_plan(policy_of(mode, floor), plan) == "thin_round"


@pytest.mark.parametrize("mode", PLANS)
def test_a_silo_with_none_of_the_plans_environments_refuses_in_every_mode(mode):
    elsewhere = replace(SITE, environments={"babyai": None})
    decision = check_plan(policy_of(mode), plan=plan_of(mode), site=elsewhere)
    assert decision.rule == "environments_served"
    assert decision.public_reason == "this silo has none of the plan's environments"


def test_the_constant_method_is_about_no_environment_tasks_or_episodes():
    constant = ('method = "fed-se"', 'method = "constant"')
    plan = plan_of("none", constant, ('environments = ["craft", "maze"]\n', ""))
    methods = ('evolvers = ["fed-se"]', 'evolvers = ["constant"]')
    policy = policy_of("none", methods, ("min_episodes_per_round = 128\n", ""))
    nothing = replace(SITE, environments={})
    assert check_plan(policy, plan=plan, site=nothing).rule == ACCEPTED


def test_declared_tasks_are_held_against_each_environments_part_of_a_round():
    """128 episodes of 4 tries are 32 tasks: all of one environment, or 16 of each of two."""

    def rule(**environments):
        site = replace(SITE, environments=environments)
        return check_plan(policy_of("silo"), plan=plan_of("silo"), site=site).rule

    assert rule(craft=32) == rule(craft=16, maze=16) == rule(craft=None, babyai=1) == ACCEPTED
    assert rule(craft=31) == rule(craft=16, maze=15) == "declared_tasks"


LOOSER_SPECS = {
    "exact": ("clip_l2 = 2.0", "clip_l2 = 1.9"),
    "none": ("clip_l2 = 2.0", "clip_l2 = 1.9"),
    "silo": ("\nnoise_multiplier = 4.0", "\nnoise_multiplier = 4.5"),
    "record_local": ("sampling_rate = 0.25", "sampling_rate = 0.2"),
    "record_distributed": ("sampling_rate = 0.25", "sampling_rate = 0.2"),
    "composed": ("silo_noise_multiplier = 4.0", "silo_noise_multiplier = 4.5"),
}


@pytest.mark.parametrize("mode", PLANS)
def test_the_digest_of_another_privacy_spec_is_refused(mode):
    other = plan_of(mode, LOOSER_SPECS[mode]).spec.sha256()
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
    unit = protected_unit(plan_of(mode).spec)
    cap = "silo = 50.0" if unit == "silo" else "task = 40.0"
    assert rule_on_plan(policy_of(mode, (cap, f"{unit} = 0.5")), plan_of(mode)) == "run_above_cap"
    # A kind that is not named has no budget at all.
    assert rule_on_plan(policy_of(mode, (cap, f"{unit} = 0")), plan_of(mode)) == "run_above_cap"


def test_noise_for_the_silo_on_top_needs_a_budget_of_its_own():
    plan = plan_of("composed")
    costs = epsilon_of(charges_of_run(plan), 1e-5)
    # A user lies in the silo and pays with it; without a cap that is shown only.
    assert set(costs) == {"silo", "task", "user"}
    assert rule_on_plan(policy_of("composed"), plan) == ACCEPTED
    assert rule_on_plan(policy_of("composed", ("silo = 50.0", "silo = 0")), plan) == "run_above_cap"
    # Without that noise the silo's whole data set is not protected, and nothing is charged for it.
    alone = plan_of("record_local")
    no_silo = policy_of("record_local", ("silo = 50.0", "silo = 0"))
    assert rule_on_plan(no_silo, alone) == ACCEPTED


def test_a_kind_inside_the_protected_one_is_capped_only_where_it_is_named():
    plan = plan_of("silo")
    costs = epsilon_of(charges_of_run(plan), 1e-5)
    assert set(costs) == {"silo", "task", "user"}
    named = "silo = 50.0, task = 40.0"
    alone = policy_of("silo", (named, "silo = 50.0"))
    assert rule_on_plan(alone, plan) == ACCEPTED
    for unit in ("task", "user"):
        enough = policy_of("silo", (named, f"silo = 50.0, {unit} = {costs[unit] * 1.001}"))
        assert rule_on_plan(enough, plan) == ACCEPTED
        short = policy_of("silo", (named, f"silo = 50.0, {unit} = {costs[unit] * 0.999}"))
        assert rule_on_plan(short, plan) == "run_above_cap"


@pytest.mark.parametrize("mode", MODES)
def test_a_recipe_that_does_not_run_under_the_mode_is_refused_with_part_and_reason(mode):
    """Reading the plan refuses it before; whoever has one all the same is refused here."""
    plan = plan_of(mode)
    parts = PartsSection(gate=PartChoice(name="not-worse"))
    gated = plan.model_copy(update={"evolve": plan.evolve.model_copy(update={"parts": parts})})
    decision = check_plan(policy_of(mode), plan=gated, site=SITE)
    if mode not in RECORD_MODES:
        assert decision.rule == ACCEPTED
        return
    assert decision.rule == "evolver_dp_compat"
    assert "evolve.parts.gate: gate 'not-worse' couples 'all'" in decision.detail
    assert mode in decision.detail
    assert "not-worse" not in decision.public_reason
    assert "fed-se" not in decision.public_reason


EVOLVERS = 'evolvers = ["fed-se"]'
RATE = "max_sampling_rate = 0.25"
CARD = """
from federation.plan.methods import Couples, PartCard, Reads

CENTRED = PartCard(kind="credit", name="centred", code="centred_cards:Made", says="a part",
                   couples=Couples.TASK, reads=Reads.UNIT)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The module of an installed distribution that brings a credit."""
    info = tmp_path / "chorale_centred-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chorale-centred\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[chorale.parts]\ncentred = centred_cards:CENTRED\n")
    (info / "RECORD").write_text("centred_cards.py,,\n")
    module = tmp_path / "centred_cards.py"
    module.write_text(CARD)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield module
    sys.modules.pop("centred_cards", None)


@pytest.mark.parametrize("mode", MODES)
def test_a_part_of_a_package_runs_where_the_site_lists_it_and_at_record_level_has_read_it(
    mode, package
):
    plan = plan_of(mode)
    parts = PartsSection(credit=PartChoice(name="centred", package="chorale-centred"))
    plan = plan.model_copy(update={"evolve": plan.evolve.model_copy(update={"parts": parts})})
    listed = (EVOLVERS, f'{EVOLVERS}\npackages = ["chorale-centred"]')

    def pinned(digest):
        return policy_of(
            mode, listed, (RATE, f'{RATE}\nrecord_parts = {{ chorale-centred = "{digest}" }}')
        )

    refused = check_plan(policy_of(mode), plan=plan, site=SITE)
    assert (refused.rule, "chorale-centred" in refused.detail) == ("part_packages", True)
    assert "centred" not in refused.public_reason
    if mode not in RECORD_MODES:
        assert rule_on_plan(policy_of(mode, listed), plan) == ACCEPTED
        return
    unread = check_plan(policy_of(mode, listed), plan=plan, site=SITE)
    assert unread.rule == "evolver_dp_compat"
    assert package_sha256("chorale-centred") in unread.detail
    assert "centred" not in unread.public_reason
    assert rule_on_plan(pinned("0" * 64), plan) == "evolver_dp_compat"
    read = pinned(package_sha256("chorale-centred"))
    assert rule_on_plan(read, plan) == ACCEPTED
    package.write_text(CARD + "# another release\n")
    assert rule_on_plan(read, plan) == "evolver_dp_compat"


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


FLOOR = "max_episodes_per_round = 128"


def test_a_record_plan_must_hide_times_whatever_the_site_asks_for():
    for mode, line, rule in (
        ("record_local", "ready_after_s = 30", "ready_after"),
        ("record_distributed", "ready_after_s = 30", "ready_after"),
        ("record_distributed", "step_answer_after_s = 5", "step_answer_after"),
    ):
        assert rule_on_plan(policy_of(mode), plan_of(mode, (line, ""))) == rule
    early = policy_of("record_distributed", (FLOOR, f"{FLOOR}\nmin_step_answer_after_s = 6"))
    assert rule_on_plan(early, plan_of("record_distributed")) == "step_answer_after"
    assert rule_on_plan(policy_of("silo"), plan_of("silo")) == ACCEPTED


@pytest.mark.parametrize("mode", MODES)
def test_a_silo_that_was_late_leaves_the_record_modes_until_its_own_floor_is_higher(mode):
    """A plan that gives more time is not enough: trying plans would measure the work."""
    record = mode.startswith("record")
    patient = plan_of(mode, *([("ready_after_s = 30", "ready_after_s = 200")] if record else []))
    for floor, refused in ((0, record), (29, record), (30, record), (31, False)):
        policy = policy_of(mode, (FLOOR, f"{FLOOR}\nmin_ready_after_s = {floor * record}"))
        decision = check_plan(policy, plan=patient, site=SITE, passed=Passed(ready_after_s=30))
        assert (decision.rule == "time_passed") is refused
        assert decision.accepted is not refused
        assert "30" not in decision.public_reason
    steps = Passed(step_answer_after_s=5)
    decision = check_plan(policy_of(mode), plan=plan_of(mode), site=SITE, passed=steps)
    assert decision.accepted is not record
    # To follow a run to its end takes no time that could tell anything.
    if record:
        quick = plan_of(mode, ("ready_after_s = 30", ""))
        assert check_followed(
            policy_of(mode), plan=quick, site=SITE, standing=Standing.OPEN
        ).accepted
