"""What a plan's tables ask of each other at record level: every refusal, with its key path."""

from __future__ import annotations

import math

import pytest

from dp.accounting.compose import epsilon_of
from federation.errors import PlanError
from federation.plan.charges import charges_of_run
from federation.plan.read import read_plan
from federation.plan.rules import problems_of_time
from tests.kit.paths import ROOT

EXAMPLES = ROOT / "deploy" / "examples"
LOCAL = (EXAMPLES / "plan-record-local.toml").read_text()
DISTRIBUTED = (EXAMPLES / "plan-record-distributed.toml").read_text()
DEMO = (EXAMPLES / "plan-demo-shards.toml").read_text()
ADAM = 'server_optimiser = "adam"\n'


def edited(base: str, *edits: tuple[str, str]) -> bytes:
    for old, new in edits:
        assert base.count(old) == 1, old
        base = base.replace(old, new)
    return base.encode()


def problems(base: str, *edits: tuple[str, str]) -> tuple[str, ...]:
    with pytest.raises(PlanError) as caught:
        read_plan(edited(base, *edits))
    return caught.value.problems


def without_record(base: str) -> tuple[str, str]:
    start = base.index("[privacy.record]")
    return base[start : base.index("[secure_aggregation]")], ""


def test_the_counts_of_a_run_follow_from_the_mode():
    local, distributed = (read_plan(text.encode()) for text in (LOCAL, DISTRIBUTED))
    assert (local.sums_per_round, local.releases, local.charged_releases) == (1, 10, 12)
    assert (distributed.sums_per_round, distributed.releases) == (16, 160)
    assert (distributed.charged_releases, distributed.first_steps) == (192, 12)
    assert local.first_steps == 12
    assert [distributed.is_last_step(step) for step in (0, 14, 15)] == [False, False, True]
    for plan in (local, distributed):
        assert (plan.tasks_per_round, plan.kept_rounds, plan.population_cap) == (256, 4, 1024)
    spare = read_plan(edited(DISTRIBUTED, ("count = 10", "count = 10\nspare_attempts = 7")))
    assert (spare.charged_releases, spare.first_steps) == (167, 17)


@pytest.mark.parametrize(("window", "kept"), [("0", 10), ("3", 3), ("99", 10)])
def test_a_silo_keeps_the_tasks_of_its_window(window, kept):
    fewer = ("sampling_rate = 0.0625", "sampling_rate = 0.02")
    plan = read_plan(edited(LOCAL, ("window = 4", f"window = {window}"), fewer))
    assert (plan.kept_rounds, plan.population_cap) == (kept, 256 * kept)


def test_without_exploration_there_is_no_population():
    plan = read_plan(edited(LOCAL, ("window = 4", "window = 0\nexplore = false")))
    assert (plan.tasks_per_round, plan.population_cap) == (0, 0)


def test_the_batch_covers_the_sampling_rate_of_the_largest_population():
    """q·N > B̄ would make B̄ no bound of the mean, and B_max none of the sum."""
    (problem,) = problems(LOCAL, ("expected_units = 64", "expected_units = 63"))
    assert problem.startswith("privacy.record.expected_units: 63 is less than sampling_rate 0.0625")
    assert "1024 tasks" in problem
    assert "raise it to 64" in problem
    (problem,) = problems(DISTRIBUTED, ("window = 4", "window = 0"))
    assert "kept for 10 rounds" in problem
    read_plan(edited(LOCAL, ("sampling_rate = 0.0625", "sampling_rate = 0.05")))


def test_a_rate_counts_as_it_is_written():
    """0.07 of 100 tasks is 7, although 0.07 * 100 is more in binary."""
    assert 0.07 * 100 > 7
    edits = (
        ("episodes_per_round = 1024", "episodes_per_round = 100"),
        ("sampling_rate = 0.0625", "sampling_rate = 0.07"),
    )
    read_plan(edited(LOCAL, *edits, ("expected_units = 64", "expected_units = 7")))
    (problem,) = problems(LOCAL, *edits, ("expected_units = 64", "expected_units = 6"))
    assert "raise it to 7" in problem


def test_the_constant_method_has_no_population():
    constant = ('method = "fed-se"', 'method = "constant"')
    read_plan(edited(LOCAL, constant, ("expected_units = 64", "expected_units = 20")))


@pytest.mark.parametrize("base", [LOCAL, DISTRIBUTED], ids=["local", "distributed"])
def test_record_modes_need_their_table_and_the_others_take_none(base):
    (problem,) = problems(base, without_record(base))
    assert problem.startswith("privacy.record: mode 'record_")
    assert "add this table" in problem
    table = "[privacy.record]\nsampling_rate = 0.1\nexpected_units = 9\nsteps_per_round = 2\n"
    for mode in ("silo", "none"):
        found = problems(
            DEMO,
            ('mode = "silo"', f'mode = "{mode}"'),
            ("[secure_aggregation]", f"{table}[secure_aggregation]"),
        )
        assert found[0].startswith(f"privacy.record: mode '{mode}' has no units")


def test_each_key_of_the_table_belongs_to_its_mode():
    (problem,) = problems(LOCAL, ("delta_clip_l2 = 2.0", ""))
    assert problem.startswith("privacy.record.delta_clip_l2: mode 'record_local' uploads a delta")
    step = "steps_per_round = 16"
    (problem,) = problems(DISTRIBUTED, (step, f"{step}\ndelta_clip_l2 = 1.0"))
    assert problem.startswith("privacy.record.delta_clip_l2: mode 'record_distributed' uploads")
    (problem,) = problems(DISTRIBUTED, (step, f"{step}\nsilo_noise_multiplier = 1.0"))
    assert problem.startswith("privacy.record.silo_noise_multiplier:")
    assert "nothing to learn" in problem
    read_plan(edited(LOCAL, (step, f"{step}\nsilo_noise_multiplier = 1.0")))
    (problem,) = problems(LOCAL, (step, f"{step}\nsilo_noise = 1.0"))
    assert problem.startswith("privacy.record.silo_noise: unknown key; the nearest valid key is")


def test_gradients_need_an_optimiser_and_deltas_take_none():
    (problem,) = problems(DISTRIBUTED, (ADAM, ""))
    assert problem.startswith("aggregation.server_optimiser: mode 'record_distributed' sums grad")
    assert "'sgd' or 'adam'" in problem
    read_plan(edited(DISTRIBUTED, (ADAM, 'server_optimiser = "sgd"\n')))
    for base, anchor in ((LOCAL, 'method = "ffa"'), (DEMO, "server_step = 1.0")):
        for name in ("adam", "sgd"):
            (problem,) = problems(base, (anchor, f'{anchor}\nserver_optimiser = "{name}"'))
            assert problem.startswith("aggregation.server_optimiser: mode ")
            assert "sums deltas" in problem
            assert "'fedavg', 'fedavgm'" in problem
            assert "'adam'," not in problem.partition("use one of")[2]
    for name in ("fedavg", "fedadam"):
        (problem,) = problems(
            DISTRIBUTED,
            (ADAM, f'server_optimiser = "{name}"\n'),
            ("gauge = true", "gauge = false"),
            ('method = "rolora"', 'method = "ffa"'),
        )
        assert "sums gradients" in problem


def test_figures_are_exact_only_where_nothing_has_noise():
    for base in (LOCAL, DISTRIBUTED, DEMO):
        (problem,) = problems(base, ("\ndelta = 1e-5", "\ndelta = 1e-5\nexact_figures = true"))
        assert problem.startswith("privacy.exact_figures: in mode ")
        quiet = read_plan(edited(base))
        assert quiet.has_figures
        assert not quiet.privacy.exact_figures


def test_a_schedule_belongs_to_free_local_training():
    term = ("tries_per_task = 4", 'tries_per_task = 4\nlearning_rate_schedule = "cosine"')
    for base in (LOCAL, DISTRIBUTED):
        (problem,) = problems(base, term)
        assert problem.startswith("evolve.learning_rate_schedule: in mode 'record_")
    assert read_plan(edited(DEMO, term)).evolve.learning_rate_schedule == "cosine"
    (problem,) = problems(DEMO, (term[0], f'{term[0]}\nlearning_rate_schedule = "linear"'))
    assert problem.startswith("evolve.learning_rate_schedule:")


def test_a_proximal_term_belongs_to_free_local_training():
    term = ("tries_per_task = 4", "tries_per_task = 4\nproximal_mu = 0.1")
    for base in (LOCAL, DISTRIBUTED):
        (problem,) = problems(base, term)
        assert problem.startswith("evolve.proximal_mu: in mode 'record_")
        assert "has no proximal term" in problem
        read_plan(edited(base, (term[0], f"{term[0]}\nproximal_mu = 0.0")))
    assert read_plan(edited(DEMO, term)).evolve.proximal_mu == 0.1
    for bad in ("-0.1", "inf", "nan", "1e7"):
        (problem,) = problems(DEMO, (term[0], f"{term[0]}\nproximal_mu = {bad}"))
        assert problem.startswith("evolve.proximal_mu:")


def test_personal_factors_exclude_the_record_level_modes():
    (problem,) = problems(LOCAL, ('method = "ffa"', 'method = "fedsa"'))
    assert problem.startswith("aggregation.method: method 'fedsa' trains a personal B")
    read_plan(edited(DEMO, ('method = "fedavg"', 'method = "fedsa"')))
    read_plan(edited(LOCAL, ('method = "ffa"', 'method = "fedsvd"')))


def test_the_gauge_is_excluded_by_a_frozen_factor():
    (problem,) = problems(LOCAL, ('method = "ffa"', 'method = "ffa"\ngauge = true'))
    assert problem.startswith("aggregation.gauge: method 'ffa' keeps A")
    # With the optimiser's state reset at every round, the gauge between rounds is no contradiction.
    assert read_plan(DISTRIBUTED.encode()).aggregation.gauge


def test_a_sum_of_units_must_fit_the_ring():
    """Ten silos, 128 units each: n·B_max·(Δ+1) bounds the grid; the smallest cohort is checked."""
    (problem,) = problems(DISTRIBUTED, ("grid = 1_048_576", "grid = 2_400_000"))
    assert problem.startswith("privacy.grid: a sum of 7 x 128 vectors")
    assert "B_max is 128" in problem
    # In record_local a delta is summed, and the units of one silo before it.
    read_plan(edited(LOCAL, ("min_cosine = 0.5", "min_cosine = 0.5\ngrid = 8_000_000")))
    (problem,) = problems(LOCAL, ("min_cosine = 0.5", "min_cosine = 0.5\ngrid = 16_777_216"))
    assert problem.startswith("privacy.grid: a sum of 1 x 128 vectors")


def test_a_batch_that_may_overflow_too_often_uses_up_delta():
    """B̄ = 1: B_max = 9 is passed with probability 1e-6 in each of 192 steps, more than δ = 1e-5."""
    (problem,) = problems(
        LOCAL,
        ("sampling_rate = 0.0625", "sampling_rate = 0.0009"),
        ("expected_units = 64", "expected_units = 1"),
    )
    assert problem.startswith("privacy.record.expected_units: the steps of this run sample more")
    assert "delta = 1e-05" in problem


def test_a_run_has_no_more_aggregations_than_a_chain_may_have_records():
    """In record_local steps are local and cost no record."""
    steps = ("steps_per_round = 16", "steps_per_round = 1001")
    (problem,) = problems(DISTRIBUTED, steps)
    assert problem.startswith("privacy.record.steps_per_round: 10 rounds of 1001 steps are 10010")
    assert read_plan(edited(DISTRIBUTED, (steps[0], "steps_per_round = 1000"))).releases == 10_000
    assert read_plan(edited(LOCAL, steps)).releases == 10


def test_noise_may_not_be_left_out_at_record_level():
    (problem,) = problems(LOCAL, ("\nnoise_multiplier = 0.95", "\nnoise_multiplier = 0.0"))
    assert problem.startswith("privacy: ")


@pytest.mark.parametrize("base", [LOCAL, DEMO], ids=["record", "silo"])
def test_packing_is_refused_with_the_reason(base):
    anchor = "tries_per_task = 4"
    read_plan(edited(base, (anchor, f"{anchor}\npacking = false")))
    (problem,) = problems(base, (anchor, f"{anchor}\npacking = true"))
    assert problem.startswith("evolve.packing: packing is not available")
    assert "mix units" in problem


@pytest.mark.parametrize("name", ["bandit", "regret", "replay", "greedy"])
def test_the_key_that_once_said_how_tasks_are_drawn_says_uniform_alone(name):
    """Other samplers are parts; which of them run is in test_recipe.py."""
    anchor = "tries_per_task = 4"
    read_plan(edited(LOCAL, (anchor, f'{anchor}\ntask_sampling = "uniform"')))
    (problem,) = problems(LOCAL, (anchor, f'{anchor}\ntask_sampling = "{name}"'))
    assert problem.startswith("evolve.task_sampling:")
    assert "'uniform'" in problem


def test_noise_too_small_to_protect_costs_without_end_and_without_a_failure():
    """Who judges a plan that was read computes its cost, also what it costs the units inside."""
    silo = (EXAMPLES / "plan-silo-dp.toml").read_text()
    z = next(line for line in silo.splitlines() if line.startswith("noise_multiplier"))
    plan = read_plan(edited(silo, ("\n" + z, "\nnoise_multiplier = 5e-324")))
    assert set(epsilon_of(charges_of_run(plan), plan.spec.delta).values()) == {math.inf}


def test_problems_between_tables_are_reported_together():
    found = problems(
        DISTRIBUTED,
        (ADAM, ""),
        ("expected_units = 64", "expected_units = 9\nsilo_noise_multiplier = 1.0"),
    )
    assert [problem.split(":")[0] for problem in found] == [
        "aggregation.server_optimiser",
        "privacy.record.silo_noise_multiplier",
        "privacy.record.expected_units",
    ]


READY, STEP = "\nready_after_s = 900", "\nstep_answer_after_s = 60"


def test_a_plan_that_ran_before_times_were_asked_for_is_read_and_none_is_started():
    for text, gone, missing in (
        (LOCAL, (READY,), ("ready_after_s",)),
        (DISTRIBUTED, (READY, STEP), ("ready_after_s", "step_answer_after_s")),
        (DISTRIBUTED, (STEP,), ("step_answer_after_s",)),
        (DISTRIBUTED, (), ()),
        (DEMO, (), ()),
    ):
        plan = read_plan(edited(text, *((line, "") for line in gone)))
        found = problems_of_time(plan)
        assert [problem.split(":")[0] for problem in found] == [f"rounds.{key}" for key in missing]
        assert all("--dry-round" in problem for problem in found)


def test_a_step_is_answered_before_its_phase_ends_and_only_where_steps_are():
    (problem,) = problems(DISTRIBUTED, (STEP, "\nstep_answer_after_s = 120"))
    assert problem.startswith("rounds: step_answer_after_s = 120 leaves no time")
    (problem,) = problems(LOCAL, (READY, f"{READY}\nstep_answer_after_s = 5"))
    assert problem.startswith("rounds.step_answer_after_s: in mode 'record_local' no step")


# Groups -------------------------------------------------------------------------------------------

SILO = (EXAMPLES / "plan-silo-dp.toml").read_text()
FEDAVG = ('method = "rolora"\ngauge = true', 'method = "fedavg"')
GROUPED = ("[privacy]\n", "[aggregation.groups]\ncount = 5\nbyzantine = 2\n\n[privacy]\n")


def test_a_plan_may_ask_for_groups():
    plan = read_plan(edited(SILO, FEDAVG, GROUPED))
    assert (plan.groups, plan.least_groups) == (5, 5)
    assert plan.aggregation.groups.rule == "median"
    bare = read_plan(SILO.encode())
    assert (bare.groups, bare.least_groups) == (1, 1)


def test_groups_that_cannot_outvote_are_refused():
    (problem,) = problems(SILO, FEDAVG, GROUPED, ("count = 5\n", "count = 4\n"))
    assert problem.startswith("aggregation.groups: 4 groups cannot outvote 2")
    assert "use 5 groups or more" in problem


def test_groups_of_a_method_that_they_are_not_defined_for_are_refused():
    (problem,) = problems(SILO, GROUPED)
    assert problem.startswith("aggregation.groups: method 'rolora'")
    other = ('method = "fedavg"', 'method = "fedavg"\nserver_optimiser = "fedadam"')
    (problem,) = problems(SILO, FEDAVG, other, GROUPED)
    assert problem.startswith("aggregation.groups: server_optimiser 'fedadam'")


def test_groups_without_noise_are_refused():
    bare = (EXAMPLES / "plan-constant.toml").read_text()
    (problem,) = problems(bare, GROUPED)
    assert problem.startswith("aggregation.groups: each round has other groups, and without noise")


def test_each_group_has_to_be_a_cohort_of_its_own():
    few = ("n_min = 160", "n_min = 8")
    plan = read_plan(edited(SILO, FEDAVG, GROUPED, few))
    plan.require_cohort(45, 2)
    with pytest.raises(PlanError) as caught:
        plan.require_cohort(44, 2)
    first, second = caught.value.problems
    assert first.startswith("aggregation.groups.count: 44 silos in 5 groups leave 8")
    assert second.startswith("in a group of 8: rounds.quorum: a round opens with 9 ready silos")


def test_groups_of_steps_are_refused():
    found = problems(DISTRIBUTED, GROUPED)
    assert any("in mode 'record_distributed' each step is a sum" in problem for problem in found)
