"""What a silo learns from in a run: its success buffer, and the units that are read out of it.

The buffer of a run lies in the method's private directory and is seeded with the demonstrations
that the operator imported for all runs. Invariants of the population:

1. The population is what was *explored* in the window, solved or not. Tasks are drawn from seeds
   alone, so the population does not depend on data; a unit without a success has no rows and its
   gradient is zero.
2. A row belongs to exactly one unit: its task, or the subject whose data its task is made of.
3. Only rollouts of a released adapter are rows: a stored success whose (round, adapter, task) was
   not written down when the round was explored belongs to no unit.
4. Which successes of a task are rows is decided within the task. One that cannot be read is none;
   it costs no other task a row.

Covered: opening a run's buffer; units ``task`` and ``user``. Not covered: several subjects of one
task; importing demonstrations (``silo_agent/cli/buffer.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dp.config import Unit
from dp.steps.units import UnitId, group_by_unit
from evolution.errors import BufferStoreError, EvolverSetupError
from evolution.memory.buffer import SuccessBuffer
from evolution.methods.evolver import EvolveSettings
from evolution.trajectory import Task, Trajectory

__all__ = [
    "BUFFER_FILE",
    "EXPERT_FILE",
    "Population",
    "open_run_buffer",
    "population_of",
    "unit_of",
]

BUFFER_FILE: Final = "successes.sqlite"
"""A run's buffer, in the method's private directory."""
EXPERT_FILE: Final = "experts.sqlite"
"""What the operator imported for all runs, in the silo's data directory."""


def open_run_buffer(
    state_dir: Path,
    *,
    expert_file: Path | None,
    capacity: int | None,
    capacity_per_task: int | None,
    environments: Collection[str],
) -> SuccessBuffer:
    """Open a run's buffer and copy the demonstrations into it; again changes nothing.

    An ``expert_file`` that does not exist holds none; demonstrations of other environments than
    the run explores are left out. Capacities count successes; None is no limit.

    Raises:
        BufferStoreError: One of the files is damaged or not ours.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    buffer = SuccessBuffer(
        state_dir / BUFFER_FILE, capacity=capacity, capacity_per_task=capacity_per_task
    )
    if expert_file is not None and expert_file.exists():
        try:
            with SuccessBuffer(expert_file) as given:
                buffer.add_expert(t for t in given.experts() if t.task.environment in environments)
        except BufferStoreError:
            buffer.close()
            raise
    return buffer


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
    """The unit that a task belongs to; a user is one unit over all environments.

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
    """Every explored unit of a round's window, and the rows of those with a success.

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
