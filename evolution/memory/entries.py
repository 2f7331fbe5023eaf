"""What a memory keeps, and what it refuses.

Covered: rows, counts, where an episode began. Not covered: keeping them
(``evolution/memory/memory.py``).
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from evolution.errors import MemoryContentError
from evolution.memory.trajectory_json import encode_trajectory
from evolution.trajectory import Task, Trajectory

__all__ = [
    "Explored",
    "MemoryCount",
    "Origin",
    "demonstration_row",
    "start_of",
    "task_from",
    "tried_rows",
]

_MAX_START_CHARS: Final = 1 << 16

Row = dict[str, str | int | float]


class Origin(enum.StrEnum):
    """How a try that is kept came about."""

    EXPLORED = "explored"
    """The agent played the task from its beginning."""
    REPLAYED = "replayed"
    """The agent played on from where replayed actions had led (``Task.prefix``)."""
    DEMONSTRATION = "demonstration"
    """The operator gave it; no agent of this silo played it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explored:
    """A task that was played, whatever came of it."""

    task: Task
    """What was played."""
    round: int
    """When."""
    adapter_sha256: str
    """By which released adapter."""
    tries: int = 0
    """How many tries were begun; 0 where an older release did not write it down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryCount:
    """What a memory holds of one environment; for the silo's own operator."""

    environment: str
    """Its name."""
    explored: int
    """Tries of the agent."""
    solved: int
    """Those that succeeded."""
    failed: int
    """Those that did not."""
    demonstrations: int
    """What the operator gave."""
    tasks: int
    """Tasks with any of these."""


def start_of(task: Task) -> str:
    """Where a task's episodes begin, as text: empty for the plain reset.

    Raises:
        MemoryContentError: It is absurdly long.
    """
    if not task.prefix and not task.variant:
        return ""
    start = json.dumps([list(task.prefix), task.variant], separators=(",", ":"))
    if len(start) > _MAX_START_CHARS:
        raise MemoryContentError("a prefix or a variant is too long to be kept")
    return start


def task_from(environment: str, task_id: int, start: str, subject: str) -> Task:
    """The task whose episodes begin at a ``start_of``.

    Raises:
        ValueError: The text is no such start.
    """
    prefix, variant = json.loads(start) if start else ([], "")
    if not isinstance(prefix, list) or not all(
        isinstance(text, str) for text in (*prefix, variant)
    ):
        raise ValueError("the kept beginning of a task is not of the form")
    return Task(
        environment=environment,
        task_id=task_id,
        subject=subject,
        prefix=tuple(prefix),
        variant=variant,
    )


def tried_rows(trajectories: Iterable[Trajectory], *, begun_unix_s: int) -> list[Row]:
    """The rows of tries, equal ones of one round and adapter as a row with so many copies.

    Raises:
        MemoryContentError: One has no step, or begins nowhere that can be kept.
    """
    rows: dict[tuple[Any, ...], Row] = {}
    for trajectory in trajectories:
        row = _row(trajectory)
        row |= {
            "start": start_of(trajectory.task),
            "adapter_sha256": trajectory.adapter_sha256,
            "origin": Origin.REPLAYED if trajectory.task.prefix else Origin.EXPLORED,
            "success": int(trajectory.success),
            "reward": trajectory.reward,
            "copies": 0,
            "begun_unix_s": begun_unix_s,
        }
        names = ("environment", "task_id", "conversation_sha256", "round", "adapter_sha256")
        kept = rows.setdefault(tuple(row[name] for name in names), row)
        kept["copies"] = int(kept["copies"]) + 1
    return list(rows.values())


def demonstration_row(trajectory: Trajectory) -> Row:
    """The row of a demonstration.

    Raises:
        MemoryContentError: It is no success, has no step, or begins anywhere but at the reset.
    """
    if not trajectory.success:
        raise MemoryContentError("a demonstration is a success")
    if start_of(trajectory.task):
        raise MemoryContentError("a demonstration begins at the task's own reset")
    return _row(trajectory)


def _row(trajectory: Trajectory) -> Row:
    if not trajectory.steps:
        raise MemoryContentError("a trajectory without a step teaches nothing")
    return {
        "environment": trajectory.task.environment,
        "task_id": trajectory.task.task_id,
        "conversation_sha256": trajectory.conversation_sha256,
        "subject": trajectory.task.subject,
        "round": trajectory.round,
        "steps": len(trajectory.steps),
        "tokens": trajectory.token_count,
        "payload": encode_trajectory(trajectory),
    }
