"""The guardian: default deny, and each rule fires alone on an otherwise accepted request."""

from dataclasses import replace

import pytest

from federation.adapter.layout import Layout, TensorSpec
from federation.adapter.shapes import PRESETS
from federation.chain.groups import groups_of
from federation.chain.task import PASSING_REASONS
from federation.plan.tables import GroupsSection
from secagg.descriptor import AggregationId
from secagg.digest_tree import BLAKE3
from silo_agent.errors import PolicyFileError
from silo_agent.policy.approvals import Standing
from silo_agent.policy.descriptor import HALVES
from silo_agent.policy.document import Policy
from silo_agent.policy.policy import (
    ACCEPTED,
    RULE_NAMES,
    Decision,
    check_descriptor,
    check_plan,
    check_task,
)
from tests.kit.silo_agent.policy_samples import (
    ACCEPT_V1,
    BASE,
    COHORT,
    LAYOUT,
    MODES,
    NOW_UNIX_S,
    OLD_SUITE,
    POLICY,
    SITE,
    make_descriptor,
    make_plan,
    make_policy,
    make_task,
    mode_policy,
)

SHAPE = PRESETS["Qwen/Qwen2.5-0.5B"]
"""Of this silo's base model."""


def judge_task(policy=None, task=None, plan=None, now=NOW_UNIX_S, site=SITE) -> Decision:
    return check_task(
        policy or make_policy(),
        task=task or make_task(),
        plan=plan or make_plan(),
        site=site,
        now_unix_s=now,
    )


def judge(
    *, policy=None, descriptor=None, plan=None, layout=LAYOUT, site=SITE, task=None, may_vary=False
):
    plan = plan or make_plan()
    return check_descriptor(
        policy or make_policy(),
        descriptor=descriptor or make_descriptor(plan),
        silo_id="silo-a",
        plan=plan,
        site=site,
        layout=layout,
        now_unix_s=NOW_UNIX_S,
        task=task or make_task(),
        cohort_may_vary=may_vary,
    )


def test_what_the_policy_allows_is_accepted():
    expected = Decision(accepted=True, rule=ACCEPTED, public_reason="", detail="")
    assert check_plan(make_policy(), plan=make_plan(), site=SITE) == expected
    assert judge_task() == expected
    assert judge() == expected


def test_an_empty_policy_refuses_everything_for_many_reasons():
    empty = Policy.parse(b"")
    plan = make_plan()
    assert not check_plan(empty, plan=plan, site=SITE).accepted
    assert not judge_task(policy=empty).accepted
    assert not judge(policy=empty).accepted
    # Opening any one table is not enough.
    for table in POLICY.strip().split("\n["):
        opened = Policy.parse(("[" + table.removeprefix("[")).encode())
        assert not check_plan(opened, plan=plan, site=SITE).accepted, table


LOCAL_PARTS = ('method = "fed-se"', 'method = "fed-se"\nlocal_parts = true')
VETOES = [
    ("ready_deadline_s = 300", "ready_deadline_s = 300\nready_after_s = 60"),
    ("[rounds]", "[vetoes]\n[rounds]"),
]
PLAN_RULES = {
    "base_model_match": {"plan": [(BASE.hex(), "cd" * 32)]},
    "base_model_allowed": {"policy": [(BASE.hex(), "cd" * 32)]},
    "target": {"plan": [('dtype = "float32"', 'dtype = "float32"\ntarget = ["w_proj"]')]},
    "environments_allowed": {"policy": [('["craft", "maze"]', '["craft"]')]},
    "environments_served": {"site": {"babyai": None}},
    "evolver_allowed": {"policy": [('evolvers = ["fed-se"]', 'evolvers = ["constant"]')]},
    "own_parts": {
        "plan": [LOCAL_PARTS],
        "policy": [('evolvers = ["fed-se"]', 'evolvers = ["fed-se"]\nown_parts = ["not-worse"]')],
        "own": {"own_parts": ("hints", "not-worse")},
    },
    "vetoes": {"plan": VETOES, "own": {"guarded": True}},
    "aggregation_allowed": {"policy": [('["fedavg"]', '["rolora"]')]},
    "privacy_mode_allowed": {"policy": [('modes = ["silo"]', 'modes = ["none"]')]},
    "noise_multiplier": {"policy": [("min_noise_multiplier = 4.0", "min_noise_multiplier = 4.1")]},
    "clip": {"policy": [("max_clip_l2 = 2.0", "max_clip_l2 = 1.9")]},
    "epsilon_per_run": {"policy": [("per_run = 6.0", "per_run = 4.0")]},
    "run_above_cap": {"policy": [("silo = 50.0", "silo = 4.0")]},
    "survivors": {"policy": [("min_survivors = 3", "min_survivors = 4")]},
    "rounds": {"policy": [("max_rounds = 5", "max_rounds = 4")]},
    "local_epochs": {
        "policy": [("max_rounds = 5", "max_rounds = 5\nmax_local_epochs = 2")],
        "plan": [("tries_per_task = 4", "tries_per_task = 4\nlocal_epochs = 3")],
    },
    "episodes": {"policy": [("max_episodes_per_round = 128", "max_episodes_per_round = 127")]},
    "thin_round": {
        "policy": [
            ("max_episodes_per_round", "min_episodes_per_round = 129\nmax_episodes_per_round")
        ]
    },
    "declared_tasks": {"site": {"maze": 31}},
    "ready_after": {
        "policy": [
            ("max_episodes_per_round = 128", "max_episodes_per_round = 128\nmin_ready_after_s = 61")
        ],
        "plan": [("ready_deadline_s = 300", "ready_deadline_s = 300\nready_after_s = 60")],
    },
    "local_time": {
        "policy": [("max_rounds = 5", "max_rounds = 5\nmax_local_hours_per_round = 0.083")]
    },
    "disk": {
        "policy": [("max_rounds = 5", "max_rounds = 5\nmax_disk_bytes = 87000000")],
        "plan": [('base = "small"', 'base = "Qwen/Qwen2.5-0.5B-Instruct"')],
    },
}


def changed(rule):
    changes = PLAN_RULES[rule]
    site = replace(
        SITE,
        environments=changes.get("site", SITE.environments),
        shape=SHAPE,
        **changes.get("own", {}),
    )
    return make_plan(*changes.get("plan", ())), make_policy(*changes.get("policy", ())), site


@pytest.mark.parametrize("rule", PLAN_RULES)
def test_each_plan_rule_fires_alone_on_plans_tasks_and_descriptors(rule):
    plan, policy, site = changed(rule)
    assert check_plan(policy, plan=plan, site=site).rule == rule
    assert judge_task(policy=policy, plan=plan, site=site).rule == rule
    # The plan a descriptor names is judged again, whatever plan the task came with.
    descriptor = make_descriptor(make_plan())
    assert judge(policy=policy, plan=plan, descriptor=descriptor, site=site).rule == rule


def test_a_target_is_judged_by_what_the_base_model_has():
    named = ('dtype = "float32"', 'dtype = "float32"\ntarget = ["v_proj", "w_proj"]')
    plan, knows = make_plan(named), replace(SITE, shape=SHAPE)
    decision = check_plan(make_policy(), plan=plan, site=knows)
    assert decision.rule == "target"
    assert "names 'w_proj'" in decision.detail
    assert "q_proj, up_proj, v_proj" in decision.detail
    # Of an architecture that is not known the trainer says it; a published base is known by name.
    assert check_plan(make_policy(), plan=plan, site=SITE).accepted
    published = make_plan(named, ('base = "small"', 'base = "Qwen/Qwen2.5-0.5B"'))
    assert check_plan(make_policy(), plan=published, site=SITE).rule == "target"
    good = make_plan((named[0], 'dtype = "float32"\ntarget = ["v_proj"]'))
    assert check_plan(make_policy(), plan=good, site=knows).accepted


def test_metrics_noise_counts_as_noise():
    plan = make_plan(("metrics_noise_multiplier = 4.0", "metrics_noise_multiplier = 3.9"))
    assert judge_task(plan=plan).rule == "noise_multiplier"


TASK_RULES = {
    "suite": {"task": make_task(invited=())},
    "task_base_model": {"task": make_task(base_model_sha256=bytes(32))},
    "task_round": {"task": make_task(round=6)},
    "task_epochs": {"task": make_task(local_epochs=2)},
    "schedule": {"now": NOW_UNIX_S + 1800, "task": make_task(ready_deadline_unix_s=1_800_001_900)},
    "task_deadline": {"task": make_task(ready_deadline_unix_s=NOW_UNIX_S + 421)},
}


@pytest.mark.parametrize("rule", TASK_RULES)
def test_each_task_rule_fires_alone(rule):
    decision = judge_task(**TASK_RULES[rule])
    assert (decision.accepted, decision.rule) == (False, rule)


def test_a_task_for_a_step_that_its_plan_does_not_have_is_refused():
    assert judge_task(task=make_task(step=1)).rule == "task_round"
    plan, policy = make_plan(*MODES["record_distributed"]), mode_policy("record_distributed")
    assert judge_task(policy=policy, plan=plan, task=make_task(step=2)).accepted
    assert judge_task(policy=policy, plan=plan, task=make_task(step=3)).rule == "task_round"


def test_a_task_long_past_its_deadline_is_refused():
    late = make_task(ready_deadline_unix_s=NOW_UNIX_S - 120)
    assert judge_task(task=late).rule == "task_deadline"
    assert judge_task(task=make_task(ready_deadline_unix_s=NOW_UNIX_S - 119)).accepted


def test_a_deadline_may_be_anywhere_in_the_plans_range_and_limits_are_about_its_end():
    table = (
        '[selection]\npolicy = "random"\ncount = 4\n[selection.ranges]\n'
        "ready_deadline_s = [60, 600]\n[secure_aggregation]"
    )
    plan = make_plan(("[secure_aggregation]", table))
    for left_s, accepted in ((600, True), (720, True), (721, False)):
        task = make_task(ready_deadline_unix_s=NOW_UNIX_S + left_s)
        assert judge_task(plan=plan, task=task).accepted == accepted
    for hours, rule in (("0.17", ACCEPTED), ("0.16", "local_time")):
        limit = f"max_rounds = 5\nmax_local_hours_per_round = {hours}"
        policy = make_policy(("max_rounds = 5", limit))
        assert check_plan(policy, plan=plan, site=SITE).rule == rule


def test_a_window_may_run_past_midnight():
    policy = make_policy(("07:30-08:30", "22:00-08:01"))
    assert judge_task(policy=policy).accepted
    assert judge_task(policy=make_policy(("07:30-08:30", "22:00-08:00"))).rule == "schedule"


def descriptor_changes() -> dict[str, dict[str, object]]:
    honest = make_descriptor(make_plan())
    identity, metrics = honest.identity, honest.metrics
    wide = ("silo-a", "silo-b", "silo-c", "stranger")
    return {
        "descriptor_base_model": {"base_model_sha256": bytes(32)},
        "descriptor_round": {"identity": replace(identity, round=6)},
        "suite": OLD_SUITE,
        "digest": {"digest_id": BLAKE3},
        "plan_families": {"families": ("craft", "maze", "shop")},
        "round_task": {"task_sha256": bytes(32)},
        "sums": {"identity": replace(identity, part=64)},
        "attempts": {"identity": replace(identity, attempt=3)},
        "membership": {"cohort": ("silo-b", "silo-c", "silo-d")},
        "partners": {"cohort": wide},
        "cohort_size": {"cohort": COHORT[:3]},
        "colluding": {"colluding": 0},
        "threshold": {"threshold": 2},
        "descriptor_survivors": {"n_min": 2},
        "layout": {"layout_sha256": bytes(32)},
        "privacy_spec": {"privacy_spec_sha256": bytes(32)},
        "descriptor_clip": {"vector_clip": 1.0},
        "scale": {"scale": honest.scale / 2},
        "noise": {"noise_sigma": honest.noise_sigma * (1 - 1e-12)},
        "metrics_layout": {"metrics": replace(metrics, bounds=(4.0, 128.0, 127.0, 128.0, 128.0))},
        "metrics_noise": {"metrics": replace(metrics, sigma=metrics.sigma * (1 - 1e-12))},
        "deadlines": {"deadlines_unix_s": tuple(NOW_UNIX_S + 40 * k for k in range(1, 6))},
    }


WIDE_TASK = make_task(invited=(*COHORT, "stranger"))
"""One that invites a silo which is no partner of this one."""


def judge_changed(changes, **options):
    """The verdict on a descriptor of a task of its round that invites whoever is in it."""
    changed = make_descriptor(make_plan(), **changes)
    task = replace(WIDE_TASK, round=changed.identity.round)
    named = {"task_sha256": task.sha256, **changes}
    return judge(descriptor=make_descriptor(make_plan(), **named), task=task, **options)


@pytest.mark.parametrize("rule", descriptor_changes())
def test_each_descriptor_rule_fires_alone(rule):
    decision = judge_changed(descriptor_changes()[rule])
    assert (decision.accepted, decision.rule) == (False, rule)


def test_the_dimension_ceiling_fires_on_an_honest_descriptor():
    policy = make_policy(("max_dimension = 128", "max_dimension = 127"))
    assert judge(policy=policy).rule == "dimension"


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        (
            "sums",
            {"identity": AggregationId(run_id="run-1", round=2, step=1, part=0, attempt=1)},
        ),
        ("layout", {"dimension": 127}),
        ("descriptor_clip", {"unit_clip": 1.0}),
        ("descriptor_clip", {"max_units": 2}),
        ("noise", {"noise_mechanism": "none", "noise_sigma": 0.0}),
        ("noise", {"noise_mechanism": "gaussian"}),
        ("deadlines", {"deadlines_unix_s": tuple(NOW_UNIX_S - 120 + k for k in range(5))}),
        ("deadlines", {"deadlines_unix_s": tuple(NOW_UNIX_S + 167 + k for k in range(5))}),
    ],
)
def test_other_ways_to_break_a_descriptor(rule, change):
    assert judge(descriptor=make_descriptor(make_plan(), **change)).rule == rule


def metrics_changes():
    metrics = make_descriptor(make_plan()).metrics
    names = metrics.names
    return {
        "a coordinate of its own": {"names": (*names, "loss"), "bounds": (*metrics.bounds, 1.0)},
        "another order": {"names": (names[0], *names[3:], *names[1:3])},
        "no successes": {"names": names[:2], "bounds": metrics.bounds[:2]},
        "no norm": {"names": names[1:], "bounds": metrics.bounds[1:]},
        "a finer grid": {"grid": metrics.grid * 2},
        "nothing": {"names": (), "bounds": (), "grid": 0},
    }


@pytest.mark.parametrize("change", metrics_changes())
def test_a_metrics_block_that_is_not_the_plans_is_refused(change):
    metrics = replace(make_descriptor(make_plan()).metrics, **metrics_changes()[change])
    assert judge(descriptor=make_descriptor(make_plan(), metrics=metrics)).rule == "metrics_layout"


def test_more_noise_than_needed_is_accepted():
    honest = make_descriptor(make_plan())
    assert judge(
        descriptor=make_descriptor(make_plan(), noise_sigma=honest.noise_sigma * 1.5)
    ).accepted


def test_another_layout_than_the_trained_one_is_refused():
    other = Layout((TensorSpec(name="layer.lora_B.weight", shape=(8, 16)),))
    assert judge(layout=other).rule == "layout"


def test_mode_none_is_accepted_only_by_name_and_then_has_no_noise_to_check():
    plan = make_plan(*MODES["none"])
    assert judge_task(plan=plan).rule == "privacy_mode_allowed"
    # Nothing is charged, so no budget is asked for.
    policy = mode_policy("none", ("{ silo = 50.0, task = 40.0 }", "{}"))
    assert judge_task(policy=policy, plan=plan).accepted
    assert judge(policy=policy, plan=plan).accepted
    noisy = make_descriptor(plan, noise_sigma=100.0)
    assert judge(policy=policy, plan=plan, descriptor=noisy).rule == "noise"


def test_unlimited_epsilon_must_be_that_word():
    change = ("max_epsilon_per_run = 6.0", 'max_epsilon_per_run = "unlimited"')
    plan = make_plan(("count = 5", "count = 5000"))
    most = (
        ("max_rounds = 5", "max_rounds = 5000"),
        ("silo = 50.0", "silo = 1e6"),
        ("task = 40.0", "task = 1e6"),
    )
    assert judge_task(policy=make_policy(*most), plan=plan).rule == "epsilon_per_run"
    assert judge_task(policy=make_policy(*most, change), plan=plan).accepted
    with pytest.raises(PolicyFileError, match="max_epsilon_per_run"):
        make_policy(("max_epsilon_per_run = 6.0", 'max_epsilon_per_run = "infinite"'))


def test_without_a_partner_list_anyone_in_the_roster_may_join():
    policy = make_policy(('partners = ["silo-b", "silo-c", "silo-d"]\n', ""))
    wide = {"cohort": ("silo-a", "silo-b", "silo-c", "stranger")}
    assert judge_changed(wide, policy=policy).accepted


def test_public_reasons_are_fixed_texts_without_figures_or_names():
    reasons = set()
    for rule in PLAN_RULES:
        plan, policy, site = changed(rule)
        reasons.add(check_plan(policy, plan=plan, site=site).public_reason)
    for change in descriptor_changes().values():
        decision = judge_changed(change)
        assert decision.detail
        reasons.add(decision.public_reason)
    for reason in reasons:
        assert 0 < len(reason) <= 200
        assert not any(character.isdigit() for character in reason)
        assert not any(name in reason for name in (*COHORT, "stranger", "craft", "fed-se"))


OPERATOR = {
    "leaving": Standing.LEAVING,
    "refused_by_operator": Standing.REFUSED,
    "approval_pending": Standing.PENDING,
}


@pytest.mark.parametrize("rule", OPERATOR)
def test_what_the_operator_said_holds_for_plans_tasks_and_descriptors(rule):
    said = OPERATOR[rule]
    assert check_plan(make_policy(), plan=make_plan(), site=SITE, standing=said).rule == rule
    task = check_task(
        make_policy(),
        task=make_task(),
        plan=make_plan(),
        site=SITE,
        now_unix_s=NOW_UNIX_S,
        standing=said,
    )
    assert task.rule == rule
    descriptor = check_descriptor(
        make_policy(),
        descriptor=make_descriptor(make_plan()),
        silo_id="silo-a",
        plan=make_plan(),
        site=SITE,
        layout=LAYOUT,
        now_unix_s=NOW_UNIX_S,
        task=make_task(),
        standing=said,
    )
    assert descriptor.rule == rule


def test_nobody_is_asked_about_what_the_policy_refuses_and_a_refusal_by_hand_comes_first():
    narrow = make_policy(("max_rounds = 5", "max_rounds = 4"))
    for said, rule in (
        (Standing.PENDING, "rounds"),
        (Standing.REFUSED, "refused_by_operator"),
        (Standing.LEAVING, "leaving"),
        (Standing.APPROVED, "rounds"),
    ):
        decision = check_plan(narrow, plan=make_plan(), site=SITE, standing=said)
        assert decision.rule == rule
    approved = check_plan(make_policy(), plan=make_plan(), site=SITE, standing=Standing.APPROVED)
    assert approved.accepted


def test_only_a_pending_approval_may_pass_before_the_deadline():
    reasons = {
        rule: check_plan(make_policy(), plan=make_plan(), site=SITE, standing=said).public_reason
        for rule, said in OPERATOR.items()
    }
    assert reasons.pop("approval_pending") in PASSING_REASONS
    assert not PASSING_REASONS.intersection(reasons.values())
    assert not any(character.isdigit() for reason in reasons.values() for character in reason)


def test_a_machine_that_cannot_hold_the_plan_refuses_it_in_fixed_words():
    decision = check_plan(make_policy(), plan=make_plan(), site=SITE, unfit="it needs 40 GiB")
    assert (decision.rule, decision.detail) == ("hardware", "it needs 40 GiB")
    assert "40" not in decision.public_reason


def test_a_base_of_unknown_shape_is_not_judged_by_its_disk():
    tiny = make_policy(("max_rounds = 5", "max_rounds = 5\nmax_disk_bytes = 1"))
    assert check_plan(tiny, plan=make_plan(), site=SITE).accepted


def test_what_a_silo_chose_by_itself_is_asked_about_only_where_it_would_run():
    own = replace(SITE, own_parts=("hints", "not-worse"), guarded=True)
    listed = ('evolvers = ["fed-se"]', 'evolvers = ["fed-se"]\nown_parts = ["not-worse", "hints"]')
    vetoing = ("max_epsilon_per_run", "allow_vetoes = true\nmax_epsilon_per_run")
    # A plan without local_parts lets no silo choose, and one without [vetoes] asks no guard.
    assert check_plan(make_policy(), plan=make_plan(), site=own).accepted
    assert check_plan(make_policy(listed), plan=make_plan(LOCAL_PARTS), site=own).accepted
    assert check_plan(make_policy(vetoing), plan=make_plan(*VETOES), site=own).accepted
    # A silo that chose nothing and has no guard need not say anything.
    assert check_plan(make_policy(), plan=make_plan(LOCAL_PARTS, *VETOES), site=SITE).accepted


@pytest.mark.parametrize("rule", ["own_parts", "vetoes"])
def test_a_refusal_tells_the_operator_what_to_write_and_others_not_what_the_site_has(rule):
    plan, policy, site = changed(rule)
    decision = check_plan(policy, plan=plan, site=site)
    for said in {"own_parts": ("'hints'", "methods.own_parts", "silo.toml")}.get(
        rule, ("[guard]", "privacy.allow_vetoes", "silo.toml")
    ):
        assert said in decision.detail
    assert decision.public_reason == "this site's configuration and its policy do not agree"


def test_every_rule_has_a_test_that_makes_it_fire():
    # Those of the record level, and of no noise, are in silo_agent/policy/test_policy_modes.py.
    record = {"evolver_dp_compat", "part_packages", "record_units", "sampling_rate", "steps"}
    times = {"step_answer_after", "time_passed"}
    noiseless = {"no_privacy_accepted", "exact_figures", "selection"}
    # That of a rollback is in silo_agent/follow/test_rollback.py.
    other = {"dimension", "group", "hardware", "rollback_allowed", *OPERATOR}
    tested = {*PLAN_RULES, *TASK_RULES, *descriptor_changes(), *other, *record, *noiseless}
    tested |= times
    assert tested == set(RULE_NAMES)


# Suites, tasks and parts --------------------------------------------------------------------------


def test_a_run_of_suite_v1_is_refused_with_what_to_write_and_accepted_when_it_is_written():
    old_task = make_task(invited=())
    old = make_descriptor(make_plan(), **OLD_SUITE)
    for decision in (judge_task(task=old_task), judge(descriptor=old, task=old_task)):
        assert decision.rule == "suite"
        for said in ("not post-quantum", 'suites = ["v1", "v2"]', "accept_v1 = true", "restart"):
            assert said in decision.detail
    allowed = make_policy(ACCEPT_V1)
    assert judge_task(policy=allowed, task=old_task).accepted
    assert judge(policy=allowed, descriptor=old, task=old_task).accepted
    assert judge(policy=allowed).accepted


def test_listing_the_old_suite_is_not_enough():
    named = make_policy((ACCEPT_V1[0], ACCEPT_V1[1].replace("accept_v1 = true\n", "")))
    assert judge_task(policy=named, task=make_task(invited=())).rule == "suite"
    assert judge_task(policy=named).accepted


def test_a_site_of_the_old_suite_alone_refuses_the_new_one():
    only = make_policy((ACCEPT_V1[0], ACCEPT_V1[1].replace('"v1", "v2"', '"v1"')))
    decision = judge_task(policy=only)
    assert decision.rule == "suite"
    assert 'suites = ["v2"]' in decision.detail


def test_a_round_that_began_in_suite_v2_does_not_go_on_in_v1():
    old = make_descriptor(make_plan(), **OLD_SUITE)
    assert judge(policy=make_policy(ACCEPT_V1), descriptor=old).rule == "round_task"


def test_a_descriptor_belongs_to_the_task_that_was_verified_and_to_whom_it_invites():
    assert judge(task=make_task(ready_deadline_unix_s=1)).rule == "round_task"
    few = make_task(invited=COHORT[:3])
    named = make_descriptor(make_plan(), task_sha256=few.sha256)
    decision = judge(descriptor=named, task=few)
    assert decision.rule == "round_task"
    assert COHORT[3] in decision.detail
    assert COHORT[3] not in decision.public_reason


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        ({"run_id": "run-2"}, "run"),
        ({"round": 1}, "round"),
        ({"step": 1}, "step"),
        ({"plan_sha256": bytes(32)}, "plan"),
        ({"roster_sha256": bytes(32)}, "roster"),
        ({"adapter_sha256": bytes(32)}, "adapter"),
    ],
)
def test_a_descriptor_agrees_with_the_task_that_it_names(change, differing):
    other = make_task(**change)
    decision = judge(descriptor=make_descriptor(make_plan(), task_sha256=other.sha256), task=other)
    assert decision.rule == "round_task"
    assert f"the descriptor's {differing} is not" in decision.detail


def test_a_digest_that_the_site_lists_is_accepted():
    blake3 = make_descriptor(make_plan(), digest_id=BLAKE3)
    listed = ("[cohort]", '[secure_aggregation]\ndigests = ["sha256", "blake3"]\n[cohort]')
    assert judge(descriptor=blake3, policy=make_policy(listed)).accepted


@pytest.mark.parametrize(("mode", "allowed"), [("silo", True), ("none", False)])
def test_groups_of_a_round_are_parts_where_noise_hides_each_or_cohorts_may_vary(mode, allowed):
    plan, policy = make_plan(*MODES[mode]), mode_policy(mode)
    honest = make_descriptor(plan)
    part = replace(honest, identity=replace(honest.identity, part=1))
    aggregation = plan.aggregation.model_copy(update={"groups": GroupsSection(count=3)})
    grouped = plan.model_copy(update={"aggregation": aggregation})
    # The whole cohort is no group: where parts are allowed, that is what is wrong with it.
    rule = "group" if allowed else "sums"
    assert judge(plan=grouped, policy=policy, descriptor=part).rule == rule
    assert judge(plan=grouped, policy=policy, descriptor=part, may_vary=True).rule == "group"


@pytest.mark.parametrize(("mode", "part"), [("silo", HALVES), ("silo", 63), ("none", 1)])
@pytest.mark.parametrize("may_vary", [False, True])
def test_a_plan_without_groups_has_no_parts(mode, part, may_vary):
    plan, policy = make_plan(*MODES[mode]), mode_policy(mode)
    honest = make_descriptor(plan)
    beyond = replace(honest, identity=replace(honest.identity, part=part))
    options = {"plan": plan, "policy": policy, "may_vary": may_vary}
    assert judge(descriptor=beyond, **options).rule == "sums"
    assert judge(descriptor=honest, **options).accepted


def test_a_part_is_a_group_of_the_round_and_nobody_else_is_in_it():
    silos = tuple(sorted((*COHORT, *(f"silo-{letter}" for letter in "efghijkl"))))
    task = make_task(invited=silos)
    plan = make_plan()
    groups = GroupsSection(count=3)
    aggregation = plan.aggregation.model_copy(update={"groups": groups})
    grouped = plan.model_copy(update={"aggregation": aggregation})
    found = groups_of(
        silos,
        3,
        run_id=task.run_id,
        round_number=task.round,
        roster_sha256=task.roster_sha256,
    )
    mine = next(part for part, group in enumerate(found) if "silo-a" in group)
    policy = make_policy(
        *[(line, "") for line in POLICY.splitlines() if line.startswith("partners")]
    )

    def judged(part, cohort):
        identity = replace(make_descriptor(plan).identity, part=part)
        changes = {"identity": identity, "cohort": cohort, "task_sha256": task.sha256}
        descriptor = make_descriptor(plan, **changes)
        return judge(policy=policy, descriptor=descriptor, plan=grouped, task=task)

    assert judged(mine, found[mine]).accepted
    other = (mine + 1) % 3
    mixed = tuple(sorted({*found[mine][:3], "silo-a", found[other][0]}))
    for part, cohort in ((mine, mixed), (other, found[mine]), (3, found[mine])):
        decision = judged(part, cohort)
        assert decision.rule == "group"
        assert "silo-" not in decision.public_reason
