"""What a success buffer keeps, and what it refuses.

Covered: rows and counts. Not covered: keeping them (``evolution/memory/buffer.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from evolution.errors import BufferContentError
from evolution.memory.trajectory_json import encode_trajectory
from evolution.trajectory import Task, Trajectory

__all__ = ["BufferCount", "Explored", "row_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Explored:
    """A task that was played, whatever came of it."""

    task: Task
    """What was played."""
    round: int
    """When."""
    adapter_sha256: str
    """By which released adapter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferCount:
    """What a buffer holds of one environment; for the silo's own operator."""

    environment: str
    """Its name."""
    explored: int
    """Successes of the agent."""
    expert: int
    """Demonstrations."""
    tasks: int
    """Tasks with either."""


def row_of(trajectory: Trajectory) -> tuple[str | int, ...]:
    """The row of a success.

    Raises:
        BufferContentError: It is no success, or has no step.
    """
    if not trajectory.success:
        raise BufferContentError("only successes belong into the buffer")
    if not trajectory.steps:
        raise BufferContentError("a trajectory without a step teaches nothing")
    return (
        trajectory.task.environment,
        trajectory.task.task_id,
        trajectory.conversation_sha256,
        trajectory.task.subject,
        trajectory.round,
        len(trajectory.steps),
        trajectory.token_count,
        encode_trajectory(trajectory),
    )
