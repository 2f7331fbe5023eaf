"""The units of a silo: who may be sampled, and the rows that each one owns.

Invariants:

1. The population is what was *explored* in the window, solved or not. Tasks are drawn from seeds
   alone, so the population does not depend on data; a unit without a success has no rows and its
   gradient is zero.
2. A row belongs to exactly one unit: its task, or the subject whose data its task is made of.
3. Only rollouts of a released adapter are rows: a stored success whose (round, adapter, task) was
   not written down when the round was explored belongs to no unit.
4. Which successes of a task are rows is decided within the task. One that cannot be read is none;
   it costs no other task a row.

Covered: units ``task`` and ``user``. Not covered: several subjects of one task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dp.config import Unit
from dp.steps.units import UnitId, group_by_unit
from evolution.errors import EvolverSetupError
from evolution.memory.buffer import SuccessBuffer
from evolution.methods.evolver import EvolveSettings
from evolution.trajectory import Task, Trajectory

__all__ = ["Population", "population_of", "unit_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """Units and their rows."""

    units: tuple[UnitId, ...]
    """Every unit that may be sampled, in a fixed order."""
    rows_of: dict[UnitId, tuple[Trajectory, ...]]
    """Rows of the units that have some."""

    def __repr__(self) -> str:
        """Redacted: which units have rows is private."""
        return f"Population({len(self.units)} units, rows redacted)"


def unit_of(task: Task, unit: Unit) -> UnitId:
    """The unit that a task belongs to.

    Args:
        task: The task.
        unit: What one unit is. A user is one unit over all environments.

    Returns:
        The unit's identity.

    Raises:
        EvolverSetupError: The unit is a user and the task is nobody's.
    """
    if unit == "task":
        return UnitId(task.environment, str(task.task_id))
    if not task.subject:
        raise EvolverSetupError(
            f"unit 'user' needs tasks that name a subject, and those of {task.environment!r} do "
            "not: use unit 'task'"
        )
    return UnitId("", task.subject)


def population_of(
    buffer: SuccessBuffer, *, round_index: int, settings: EvolveSettings, unit: Unit
) -> Population:
    """Read the population of a round from the buffer.

    Args:
        buffer: The silo's.
        round_index: The round.
        settings: Window, selection within a task and longest sequence.
        unit: What one unit is.

    Returns:
        Every explored unit of the window, and the rows of those with a success.

    Raises:
        EvolverSetupError: The units do not fit the tasks.
        BufferCorruptError: The buffer cannot be read.
    """
    explored = buffer.explored(round_index=round_index, window=settings.window)
    released = {(entry.round, entry.adapter_sha256, _key(entry.task)) for entry in explored}
    stored: Sequence[Trajectory] = buffer.select(
        round_index=round_index,
        window=settings.window,
        best_per_task=settings.best_per_task,
        tasks_apart=True,
    )
    rows = [
        trajectory
        for trajectory in stored
        if (trajectory.round, trajectory.adapter_sha256, _key(trajectory.task)) in released
        and trajectory.token_count <= settings.max_sequence_tokens
    ]
    return Population(
        units=tuple(dict.fromkeys(unit_of(entry.task, unit) for entry in explored)),
        rows_of=group_by_unit(rows, lambda trajectory: unit_of(trajectory.task, unit)),
    )


def _key(task: Task) -> tuple[str, int]:
    return task.environment, task.task_id
