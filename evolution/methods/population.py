"""What a silo learns from in a run: its memory, and the units that are read out of it.

The memory of a run lies in the method's private directory and is seeded with the demonstrations
that the operator imported for all runs. Invariants of the population:

1. The population is what was *explored* in the window, solved or not. Tasks are drawn from seeds
   alone, so the population does not depend on data; a unit without a success has no rows and its
   gradient is zero.
2. A row belongs to exactly one unit: its task, or the subject whose data its task is made of.
3. Only rollouts of a released adapter are rows: a stored success whose (round, adapter, task) was
   not written down when the round was explored belongs to no unit.
4. Which successes of a task are rows is decided within the task. One that cannot be read is none;
   it costs no other task a row.

Covered: opening a run's memory; units ``task`` and ``user``. Not covered: several subjects of one
task; importing demonstrations (``silo_agent/cli/buffer.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dp.config import Unit
from dp.steps.units import UnitId, group_by_unit
from evolution.errors import EvolverSetupError, MemoryStoreError
from evolution.memory.memory import Memory
from evolution.methods.evolver import EvolveSettings
from evolution.trajectory import Task, Trajectory

__all__ = [
    "EXPERT_FILE",
    "MEMORY_FILE",
    "Population",
    "open_run_memory",
    "population_of",
    "unit_of",
]

MEMORY_FILE: Final = "successes.sqlite"
"""A run's memory, in the method's private directory. The name is that of earlier releases, which
kept successes alone: a run that one of them began goes on in the same file. A file that is renamed
would lose the journal beside it, from which a crash is recovered."""
EXPERT_FILE: Final = "experts.sqlite"
"""What the operator imported for all runs, in the silo's data directory."""


def open_run_memory(
    state_dir: Path,
    *,
    expert_file: Path | None,
    capacity: int | None,
    capacity_per_task: int | None,
    environments: Collection[str],
    failure_capacity: int | None = None,
    failure_capacity_per_task: int | None = None,
    max_age_days: int | None = None,
) -> Memory:
    """Open a run's memory and copy the demonstrations into it; again changes nothing.

    An ``expert_file`` that does not exist holds none; demonstrations of other environments than
    the run explores are left out. Capacities count successes, and all other tries apart; None is no
    limit.

    Raises:
        MemoryStoreError: One of the files is damaged or not ours.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    memory = Memory(
        state_dir / MEMORY_FILE,
        capacity=capacity,
        capacity_per_task=capacity_per_task,
        failure_capacity=failure_capacity,
        failure_capacity_per_task=failure_capacity_per_task,
        max_age_days=max_age_days,
    )
    if expert_file is not None and expert_file.exists():
        try:
            with Memory(expert_file) as given:
                memory.add_expert(t for t in given.experts() if t.task.environment in environments)
        except MemoryStoreError:
            memory.close()
            raise
    return memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """Units and their rows."""

    units: tuple[UnitId, ...]
    """Every unit that may be sampled, in a fixed order."""
    rows_of: dict[UnitId, tuple[Trajectory, ...]]
    """Rows of the units that have some."""
    too_long: int = 0
    """Successes that are no rows because they are longer than what is trained on; a figure of the
    silo's own, which nothing is computed from."""

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
    memory: Memory, *, round_index: int, settings: EvolveSettings, unit: Unit
) -> Population:
    """Every explored unit of a round's window, and the rows of those with a success.

    Raises:
        EvolverSetupError: The units do not fit the tasks.
        MemoryCorruptError: The memory cannot be read.
    """
    explored = memory.explored(round_index=round_index, window=settings.window)
    released = {(entry.round, entry.adapter_sha256, _key(entry.task)) for entry in explored}
    stored: Sequence[Trajectory] = memory.select(
        round_index=round_index,
        window=settings.window,
        best_per_task=settings.best_per_task,
        tasks_apart=True,
    )
    played = [
        trajectory
        for trajectory in stored
        if (trajectory.round, trajectory.adapter_sha256, _key(trajectory.task)) in released
    ]
    rows = [t for t in played if t.token_count <= settings.max_sequence_tokens]
    return Population(
        units=tuple(dict.fromkeys(unit_of(entry.task, unit) for entry in explored)),
        rows_of=group_by_unit(rows, lambda trajectory: unit_of(trajectory.task, unit)),
        too_long=len(played) - len(rows),
    )


def _key(task: Task) -> tuple[str, int]:
    return task.environment, task.task_id
