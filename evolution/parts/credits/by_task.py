"""A window's tries, task by task: what credits share that look back on more than one round.

A task is what an episode begins with: the environment's task, the actions that were replayed, and
the variant. Tries that began elsewhere are of another task, as in the memory.

Covered: dividing, ordering, and having each conversation once. Not covered: which tries become
rows, and with which weights, which is each credit's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evolution.trajectory import Group, Task, Trajectory

__all__ = [
    "TaskKey",
    "by_task",
    "conversation_of",
    "each_once",
    "groups_by_task",
    "key_of",
    "shortness",
]

TaskKey = tuple[str, int, tuple[str, ...], str]


def key_of(task: Task) -> TaskKey:
    """What tells a task from others."""
    return task.environment, task.task_id, task.prefix, task.variant


def conversation_of(one: Trajectory) -> tuple[str, int, str]:
    """What tells a conversation from others, however often it was had."""
    return one.task.environment, one.task.task_id, one.conversation_sha256


def groups_by_task(groups: Iterable[Group]) -> dict[TaskKey, list[Group]]:
    """Each task's groups, the oldest round first."""
    found: dict[TaskKey, list[Group]] = {}
    for group in sorted(groups, key=lambda one: one.round):
        found.setdefault(key_of(group.task), []).append(group)
    return found


def by_task(tries: Iterable[Trajectory]) -> dict[TaskKey, list[Trajectory]]:
    """Each task's tries, the shortest first."""
    found: dict[TaskKey, list[Trajectory]] = {}
    for one in tries:
        found.setdefault(key_of(one.task), []).append(one)
    return {key: sorted(own, key=shortness) for key, own in found.items()}


def shortness(one: Trajectory) -> tuple[int, int, str]:
    """Orders tries: fewer steps, then fewer tokens; what was said decides between equals."""
    return len(one.steps), one.token_count, one.conversation_sha256


def each_once(tries: Iterable[Trajectory]) -> Sequence[Trajectory]:
    """Tries with a step, in a fixed order; of one conversation the first that is given."""
    found: dict[tuple[str, int, str], Trajectory] = {}
    for one in tries:
        if one.steps:
            found.setdefault(conversation_of(one), one)
    return [found[key] for key in sorted(found)]
