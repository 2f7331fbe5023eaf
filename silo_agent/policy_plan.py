"""The rules of the guardian about a plan, and about the task of one round of it.

Invariant: a rule reads the policy, the plan, the signed task and the clock, and nothing else, so it
cannot say anything about data.

Covered: which models, environments, methods and privacy a site accepts, how much and when.
Not covered: descriptors (``policy_descriptor.py``), the order of everything (``policy.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from dp.config import Mode
from dp.errors import PrivacyError
from dp.rdp import epsilon, rdp_gaussian
from federation.plan import Plan
from federation.task import CLOCKS_DISAGREE, OUTSIDE_HOURS, RoundTask
from silo_agent.policy_document import Policy

__all__ = ["CLOCK_SKEW_S", "PLAN_RULES", "TASK_RULES", "PlanCase", "Rule", "TaskCase"]

CLOCK_SKEW_S = 120
"""Clocks of silo and coordinator may differ by this much."""
_POLICY = "the site's policy does not allow"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanCase:
    """A plan before the site's policy."""

    policy: Policy
    """The site's."""
    plan: Plan
    """What is asked for."""
    base_sha256: bytes
    """Digest of the base model that this silo holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCase(PlanCase):
    """A round task with the plan it names."""

    task: RoundTask
    """Verified: the coordinator signed it."""
    now_unix_s: int
    """This silo's clock."""


CaseT_contra = TypeVar("CaseT_contra", bound=PlanCase, contravariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule(Generic[CaseT_contra]):
    """One reason to refuse."""

    name: str
    """What logs and metrics call it."""
    public_reason: str
    """A fixed text: all that a refusal says outside."""
    fires: Callable[[CaseT_contra], str | None]
    """What is wrong, for the silo's own log, or None."""


def _base_model_allowed(case: PlanCase) -> str | None:
    mine = case.base_sha256.hex()
    if mine not in case.policy.models.allowed:
        return f"models.allowed does not list this silo's base model {mine}"
    return None


def _base_model_match(case: PlanCase) -> str | None:
    mine = case.base_sha256.hex()
    if case.plan.model.base_sha256 != mine:
        return f"the plan is for base model {case.plan.model.base_sha256}, this silo has {mine}"
    return None


def _environments_allowed(case: PlanCase) -> str | None:
    extra = set(case.plan.evolve.environments) - set(case.policy.environments.allowed)
    return f"environments.allowed does not list {', '.join(sorted(extra))}" if extra else None


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


def _privacy_mode_available(case: PlanCase) -> str | None:
    try:
        case.plan.privacy_spec().require_supported()
    except PrivacyError as error:
        return str(error)
    return None


def _noise_multiplier(case: PlanCase) -> str | None:
    least = case.policy.privacy.min_noise_multiplier
    spec = case.plan.privacy_spec()
    z = min(spec.noise_multiplier, spec.metrics_noise_multiplier)
    # A mode without noise is a decision of its own, taken by listing it in privacy.modes.
    if spec.mode is not Mode.NONE and z < least:
        return f"noise multiplier {z:g} is below privacy.min_noise_multiplier {least:g}"
    return None


def _clip(case: PlanCase) -> str | None:
    clip, most = case.plan.privacy.clip_l2, case.policy.privacy.max_clip_l2
    return f"clip {clip:g} is above privacy.max_clip_l2 {most:g}" if clip > most else None


def _epsilon_per_run(case: PlanCase) -> str | None:
    privacy = case.policy.privacy
    spec = case.plan.privacy_spec()
    most = privacy.max_epsilon_per_run
    # The one word it may be is "unlimited".
    if spec.mode is Mode.NONE or isinstance(most, str):
        return None
    attempts = case.plan.rounds.charged_attempts
    cost = epsilon(rdp_gaussian(spec.joint_noise_multiplier, attempts), privacy.delta)
    if not cost <= most:
        return (
            f"{attempts} attempts cost epsilon {cost:.4g} at delta {privacy.delta:g}, above "
            f"privacy.max_epsilon_per_run {most:g}"
        )
    return None


def _survivors(case: PlanCase) -> str | None:
    n_min, least = case.plan.secure_aggregation.n_min, case.policy.cohort.min_survivors
    return f"n_min {n_min} is below cohort.min_survivors {least}" if n_min < least else None


def _rounds(case: PlanCase) -> str | None:
    count, most = case.plan.rounds.count, case.policy.limits.max_rounds
    return f"{count} rounds are above limits.max_rounds {most}" if count > most else None


def _episodes(case: PlanCase) -> str | None:
    count, most = case.plan.evolve.episodes_per_round, case.policy.limits.max_episodes_per_round
    if count > most:
        return f"{count} episodes are above limits.max_episodes_per_round {most}"
    return None


def _task_base_model(case: TaskCase) -> str | None:
    if case.task.base_model_sha256 != case.base_sha256:
        return f"the task names base model {case.task.base_model_sha256.hex()}"
    return None


def _task_round(case: TaskCase) -> str | None:
    if case.task.round > case.plan.rounds.count:
        return f"round {case.task.round} of a plan with {case.plan.rounds.count}"
    return None


def _schedule(case: TaskCase) -> str | None:
    hours = case.policy.schedule.hours
    now = datetime.fromtimestamp(case.now_unix_s, tz=UTC).time()
    if hours is not None and not hours.contains(now):
        return f"{now:%H:%M} UTC is outside schedule.hours_utc {case.policy.schedule.hours_utc}"
    return None


def _task_deadline(case: TaskCase) -> str | None:
    left_s = case.task.ready_deadline_unix_s - case.now_unix_s
    planned_s = case.plan.rounds.ready_deadline_s
    if not -CLOCK_SKEW_S < left_s <= planned_s + CLOCK_SKEW_S:
        return f"the deadline is {left_s} s away, the plan allows {planned_s} s"
    return None


PLAN_RULES: tuple[Rule[PlanCase], ...] = (
    Rule(
        name="base_model_match",
        public_reason="this silo holds another base model",
        fires=_base_model_match,
    ),
    Rule(
        name="base_model_allowed",
        public_reason=f"{_POLICY} this base model",
        fires=_base_model_allowed,
    ),
    Rule(
        name="environments_allowed",
        public_reason=f"{_POLICY} an environment of the plan",
        fires=_environments_allowed,
    ),
    Rule(
        name="evolver_allowed",
        public_reason=f"{_POLICY} this evolution method",
        fires=_evolver_allowed,
    ),
    Rule(
        name="aggregation_allowed",
        public_reason=f"{_POLICY} this aggregation method",
        fires=_aggregation_allowed,
    ),
    Rule(
        name="privacy_mode_allowed",
        public_reason=f"{_POLICY} this privacy mode",
        fires=_privacy_mode_allowed,
    ),
    Rule(
        name="privacy_mode_available",
        public_reason="this privacy mode is not available here",
        fires=_privacy_mode_available,
    ),
    Rule(
        name="noise_multiplier",
        public_reason=f"{_POLICY} so little noise",
        fires=_noise_multiplier,
    ),
    Rule(name="clip", public_reason=f"{_POLICY} so large a clip", fires=_clip),
    Rule(
        name="epsilon_per_run",
        public_reason=f"{_POLICY} so large an epsilon for one run",
        fires=_epsilon_per_run,
    ),
    Rule(name="survivors", public_reason=f"{_POLICY} so small a sum", fires=_survivors),
    Rule(name="rounds", public_reason=f"{_POLICY} so many rounds", fires=_rounds),
    Rule(name="episodes", public_reason=f"{_POLICY} so many episodes", fires=_episodes),
)

TASK_RULES: tuple[Rule[TaskCase], ...] = (
    *PLAN_RULES,
    Rule(
        name="task_base_model",
        public_reason="the task names another base model than its plan",
        fires=_task_base_model,
    ),
    Rule(
        name="task_round",
        public_reason="the task is for a round that its plan does not have",
        fires=_task_round,
    ),
    Rule(name="schedule", public_reason=OUTSIDE_HOURS, fires=_schedule),
    Rule(
        name="task_deadline",
        public_reason=CLOCKS_DISAGREE,
        fires=_task_deadline,
    ),
)
