"""The rules of the guardian about a plan, and about the task of one round of it.

Invariant: a rule reads the policy, ``silo.toml``, the plan, the signed task and the clock, and
nothing else, so it cannot say anything about data.

A silo that has none of a plan's environments would upload zeros and count towards t and n_min all
the same, and the sum would be that of the others. That is configuration and no secret, so it
refuses in every mode (``environments_served``). That a silo finds nothing to contribute is data:
no rule sees it, and where there is no noise the sum shows the others (``no_privacy_accepted``).

ε here is that of the run alone, all its spare attempts made, from the plan and the site's δ.

Covered: which models, environments, methods and privacy a site accepts, and when.
Not covered: how much (``limits.py``), descriptors (``descriptor.py``), the operator's
own word and the order of everything (``policy.py``), what other runs have
spent (``dp.ledger.ledger``).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from dp.accounting.charge import UnitKind
from dp.accounting.compose import capped_kinds, epsilon_of
from dp.config import RECORD_MODES, Mode, PrivacySpec
from evolution.errors import EvolverSetupError
from evolution.package import package_sha256
from federation.adapter.shapes import shape_of
from federation.chain.task import CLOCKS_DISAGREE, OUTSIDE_HOURS, RoundTask
from federation.errors import TargetError
from federation.plan.charges import charged_steps, charges_of_run, protected_unit
from secagg import hybrid, suite
from silo_agent.policy.approvals import Standing
from silo_agent.policy.document import NO_PRIVACY, Policy
from silo_agent.policy.limits import LIMIT_RULES
from silo_agent.policy.rule import POLICY_DOES_NOT_ALLOW, PlanCase, Rule

__all__ = [
    "CLOCK_SKEW_S",
    "NOISE_RULE",
    "PLAN_RULES",
    "RUN_CAP_RULE",
    "RUN_EPSILON_RULE",
    "SCHEDULE_RULE",
    "SELECTION_RULE",
    "SUITE_REASON",
    "SUITE_RULE",
    "TARGET_RULE",
    "TASK_RULES",
    "TaskCase",
    "largest_clip",
    "least_noise_multiplier",
    "suite_problem",
]

CLOCK_SKEW_S = 120
"""Clocks of silo and coordinator may differ by this much."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCase(PlanCase):
    """A round task with the plan it names."""

    task: RoundTask
    """Verified: the coordinator signed it."""
    now_unix_s: int
    """This silo's clock."""


def least_noise_multiplier(spec: PrivacySpec) -> float:
    """The least z of everything that a plan adds noise to."""
    z = min(spec.noise_multiplier, spec.metrics_noise_multiplier)
    return min(z, spec.release.noise_multiplier) if _is_composed(spec) else z


def largest_clip(spec: PrivacySpec) -> float:
    """The largest clip of what noise hides; without noise for the silo a delta's hides nothing."""
    return max(spec.clip_l2, spec.release.clip_l2) if _is_composed(spec) else spec.clip_l2


def _is_composed(spec: PrivacySpec) -> bool:
    return spec.mode is Mode.RECORD_LOCAL and spec.release.noise_multiplier > 0.0


def _base_model_allowed(case: PlanCase) -> str | None:
    mine = case.site.base_sha256.hex()
    if mine not in case.policy.models.allowed:
        return f"models.allowed does not list this silo's base model {mine}"
    return None


def _base_model_match(case: PlanCase) -> str | None:
    mine = case.site.base_sha256.hex()
    if case.plan.model.base_sha256 != mine:
        return f"the plan is for base model {case.plan.model.base_sha256}, this silo has {mine}"
    return None


def _target(case: PlanCase) -> str | None:
    shape = case.site.shape or shape_of(case.plan.model.base)
    if shape is None or not case.plan.needs_tasks:
        return None
    try:
        shape.adapted(case.plan.model.target)
    except TargetError as error:
        return str(error)
    return None


def _environments_allowed(case: PlanCase) -> str | None:
    extra = set(case.plan.evolve.environments) - set(case.policy.environments.allowed)
    return f"environments.allowed does not list {', '.join(sorted(extra))}" if extra else None


def _environments_served(case: PlanCase) -> str | None:
    evolve = case.plan.evolve
    if not case.plan.needs_tasks:
        return None
    if set(evolve.environments).isdisjoint(case.site.environments):
        mine = ", ".join(sorted(case.site.environments)) or "nothing"
        return (
            f"the plan is about {', '.join(evolve.environments)}, silo.toml has {mine}: this silo "
            "would contribute zeros, and the sum would be that of fewer silos than it seems"
        )
    return None


def _evolver_allowed(case: PlanCase) -> str | None:
    method = case.plan.evolve.method
    return None if method in case.policy.methods.evolvers else f"methods.evolvers lacks {method!r}"


def _aggregation_allowed(case: PlanCase) -> str | None:
    method = case.plan.aggregation.method
    if method not in case.policy.methods.aggregation:
        return f"methods.aggregation lacks {method!r}"
    return None


def _privacy_mode_allowed(case: PlanCase) -> str | None:
    mode = case.plan.privacy.mode
    return None if mode in case.policy.privacy.modes else f"privacy.modes lacks {mode!r}"


def _no_privacy_accepted(case: PlanCase) -> str | None:
    accepted = case.policy.privacy.accept_no_privacy
    if Mode(case.plan.privacy.mode) is Mode.NONE and accepted != NO_PRIVACY:
        return f"mode 'none' needs this line in [privacy]: accept_no_privacy = \"{NO_PRIVACY}\""
    return None


def _exact_figures(case: PlanCase) -> str | None:
    if case.plan.privacy.exact_figures and not case.policy.privacy.allow_exact_figures:
        return (
            "the plan sums success and norms without noise, and privacy.allow_exact_figures is "
            "false: where one silo alone has some, they are told in clear"
        )
    return None


def _part_packages(case: PlanCase) -> str | None:
    for package in case.plan.recipe.packages:
        if package not in case.policy.methods.packages:
            return f"the plan has parts of {package!r}, and methods.packages lacks it"
    return None


def _own_parts(case: PlanCase) -> str | None:
    plan, listed = case.plan, case.policy.methods.own_parts
    if not (plan.evolve.local_parts and plan.recipe.parts):
        # Nothing of the silo's own would run: the method refuses it, or has no parts.
        return None
    extra = [name for name in case.site.own_parts if name not in listed]
    if extra:
        return (
            f"silo.toml chooses {extra[0]!r} by itself under [evolve], and methods.own_parts lacks "
            "it: list it there, or take it out of silo.toml"
        )
    return None


def _vetoes(case: PlanCase) -> str | None:
    if case.plan.vetoes is None or not case.site.guarded or case.policy.privacy.allow_vetoes:
        return None
    return (
        "the plan sums vetoes, which say under noise what this silo's [guard] found, and "
        "privacy.allow_vetoes is false: set it to true, or take [guard] out of silo.toml"
    )


def _evolver_dp_compat(case: PlanCase) -> str | None:
    plan, pinned = case.plan, case.policy.privacy.record_parts
    mode = Mode(plan.privacy.mode)
    refused = plan.recipe.refusals(mode, plan.privacy.unit)
    if refused:
        return refused[0]
    for package in plan.recipe.packages if mode in RECORD_MODES else ():
        try:
            found = package_sha256(package)
        except EvolverSetupError as error:
            return str(error)
        if pinned.get(package) != found:
            return (
                f"mode {mode.value!r} leaves it to {package!r} as well to keep units apart: read "
                f'what is installed, then write {package} = "{found}" under [privacy.record_parts]'
            )
    return None


def _record_units(case: PlanCase) -> str | None:
    spec = case.plan.spec
    if spec.record is not None and spec.unit not in case.policy.privacy.units:
        return f"privacy.units lacks {spec.unit!r}"
    return None


def _noise_multiplier(case: PlanCase) -> str | None:
    least = case.policy.privacy.min_noise_multiplier
    spec = case.plan.spec
    z = least_noise_multiplier(spec)
    # A mode without noise is a decision of its own, taken by listing it in privacy.modes.
    if spec.mode is not Mode.NONE and z < least:
        return f"noise multiplier {z:g} is below privacy.min_noise_multiplier {least:g}"
    return None


def _clip(case: PlanCase) -> str | None:
    clip, most = largest_clip(case.plan.spec), case.policy.privacy.max_clip_l2
    return f"clip {clip:g} is above privacy.max_clip_l2 {most:g}" if clip > most else None


def _sampling_rate(case: PlanCase) -> str | None:
    record, most = case.plan.spec.record, case.policy.privacy.max_sampling_rate
    if record is not None and record.sampling_rate > most:
        return f"sampling rate {record.sampling_rate:g} is above privacy.max_sampling_rate {most:g}"
    return None


def _steps(case: PlanCase) -> str | None:
    steps, most = charged_steps(case.plan), case.policy.privacy.max_steps_per_run
    if steps > most:
        return (
            f"{steps} noisy steps, spare attempts included, are above privacy.max_steps_per_run "
            f"{most}"
        )
    return None


def _epsilon_per_run(case: PlanCase) -> str | None:
    privacy = case.policy.privacy
    unit, most = protected_unit(case.plan.spec), privacy.max_epsilon_per_run
    # The one word it may be is "unlimited".
    if unit is None or isinstance(most, str):
        return None
    cost = epsilon_of(charges_of_run(case.plan), privacy.delta)[unit]
    if not cost <= most:
        return f"{_cost(case, unit, cost)}, above privacy.max_epsilon_per_run {most:g}"
    return None


def _run_above_cap(case: PlanCase) -> str | None:
    caps, charges = case.policy.privacy.caps(), charges_of_run(case.plan)
    costs = epsilon_of(charges, case.policy.privacy.delta)
    for unit in capped_kinds(charges, caps):
        cost = costs[unit]
        if unit not in caps:
            return f"privacy.epsilon_caps gives unit {unit!r} no budget, and the run charges it"
        if not cost <= caps[unit]:
            return f"{_cost(case, unit, cost)}, above privacy.epsilon_caps.{unit} {caps[unit]:g}"
    return None


def _cost(case: PlanCase, unit: UnitKind, cost: float) -> str:
    return (
        f"{case.plan.charged_releases} attempts cost unit {unit!r} epsilon {cost:.4g} at delta "
        f"{case.policy.privacy.delta:g}"
    )


def _selection(case: PlanCase) -> str | None:
    policy = case.plan.selection.policy
    if not case.plan.selection.varies or case.plan.spec.mode is not Mode.NONE:
        return None
    if case.policy.privacy.cohort_may_vary or case.cohort_may_vary:
        return None
    if case.standing is Standing.PENDING:
        # Whoever approves the run may say it for that run alone.
        return None
    return (
        f"each round of the plan asks other silos ({policy!r}), whose sums without noise can be "
        "subtracted: it needs cohort_may_vary = true in [privacy], or `chorale-silo approve RUN "
        "--cohort-may-vary` for one run"
    )


def _survivors(case: PlanCase) -> str | None:
    n_min, least = case.plan.secure_aggregation.n_min, case.policy.cohort.min_survivors
    return f"n_min {n_min} is below cohort.min_survivors {least}" if n_min < least else None


def _task_base_model(case: TaskCase) -> str | None:
    if case.task.base_model_sha256 != case.site.base_sha256:
        return f"the task names base model {case.task.base_model_sha256.hex()}"
    return None


def _task_round(case: TaskCase) -> str | None:
    if case.task.round > case.plan.rounds.count:
        return f"round {case.task.round} of a plan with {case.plan.rounds.count}"
    if case.task.step >= case.plan.sums_per_round:
        return f"step {case.task.step} of a round with {case.plan.sums_per_round}"
    return None


def _task_epochs(case: TaskCase) -> str | None:
    ranges, asked = case.plan.selection.ranges, case.task.local_epochs
    moves = None if ranges is None else ranges.local_epochs
    least, most = (0, 0) if moves is None else moves
    if asked and not least <= asked <= most:
        return f"{asked} local epochs, and the plan lets a round move them within [{least}, {most}]"
    return None


def _schedule(case: TaskCase) -> str | None:
    hours = case.policy.schedule.hours
    now = datetime.fromtimestamp(case.now_unix_s, tz=UTC).time()
    if hours is not None and not hours.contains(now):
        return f"{now:%H:%M} UTC is outside schedule.hours_utc {case.policy.schedule.hours_utc}"
    return None


def _task_deadline(case: TaskCase) -> str | None:
    left_s = case.task.ready_deadline_unix_s - case.now_unix_s
    planned_s = case.plan.longest_ready_s
    if not -CLOCK_SKEW_S < left_s <= planned_s + CLOCK_SKEW_S:
        return f"the deadline is {left_s} s away, the plan allows {planned_s} s"
    return None


def _suite(case: TaskCase) -> str | None:
    return suite_problem(case.policy, hybrid.SUITE if case.task.invited else suite.SUITE)


def suite_problem(policy: Policy, number: int) -> str | None:
    """Why a run of this suite is not accepted, and what to write if it should be."""
    if number in policy.secure_aggregation.accepted:
        return None
    if number == suite.SUITE:
        return (
            "this run is of suite v1 (not post-quantum): whoever records it can open it with a "
            'quantum computer one day. If this site accepts that, write suites = ["v1", "v2"] and '
            "accept_v1 = true under [secure_aggregation] in policy.toml and restart the silo; else "
            "ask the admin for a run of suite v2"
        )
    return (
        "this run is of suite v2 and secure_aggregation.suites does not list it: write "
        'suites = ["v2"] in policy.toml and restart the silo; `chorale-silo doctor` says whether '
        "this machine can"
    )


NOISE_RULE: Final = "noise_multiplier"
RUN_CAP_RULE: Final = "run_above_cap"
RUN_EPSILON_RULE: Final = "epsilon_per_run"
SCHEDULE_RULE: Final = "schedule"
SELECTION_RULE: Final = "selection"
SUITE_RULE: Final = "suite"
TARGET_RULE: Final = "target"
_NOT_AGREED: Final = "this site's configuration and its policy do not agree"
"""It says nothing of what the site has of its own."""
SUITE_REASON: Final = f"{POLICY_DOES_NOT_ALLOW} this suite of secure aggregation"

PLAN_RULES: tuple[Rule[PlanCase], ...] = (
    Rule(
        name="base_model_match",
        public_reason="this silo holds another base model",
        fires=_base_model_match,
    ),
    Rule(
        name="base_model_allowed",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} this base model",
        fires=_base_model_allowed,
    ),
    Rule(
        name=TARGET_RULE,
        public_reason="the plan's target names layers that the base model does not have",
        fires=_target,
    ),
    Rule(
        name="environments_allowed",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} an environment of the plan",
        fires=_environments_allowed,
    ),
    Rule(
        name="environments_served",
        public_reason="this silo has none of the plan's environments",
        fires=_environments_served,
    ),
    Rule(
        name="evolver_allowed",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} this evolution method",
        fires=_evolver_allowed,
    ),
    Rule(
        name="part_packages",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} a package of the plan's parts",
        fires=_part_packages,
    ),
    Rule(name="own_parts", public_reason=_NOT_AGREED, fires=_own_parts),
    Rule(
        name="aggregation_allowed",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} this aggregation method",
        fires=_aggregation_allowed,
    ),
    Rule(
        name="privacy_mode_allowed",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} this privacy mode",
        fires=_privacy_mode_allowed,
    ),
    Rule(
        name="no_privacy_accepted",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} a run without noise",
        fires=_no_privacy_accepted,
    ),
    Rule(
        name="exact_figures",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} figures without noise",
        fires=_exact_figures,
    ),
    Rule(name="vetoes", public_reason=_NOT_AGREED, fires=_vetoes),
    Rule(
        name=SELECTION_RULE,
        public_reason=f"{POLICY_DOES_NOT_ALLOW} other silos in each round without noise",
        fires=_selection,
    ),
    Rule(
        name="evolver_dp_compat",
        public_reason="this evolution method does not run under this privacy mode",
        fires=_evolver_dp_compat,
    ),
    Rule(
        name="record_units",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} this unit of privacy",
        fires=_record_units,
    ),
    Rule(
        name=NOISE_RULE,
        public_reason=f"{POLICY_DOES_NOT_ALLOW} so little noise",
        fires=_noise_multiplier,
    ),
    Rule(name="clip", public_reason=f"{POLICY_DOES_NOT_ALLOW} so large a clip", fires=_clip),
    Rule(
        name="sampling_rate",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} so large a sampling rate",
        fires=_sampling_rate,
    ),
    Rule(name="steps", public_reason=f"{POLICY_DOES_NOT_ALLOW} so many noisy steps", fires=_steps),
    Rule(
        name=RUN_EPSILON_RULE,
        public_reason=f"{POLICY_DOES_NOT_ALLOW} so large an epsilon for one run",
        fires=_epsilon_per_run,
    ),
    Rule(
        name=RUN_CAP_RULE,
        public_reason=f"{POLICY_DOES_NOT_ALLOW} an epsilon that this run alone would pass",
        fires=_run_above_cap,
    ),
    Rule(
        name="survivors", public_reason=f"{POLICY_DOES_NOT_ALLOW} so small a sum", fires=_survivors
    ),
    *LIMIT_RULES,
)

TASK_RULES: tuple[Rule[TaskCase], ...] = (
    Rule(name=SUITE_RULE, public_reason=SUITE_REASON, fires=_suite),
    *PLAN_RULES,
    Rule(
        name="task_base_model",
        public_reason="the task names another base model than its plan",
        fires=_task_base_model,
    ),
    Rule(
        name="task_round",
        public_reason="the task is for a round or step that its plan does not have",
        fires=_task_round,
    ),
    Rule(
        name="task_epochs",
        public_reason="the task moves local epochs out of its plan's range",
        fires=_task_epochs,
    ),
    Rule(name=SCHEDULE_RULE, public_reason=OUTSIDE_HOURS, fires=_schedule),
    Rule(
        name="task_deadline",
        public_reason=CLOCKS_DISAGREE,
        fires=_task_deadline,
    ),
)
