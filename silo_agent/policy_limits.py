"""The rules of the guardian about how much a plan asks for: rounds, episodes, time, disk, memory.

What a limit means beforehand::

    max_rounds, max_episodes_per_round     as the plan states them
    min_ready_after_s                      how long the ready report is kept back
    max_local_hours_per_round              rounds.ready_deadline_s: the time that the plan gives to
                                           local work. So a round that this site accepts is over
                                           before work is cut here, and the cut tells nobody
                                           anything (``local_time.py``)
    max_disk_bytes                         four adapters (the head, the one on its way in, the one
                                           before, one of the silo's own) and one masked upload, by
                                           the shape of the base that the plan names. What is used
                                           already depends on data and refuses nothing

and beside the policy, ``hardware``: whether the machine holds the base model at all.

Covered: plans. Not covered: a base whose shape is not known by name, whose disk is not judged
beforehand; what limits mean while work runs (``limits.py``, ``local_time.py``).
"""

from __future__ import annotations

from typing import Final

from federation.model_shapes import shape_of
from secagg.bounds import MAX_METRICS
from silo_agent.policy_rule import POLICY_DOES_NOT_ALLOW, PlanCase, Rule

__all__ = ["LIMIT_RULES", "disk_bytes_of"]

_COORDINATE_BYTES: Final = 4
_ADAPTERS: Final = 4
_SECONDS_PER_HOUR: Final = 3600


def disk_bytes_of(dimension: int) -> int:
    """Most bytes that a run with so many coordinates keeps on disk, text and demonstrations apart.

    Args:
        dimension: Coordinates of the whole adapter.
    """
    return _COORDINATE_BYTES * (_ADAPTERS * dimension + dimension + MAX_METRICS)


def _rounds(case: PlanCase) -> str | None:
    count, most = case.plan.rounds.count, case.policy.limits.max_rounds
    return f"{count} rounds are above limits.max_rounds {most}" if count > most else None


def _episodes(case: PlanCase) -> str | None:
    count, most = case.plan.evolve.episodes_per_round, case.policy.limits.max_episodes_per_round
    if count > most:
        return f"{count} episodes are above limits.max_episodes_per_round {most}"
    return None


def _ready_after(case: PlanCase) -> str | None:
    after_s, least_s = case.plan.rounds.ready_after_s, case.policy.limits.min_ready_after_s
    if after_s < least_s:
        return f"ready_after_s {after_s} is below limits.min_ready_after_s {least_s}"
    return None


def _local_time(case: PlanCase) -> str | None:
    most_h, given_s = (
        case.policy.limits.max_local_hours_per_round,
        case.plan.rounds.ready_deadline_s,
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
    needed = disk_bytes_of(sum(shape.lora_parameters(case.plan.model.lora_rank)))
    if needed > most:
        return f"{needed} bytes of adapters and uploads are above limits.max_disk_bytes {most}"
    return None


def _hardware(case: PlanCase) -> str | None:
    return case.unfit or None


LIMIT_RULES: tuple[Rule[PlanCase], ...] = (
    Rule(name="rounds", public_reason=f"{POLICY_DOES_NOT_ALLOW} so many rounds", fires=_rounds),
    Rule(
        name="episodes", public_reason=f"{POLICY_DOES_NOT_ALLOW} so many episodes", fires=_episodes
    ),
    Rule(
        name="ready_after",
        public_reason=f"{POLICY_DOES_NOT_ALLOW} so early a ready report",
        fires=_ready_after,
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
