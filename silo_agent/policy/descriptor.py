"""The rules of the guardian about a descriptor: it must be the one that its plan gives.

Everything a coordinator could turn against one silo is derived again here: sizes, layout, clip,
scale, noise per silo, metrics block, families, deadlines. From suite v2 on it belongs to the task
that this silo verified, and its cohort to those whom that invited. What is left to the coordinator
is who is ready, and when.

Covered: the above, and the site's floors and ceilings on cohort, threshold and attempts.
Not covered: what holds for every site alike (``secagg.check_descriptor``: signature, roster, t from
n and c, no wrap), the budget (``dp.ledger.ledger``, charged before every upload), and whether
enough silos declare a family that has coordinates in the metrics block, which a descriptor does not
show: the protocol counts the declarations signed in R0 (``secagg.verification.check_families``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dp.config import Mode
from dp.errors import PrivacyError
from dp.noise.grid import Grid
from dp.noise.metrics_block import MetricsBlock
from dp.noise.share import metrics_sigma, per_silo_sigma
from federation.chain.groups import groups_of
from federation.chain.sums import metrics_layout
from federation.chain.task import RoundTask
from federation.errors import LayoutError
from federation.plan.families import families_of
from secagg.descriptor import NOISE_DISCRETE_GAUSSIAN, NOISE_NONE, STEPS, Descriptor
from secagg.digest_tree import DIGESTS
from silo_agent.policy.plan import (
    CLOCK_SKEW_S,
    PLAN_RULES,
    SUITE_REASON,
    SUITE_RULE,
    suite_problem,
)
from silo_agent.policy.rule import POLICY_DOES_NOT_ALLOW, PlanCase, Rule

__all__ = ["DESCRIPTOR_RULES", "DescriptorCase", "SharedLayout"]

MAX_PARTS = 64
"""Groups of one round at most."""
HALVES = 2
"""Sums of a round with noise and without groups: one, or two where the admin bisects it."""
_DIFFERS = "the descriptor differs from its plan in"


class SharedLayout(Protocol):
    """What a descriptor must say about the uploaded vector."""

    @property
    def sha256(self) -> bytes:
        """Digest of the ordered names, shapes and dtypes."""

    @property
    def dimension(self) -> int:
        """Coordinates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DescriptorCase(PlanCase):
    """A descriptor with the plan it names."""

    descriptor: Descriptor
    """Verified against the roster."""
    silo_id: str
    """This silo."""
    layout: SharedLayout
    """Of the vector that this silo trained."""
    now_unix_s: int
    """This silo's clock."""
    task: RoundTask | None = None
    """The verified task of the round that the descriptor names, or else the newest one; None where
    this silo knows none."""


def _suite(case: DescriptorCase) -> str | None:
    return suite_problem(case.policy, case.descriptor.suite)


def _digest(case: DescriptorCase) -> str | None:
    descriptor = case.descriptor
    if not descriptor.is_hybrid or case.policy.secure_aggregation.accepts_digest(
        descriptor.digest_id
    ):
        return None
    name = DIGESTS.get(descriptor.digest_id, str(descriptor.digest_id))
    return f"uploads are hashed with {name}, which secure_aggregation.digests does not list"


def _plan_families(case: DescriptorCase) -> str | None:
    if not case.descriptor.is_hybrid:
        return None
    stated, families = case.descriptor.families, families_of(case.plan)
    if stated == families:
        return None
    return f"families {', '.join(stated)}, in the plan {', '.join(families)}"


def _round_task(case: DescriptorCase) -> str | None:
    task = case.task
    if not case.descriptor.is_hybrid:
        # A run does not go back to the suite before in the middle of a round.
        invited = task is not None and task.invited
        return "a descriptor of suite v1 after a task of suite v2" if invited else None
    if task is None or task.sha256 != case.descriptor.task_sha256:
        return "the descriptor does not name the task of its round that this silo verified"
    if differing := _task_differs(task, case.descriptor):
        return f"the descriptor's {differing} is not the task's"
    strangers = set(case.descriptor.cohort) - set(task.invited)
    if strangers:
        return f"the cohort has {', '.join(sorted(strangers))}, which the task does not invite"
    return None


def _task_differs(task: RoundTask, descriptor: Descriptor) -> str | None:
    """What of a descriptor does not follow from the task that it names; later steps have none."""
    identity = descriptor.identity
    agrees = {
        "run": task.run_id == identity.run_id,
        "round": task.round == identity.round,
        "step": task.step <= identity.step,
        "plan": task.plan_sha256 == descriptor.plan_sha256,
        "roster": task.roster_sha256 == descriptor.roster_sha256,
        "adapter": task.step < identity.step or task.adapter_sha256 == descriptor.adapter_sha256,
    }
    return next((name for name, same in agrees.items() if not same), None)


def _descriptor_base_model(case: DescriptorCase) -> str | None:
    if case.descriptor.base_model_sha256 != case.site.base_sha256:
        return f"the descriptor names base model {case.descriptor.base_model_sha256.hex()}"
    return None


def _descriptor_round(case: DescriptorCase) -> str | None:
    if not 1 <= case.descriptor.identity.round <= case.plan.rounds.count:
        return f"round {case.descriptor.identity.round} of a plan with {case.plan.rounds.count}"
    return None


def _sums(case: DescriptorCase) -> str | None:
    identity, sums = case.descriptor.identity, case.plan.sums_per_round
    parts = _parts(case)
    if identity.step >= sums or identity.part >= parts:
        return (
            f"step {identity.step}, part {identity.part}: a round of this plan has {sums} sum(s), "
            f"each in at most {parts} part(s) here"
        )
    return None


def _parts(case: DescriptorCase) -> int:
    """How many sums of one step this silo hears of; rule ``group`` has the plan's own number.

    Disjoint groups of one round are parts; without noise they are cohorts that vary.
    """
    if not case.descriptor.is_hybrid or not _may_be_parted(case):
        return 1
    if case.plan.groups > 1:
        return MAX_PARTS
    return 1 if case.plan.spec.mode is Mode.NONE else HALVES


def _group(case: DescriptorCase) -> str | None:
    """A part is a group of the round, which follows from the task: nobody is put beside others."""
    count, task, descriptor = case.plan.groups, case.task, case.descriptor
    if count == 1:
        return None
    if task is None or not task.invited:
        return "groups follow from the task's invited silos, and there is no such task"
    groups = groups_of(
        task.invited,
        count,
        run_id=task.run_id,
        round_number=task.round,
        roster_sha256=task.roster_sha256,
    )
    part = descriptor.identity.part
    if part >= count:
        return f"part {part} of a plan with {count} groups"
    strangers = set(descriptor.cohort) - set(groups[part])
    if strangers:
        return f"part {part} has {', '.join(sorted(strangers))}, who are not of that group"
    return None


def _may_be_parted(case: DescriptorCase) -> bool:
    return case.cohort_may_vary or case.plan.spec.mode is not Mode.NONE


def _attempts(case: DescriptorCase) -> str | None:
    attempt, most = case.descriptor.identity.attempt, case.policy.limits.max_attempts_per_round
    if attempt > most or most == 0:
        return f"attempt {attempt} is above limits.max_attempts_per_round {most}"
    return None


def _membership(case: DescriptorCase) -> str | None:
    return None if case.silo_id in case.descriptor.cohort else "this silo is not in the cohort"


def _partners(case: DescriptorCase) -> str | None:
    partners = case.policy.cohort.partners
    if partners is None:
        return None
    strangers = set(case.descriptor.cohort) - set(partners) - {case.silo_id}
    return f"cohort.partners lacks {', '.join(sorted(strangers))}" if strangers else None


def _cohort_size(case: DescriptorCase) -> str | None:
    n, least = len(case.descriptor.cohort), case.policy.cohort.min_silos
    return f"{n} silos are below cohort.min_silos {least}" if n < least else None


def _colluding(case: DescriptorCase) -> str | None:
    c, least = case.descriptor.colluding, case.policy.cohort.min_colluding
    return f"c = {c} is below cohort.min_colluding {least}" if c < least else None


def _threshold(case: DescriptorCase) -> str | None:
    t, least = case.descriptor.threshold, case.policy.cohort.min_threshold
    return f"t = {t} is below cohort.min_threshold {least}" if t < least else None


def _descriptor_survivors(case: DescriptorCase) -> str | None:
    n_min, planned = case.descriptor.n_min, case.plan.secure_aggregation.n_min
    return f"n_min is {n_min}, in the plan {planned}" if n_min != planned else None


def _layout(case: DescriptorCase) -> str | None:
    descriptor, layout = case.descriptor, case.layout
    if (descriptor.layout_sha256, descriptor.dimension) != (layout.sha256, layout.dimension):
        return f"the layout is not the one of {layout.dimension} coordinates that was trained"
    return None


def _dimension(case: DescriptorCase) -> str | None:
    size, most = case.descriptor.dimension, case.policy.limits.max_dimension
    return f"{size} coordinates are above limits.max_dimension {most}" if size > most else None


def _privacy_spec(case: DescriptorCase) -> str | None:
    if case.descriptor.privacy_spec_sha256 != case.plan.spec.sha256():
        return "the descriptor's privacy digest is not the plan's"
    return None


def _descriptor_clip(case: DescriptorCase) -> str | None:
    descriptor, release = case.descriptor, case.plan.spec.release
    # Both clips are that of one summed vector: the ring bound multiplies by the units itself.
    clips = {descriptor.unit_clip, descriptor.vector_clip}
    if clips != {release.clip_l2} or descriptor.max_units != release.max_units:
        return (
            f"clips {descriptor.unit_clip:g} and {descriptor.vector_clip:g} for "
            f"{descriptor.max_units} unit(s), in the plan {release.clip_l2:g} for "
            f"{release.max_units}"
        )
    return None


def _scale(case: DescriptorCase) -> str | None:
    release = case.plan.spec.release
    try:
        grid = Grid(
            clip_l2=release.clip_l2, steps=release.grid, dimension=case.descriptor.dimension
        )
    except PrivacyError as error:
        return str(error)
    if case.descriptor.scale != grid.scale:
        return f"scale {case.descriptor.scale!r} is not grid/clip = {grid.scale!r}"
    return None


def _noise(case: DescriptorCase) -> str | None:
    release, descriptor = case.plan.spec.release, case.descriptor
    mechanism = NOISE_NONE if release.noise_multiplier == 0 else NOISE_DISCRETE_GAUSSIAN
    if descriptor.noise_mechanism != mechanism:
        return f"noise mechanism {descriptor.noise_mechanism!r} where the plan has {mechanism!r}"
    try:
        needed = per_silo_sigma(
            release.noise_multiplier,
            release.grid,
            descriptor.threshold,
            descriptor.n_min,
            descriptor.colluding,
        )
    except PrivacyError as error:
        return str(error)
    return _too_little(descriptor.noise_sigma, needed)


def _metrics_layout(case: DescriptorCase) -> str | None:
    descriptor, block, plan = case.descriptor, case.descriptor.metrics, case.plan
    # The layout of a cohort in which as many silos as are needed declare just these families.
    # That so many do is counted by the protocol, over the declarations signed in R0.
    needed = max(descriptor.threshold, descriptor.n_min)
    declared = {f"silo-{index}": block.families() for index in range(needed)}
    try:
        expected = metrics_layout(plan, declared, t=descriptor.threshold, n_min=descriptor.n_min)
    except LayoutError as error:
        return str(error)
    if (block.names, block.bounds) != expected:
        return "the names or bounds of the metrics block are not the plan's"
    if block.grid != MetricsBlock.of(block.names, block.bounds).grid:
        return f"a metrics grid of {block.grid} steps"
    return None


def _metrics_noise(case: DescriptorCase) -> str | None:
    descriptor, layout = case.descriptor, case.descriptor.metrics
    try:
        needed = metrics_sigma(
            case.plan.spec,
            MetricsBlock(names=layout.names, bounds=layout.bounds, grid=layout.grid),
            tries=case.plan.evolve.tries_per_task,
            t=descriptor.threshold,
            n_min=descriptor.n_min,
            c=descriptor.colluding,
        )
    except PrivacyError as error:
        return str(error)
    return _too_little(layout.sigma, needed)


def _deadlines(case: DescriptorCase) -> str | None:
    first, *_, last = case.descriptor.deadlines_unix_s
    horizon_s = len(STEPS) * case.plan.rounds.phase_deadline_s + CLOCK_SKEW_S
    if first <= case.now_unix_s - CLOCK_SKEW_S or last > case.now_unix_s + horizon_s:
        return (
            f"the steps end between {first - case.now_unix_s} and {last - case.now_unix_s} s from "
            f"now, the plan allows {case.plan.rounds.phase_deadline_s} s for each"
        )
    return None


def _too_little(sigma: float, needed: float) -> str | None:
    """σ_i against what the plan needs; zero exactly where the plan has no noise."""
    if sigma < needed or (needed == 0.0) != (sigma == 0.0):
        return f"sigma {sigma:.6g} per silo where the plan needs {needed:.6g}"
    return None


DESCRIPTOR_RULES: tuple[Rule[DescriptorCase], ...] = (
    Rule(name=SUITE_RULE, public_reason=SUITE_REASON, fires=_suite),
    *PLAN_RULES,
    Rule(
        name="digest",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} this digest of the uploads",
        fires=_digest,
    ),
    Rule(
        name="plan_families",
        public_reason=f"{_DIFFERS} the environment families",
        fires=_plan_families,
    ),
    Rule(
        name="round_task",
        public_reason="the descriptor is not one of the round's task",
        fires=_round_task,
    ),
    Rule(
        name="descriptor_base_model",
        public_reason=f"{_DIFFERS} the base model",
        fires=_descriptor_base_model,
    ),
    Rule(name="descriptor_round", public_reason=f"{_DIFFERS} the round", fires=_descriptor_round),
    Rule(name="sums", public_reason=f"{_DIFFERS} the number of sums", fires=_sums),
    Rule(name="group", public_reason=f"{_DIFFERS} the group of this round", fires=_group),
    Rule(
        name="attempts",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} so many attempts at one sum",
        fires=_attempts,
    ),
    Rule(name="membership", public_reason="this silo is not in the cohort", fires=_membership),
    Rule(
        name="partners",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} a silo of the cohort",
        fires=_partners,
    ),
    Rule(
        name="cohort_size",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} so small a cohort",
        fires=_cohort_size,
    ),
    Rule(
        name="colluding",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} so few colluders",
        fires=_colluding,
    ),
    Rule(
        name="threshold",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} so low a threshold",
        fires=_threshold,
    ),
    Rule(
        name="descriptor_survivors",
        public_reason=f"{_DIFFERS} the least number of survivors",
        fires=_descriptor_survivors,
    ),
    Rule(name="layout", public_reason=f"{_DIFFERS} the layout", fires=_layout),
    Rule(
        name="dimension",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} so many coordinates",
        fires=_dimension,
    ),
    Rule(name="privacy_spec", public_reason=f"{_DIFFERS} the privacy spec", fires=_privacy_spec),
    Rule(name="descriptor_clip", public_reason=f"{_DIFFERS} the clip", fires=_descriptor_clip),
    Rule(name="scale", public_reason=f"{_DIFFERS} the scale", fires=_scale),
    Rule(name="noise", public_reason=f"{_DIFFERS} the noise", fires=_noise),
    Rule(
        name="metrics_layout",
        public_reason=f"{_DIFFERS} the metrics block",
        fires=_metrics_layout,
    ),
    Rule(
        name="metrics_noise",
        public_reason=f"{_DIFFERS} the noise of the metrics block",
        fires=_metrics_noise,
    ),
    Rule(name="deadlines", public_reason=f"{_DIFFERS} the deadlines", fires=_deadlines),
)
