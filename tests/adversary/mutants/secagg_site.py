"""Mutants of what a silo's guardian asks of a plan before anything is explored."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

PLAN_RULES = "silo_agent/policy/plan.py"
LIMITS = "silo_agent/policy/limits.py"
SUMS = "federation/chain/sums.py"
RESULT = "silo_agent/local_work/result.py"
WORK = "silo_agent/local_work/work.py"

_POLICY = "tests/silo_agent/policy/test_policy.py::"
_SCENARIO = "tests/lab/demo/test_scenario.py::"
_SUMS = "tests/federation/chain/test_sums.py::"
_RULES = (_POLICY + "test_each_plan_rule_fires_alone_on_plans_tasks_and_descriptors",)
_MODES = "tests/silo_agent/policy/test_policy_modes.py::"
_CHARGE = "tests/silo_agent/local_work/test_work_charge.py::"
_NOISELESS = (_MODES + "test_a_run_without_noise_needs_more_than_the_modes_name",)

MUTANTS = (
    Mutant(
        name="environments-served",
        disables="a silo with none of the plan's environments refuses",
        file=PLAN_RULES,
        old="if set(evolve.environments).isdisjoint(case.site.environments):",
        new="if not case.site.environments:",
        tests=(
            _MODES + "test_a_silo_with_none_of_the_plans_environments_refuses_in_every_mode",
            _SCENARIO + "test_a_plan_that_one_silo_alone_can_serve_is_refused_by_all_others",
        ),
    ),
    Mutant(
        name="no-privacy-sentence",
        disables="the sentence that accepts a run without noise",
        file=PLAN_RULES,
        old="if Mode(case.plan.privacy.mode) is Mode.NONE and accepted != NO_PRIVACY:",
        new="if accepted is not None and accepted != NO_PRIVACY:",
        tests=_NOISELESS,
    ),
    Mutant(
        name="exact-figures-allowed",
        disables="figures without noise only where the site allows them",
        file=PLAN_RULES,
        old="exact_figures and not case.policy.privacy.allow_exact_figures:",
        new="exact_figures and not case.policy.privacy.modes:",
        tests=_NOISELESS,
    ),
    Mutant(
        name="exact-figures-asked-for",
        disables="no figures without noise unless the plan asks for them",
        file=SUMS,
        old="    if not plan.has_figures:\n        return MetricsNames(names=(), bounds=())\n",
        new="",
        tests=(
            _MODES + "test_figures_that_a_plan_without_noise_does_not_ask_for_are_refused",
            _SUMS + "test_without_noise_there_are_no_coordinates_unless_the_plan_asks_for_them",
        ),
    ),
    Mutant(
        name="episodes-floor",
        disables="the floor on a round's episodes",
        file=LIMITS,
        old='        ("episodes", episodes, limits.min_episodes_per_round),\n',
        new="",
        tests=_RULES,
    ),
    Mutant(
        name="tasks-floor",
        disables="the floor on a round's tasks, however often each is tried",
        file=LIMITS,
        old='        ("tasks", case.plan.tasks_per_round, limits.min_tasks_per_round),\n',
        new="",
        tests=(_MODES + "test_one_task_tried_many_times_is_a_thin_round_too",),
    ),
    Mutant(
        name="floor-named",
        disables="a floor has to be named where there is no noise",
        file=LIMITS,
        old="if least is None and Mode(case.plan.privacy.mode) is Mode.NONE:",
        new="if least is None and not case.policy.privacy.modes:",
        tests=_NOISELESS,
    ),
    Mutant(
        name="declared-tasks",
        disables="no more tasks of an environment than the operator declares",
        file=LIMITS,
        old="if declared is not None and needed > declared:",
        new="if declared is not None and needed < 0:",
        tests=_RULES,
    ),
    Mutant(
        name="set-up-refuses",
        disables="a method that cannot be set up refuses in every mode, instead of sending zeros",
        file=RESULT,
        old="    public = True\n",
        new="    public = mode in RECORD_MODES\n",
        tests=(
            _CHARGE
            + "test_a_configuration_that_cannot_run_is_refused_in_every_mode_and_costs_nothing",
        ),
    ),
    Mutant(
        name="called-off",
        disables="a round that is over before exploring begins is not charged",
        file=WORK,
        old="            if self._called_off != key:\n",
        new="            if key:\n",
        tests=(_CHARGE + "test_a_round_that_is_over_before_exploring_begins_is_not_charged",),
    ),
)
