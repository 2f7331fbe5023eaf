"""The rules of the guardian about how much a plan asks for: rounds, episodes, time, disk, memory.

What a limit means beforehand::

    max_rounds, max_episodes_per_round     as the plan states them
    max_local_epochs                       evolve.local_epochs, or the most of its range
    min_episodes_per_round,                what a round explores at least: of one episode, or of one
    min_tasks_per_round                    task tried a hundred times, little is learned by anyone,
                                           and a sum may be about a single trajectory. Methods that
                                           explore nothing have no floor
    min_ready_after_s                      how long the ready report is kept back; in the record
                                           modes a plan has to keep it back in any case
    min_step_answer_after_s                the same for the answer to a step
    max_local_hours_per_round              rounds.ready_deadline_s, or the most of its range: the
                                           time that the plan gives to local work. So a round that
                                           this site accepts is over before work is cut here, and
                                           the cut tells nobody anything (``local_time.py``)
    max_disk_bytes                         four adapters (the head, the one on its way in, the one
                                           before, one of the silo's own) and one masked upload, by
                                           the shape of the base that the plan names. What is used
                                           already depends on data and refuses nothing

and beside the policy, ``time_passed``: whether this silo needed longer, in a record mode, than a
plan gave it (``passed_time.py``), after which it takes part in none of them until the operator's
floor is above the time that was passed; ``hardware``: whether the machine holds the base model; and
``declared_tasks``: whether a round needs more tasks of an environment than the operator declares in
``silo.toml``. That is a round number of the operator's choice. How many tasks there are is data and
refuses nothing: a round that finds fewer of them yields less.

Covered: plans. Not covered: a base whose shape is not known by name, whose disk is not judged
beforehand; what limits mean while work runs (``limits.py``, ``local_time.py``).
"""

from __future__ import annotations

from typing import Final

from dp.config import RECORD_MODES, Mode
from federation.adapter.shapes import shape_of
from federation.errors import TargetError
from secagg.bounds import MAX_METRICS
from silo_agent.policy.document import Policy
from silo_agent.policy.passed_time import Passed
from silo_agent.policy.rule import POLICY_DOES_NOT_ALLOW, PlanCase, Rule

__all__ = ["LIMIT_RULES", "LOCAL_EPOCHS_RULE", "TIME_RULES", "disk_bytes_of", "late_problems"]

LOCAL_EPOCHS_RULE: Final = "local_epochs"

TIME_RULES: Final = frozenset({"ready_after", "step_answer_after", "time_passed"})
"""About when a silo answers: they ask nothing of a run that it only follows."""

_COORDINATE_BYTES: Final = 4
_ADAPTERS: Final = 4
_SECONDS_PER_HOUR: Final = 3600


def disk_bytes_of(dimension: int) -> int:
    """Most bytes that a run of this dimension keeps on disk, text and demonstrations apart."""
    return _COORDINATE_BYTES * (_ADAPTERS * dimension + dimension + MAX_METRICS)


def _rounds(case: PlanCase) -> str | None:
    count, most = case.plan.rounds.count, case.policy.limits.max_rounds
    return f"{count} rounds are above limits.max_rounds {most}" if count > most else None


def _local_epochs(case: PlanCase) -> str | None:
    count, most = case.plan.most_local_epochs, case.policy.limits.max_local_epochs
    if most is not None and count > most:
        return f"{count} local epochs are above limits.max_local_epochs {most}"
    return None


def _episodes(case: PlanCase) -> str | None:
    count, most = case.plan.evolve.episodes_per_round, case.policy.limits.max_episodes_per_round
    if count > most:
        return f"{count} episodes are above limits.max_episodes_per_round {most}"
    return None


def _thin_round(case: PlanCase) -> str | None:
    evolve, limits = case.plan.evolve, case.policy.limits
    if not case.plan.needs_tasks:
        return None
    episodes = evolve.episodes_per_round if evolve.explore else 0
    for what, count, least in (
        ("episodes", episodes, limits.min_episodes_per_round),
        ("tasks", case.plan.tasks_per_round, limits.min_tasks_per_round),
    ):
        if least is not None and count < least:
            return f"{count} {what} are below limits.min_{what}_per_round {least}"
        if least is None and Mode(case.plan.privacy.mode) is Mode.NONE:
            return f"mode 'none' needs a floor: set limits.min_{what}_per_round"
    return None


def _declared_tasks(case: PlanCase) -> str | None:
    served = [name for name in case.plan.evolve.environments if name in case.site.environments]
    # The parts of a round are equal (``evolve/explore.py``).
    needed = case.plan.tasks_per_round // max(1, len(served))
    for name in served:
        declared = case.site.environments[name]
        if declared is not None and needed > declared:
            return f"a round needs {needed} tasks of {name!r}, declared_tasks are {declared}"
    return None


def _ready_after(case: PlanCase) -> str | None:
    after_s, least_s = case.plan.rounds.ready_after_s, case.policy.limits.min_ready_after_s
    if case.plan.spec.mode in RECORD_MODES and after_s == 0:
        return f"mode {case.plan.spec.mode.value!r} needs ready_after_s, and the plan has none"
    if after_s < least_s:
        return f"ready_after_s {after_s} is below limits.min_ready_after_s {least_s}"
    return None


def _step_answer_after(case: PlanCase) -> str | None:
    after_s = case.plan.rounds.step_answer_after_s
    least_s = case.policy.limits.min_step_answer_after_s
    if case.plan.spec.mode is not Mode.RECORD_DISTRIBUTED:
        return None
    if after_s == 0:
        return "mode 'record_distributed' needs step_answer_after_s, and the plan has none"
    if after_s < least_s:
        return f"step_answer_after_s {after_s} is below limits.min_step_answer_after_s {least_s}"
    return None


def late_problems(policy: Policy, passed: Passed) -> list[str]:
    """Why this silo takes part in record modes no more, and what to do; empty if it does."""
    floors = {
        "ready_after_s": policy.limits.min_ready_after_s,
        "step_answer_after_s": policy.limits.min_step_answer_after_s,
    }
    return [passed.told(key) for key, floor in floors.items() if floor <= getattr(passed, key)]


def _time_passed(case: PlanCase) -> str | None:
    if case.plan.spec.mode not in RECORD_MODES:
        return None
    return next(iter(late_problems(case.policy, case.passed)), None)


def _local_time(case: PlanCase) -> str | None:
    most_h, given_s = (
        case.policy.limits.max_local_hours_per_round,
        case.plan.longest_ready_s,
    )
    if most_h is not None and given_s > most_h * _SECONDS_PER_HOUR:
        return (
            f"ready_deadline_s {given_s} gives local work more than "
            f"limits.max_local_hours_per_round {most_h:g}"
        )
    return None


def _disk(case: PlanCase) -> str | None:
    most, shape = case.policy.limits.max_disk_bytes, shape_of(case.plan.model.base)
    if most is None or shape is None:
        return None
    model = case.plan.model
    try:
        needed = disk_bytes_of(sum(shape.lora_parameters(model.lora_rank, model.target)))
    except TargetError:
        return None  # Refused as such, by a rule of its own.
    if needed > most:
        return f"{needed} bytes of adapters and uploads are above limits.max_disk_bytes {most}"
    return None


def _hardware(case: PlanCase) -> str | None:
    return case.unfit or None


LIMIT_RULES: tuple[Rule[PlanCase], ...] = (
    Rule(name="rounds", public_reason=f"{POLICY_DOES_NOT_ALLOW} so many rounds", fires=_rounds),
    Rule(
        name=LOCAL_EPOCHS_RULE,
        public_reason=f"{POLICY_DOES_NOT_ALLOW} so many local epochs",
        fires=_local_epochs,
    ),
    Rule(
        name="episodes", public_reason=f"{POLICY_DOES_NOT_ALLOW} so many episodes", fires=_episodes
    ),
    Rule(
        name="thin_round",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} so few episodes or tasks",
        fires=_thin_round,
    ),
    Rule(
        name="declared_tasks",
        public_reason="this silo does not declare so many tasks",
        fires=_declared_tasks,
    ),
    Rule(
        name="ready_after",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} so early a ready report",
        fires=_ready_after,
    ),
    Rule(
        name="step_answer_after",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} so early an answer to a step",
        fires=_step_answer_after,
    ),
    Rule(
        name="time_passed",
        public_reason="this silo needs more time in a record mode than its operator expected",
        fires=_time_passed,
    ),
    Rule(
        name="local_time",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} so long a time for local work",
        fires=_local_time,
    ),
    Rule(name="disk", public_reason=f"{POLICY_DOES_NOT_ALLOW} so much space on disk", fires=_disk),
    Rule(
        name="hardware",
        public_reason="this silo's hardware does not hold the base model",
        fires=_hardware,
    ),
)
