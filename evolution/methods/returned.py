"""What parts are given and return, checked, and what a round came to.

Covered: types and bounds. Not covered: plays, whose episodes are checked while they run
(``playing``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evolution.envs.environment import Environment, TakesVariants
from evolution.envs.tasks import Split
from evolution.errors import PartError
from evolution.methods.evolver import Assignment, EvolveSettings, Work
from evolution.methods.playing import Played
from evolution.parts.seam import MOST_START, EnvironmentPool, TaskPool
from evolution.train.rows import Row
from evolution.trajectory import Group, Task, Trajectory
from ops.logs.logger import get_logger

__all__ = ["Tally", "groups_of", "pool_of", "require_rows", "require_tasks", "short_enough"]

_log = get_logger(__name__)


@dataclass(kw_only=True, slots=True)
class Tally:
    """What a round's local epochs came to."""

    episodes: Counter[str]
    """By family."""
    successes: Counter[str]
    """By family."""
    figures: dict[str, float] = field(default_factory=dict)
    """Of the silo's own."""
    mean_gradient: dict[str, np.ndarray] | None = None
    """See ``SftReport``."""
    explored_s: float = 0.0
    """Spent on playing."""

    def add(self, **figures: float) -> None:
        """Add to figures, which are 0 before."""
        for name, value in figures.items():
            self.figures[name] = self.figures.get(name, 0.0) + value


def pool_of(
    assignments: Sequence[Assignment], environments: Mapping[str, Environment], *, distinct: bool
) -> TaskPool:
    """The silo's own parts of the training splits."""
    return TaskPool(
        environments=tuple(
            EnvironmentPool(
                environment=one.environment,
                task_ids=environments[one.environment].task_ids(Split.TRAIN, shard=one.shard),
                subject_of=environments[one.environment].task_subject,
                label_of=environments[one.environment].task_label,
                variants_of=_variants_of(environments[one.environment]),
                replays=environments[one.environment].replays,
            )
            for one in assignments
        ),
        distinct=distinct,
    )


def _variants_of(environment: Environment) -> Callable[[int], Sequence[str]]:
    """What an environment says of a task's variants: those that are texts a memory can keep."""

    def found(task_id: int) -> Sequence[str]:
        if not isinstance(environment, TakesVariants):
            return ()
        try:
            said = tuple(environment.variants(task_id))
        except Exception as error:  # noqa: BLE001  # an environment is foreign code: it has none then
            _log.warning(
                "variants_not_told", environment=environment.name, error=type(error).__name__
            )
            return ()
        return tuple(one for one in said if isinstance(one, str) and 0 < len(one) <= MOST_START)

    return found


def groups_of(played: Played, drawn: Sequence[Task], work: Work) -> list[Group]:
    """The episodes that count, by where they began, in the order of their first tries.

    Tries of one task from two beginnings cannot be measured against each other. ``drawn`` has each
    task as often as it was to be tried; how many tries from elsewhere failed, the play alone knows.
    """
    found: dict[Task, list[Trajectory]] = {}
    for one in played.counted:
        found.setdefault(one.task, []).append(one)
    begun = Counter(drawn)
    return [
        Group(
            task=task,
            round=work.round,
            trajectories=tuple(tries),
            dropped=max(0, begun[task] - len(tries)),
        )
        for task, tries in found.items()
    ]


def short_enough(rows: Sequence[Row], settings: EvolveSettings, tally: Tally | None) -> list[Row]:
    """Rows that fit into a training sequence; the others are counted."""
    kept = [row for row in rows if len(row) <= settings.max_sequence_tokens]
    if tally is not None:
        tally.add(too_long=float(len(rows) - len(kept)))
    return kept


def require_rows(said: object) -> list[Row]:
    """What a credit made, if they are rows.

    Raises:
        PartError: They are not.
    """
    if not isinstance(said, list | tuple) or not all(isinstance(row, Row) for row in said):
        raise PartError("a credit returns a list of rows")
    return list(said)


def require_tasks(said: object, pool: TaskPool, *, most: int) -> list[Task]:
    """What a sampler drew, if they are tasks of its pool and no more than it may draw.

    Raises:
        PartError: They are not.
    """
    if not isinstance(said, list | tuple) or not all(isinstance(task, Task) for task in said):
        raise PartError("a sampler returns a list of tasks")
    parts: dict[str, list[Sequence[int]]] = {}
    for part in pool.environments:
        # An environment may be there in several parts of its tasks.
        parts.setdefault(part.environment, []).append(part.task_ids)
    for task in said:
        if not any(task.task_id in ids for ids in parts.get(task.environment, ())):
            raise PartError("a sampler drew a task that is not in its pool")
    if len(said) > most:
        raise PartError(f"a sampler drew {len(said)} tasks, of at most {most}")
    return list(said)
