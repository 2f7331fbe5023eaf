"""What a silo learns from in a run: its memory, and the units that are read out of it.

The memory of a run lies in the method's private directory and is seeded with the demonstrations
that the operator imported for all runs. Invariants of the population:

1. The population is what was *explored* in the window, solved or not. Tasks are drawn from seeds
   alone, so the population does not depend on data; a unit without a success has no rows and its
   gradient is zero.
2. A row belongs to exactly one unit: its task, or the subject whose data its task is made of.
3. Only rollouts of a released adapter are rows: a stored success whose (round, adapter, task) was
   not written down when the round was explored belongs to no unit.
4. What becomes of a unit's tries is decided from that unit's tries. A try that cannot be read is
   none; it costs no other task a row.

Covered: opening a run's memory; units ``task`` and ``user``. Not covered: several subjects of one
task; importing demonstrations (``silo_agent/cli/buffer.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dp.config import Unit
from dp.steps.units import UnitId, group_by_unit
from evolution.errors import EvolverSetupError, MemoryStoreError
from evolution.memory.memory import Memory
from evolution.methods.evolver import EvolveSettings
from evolution.parts.seam import MemoryView
from evolution.principle import Principle
from evolution.train.rows import Row
from evolution.trajectory import Group, Task, Trajectory
from ops.logs.logger import get_logger

__all__ = [
    "EXPERT_FILE",
    "MEMORY_FILE",
    "Population",
    "UnitMemory",
    "open_run_memory",
    "remember",
    "unit_of",
]

_log = get_logger(__name__)
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


def remember(memory: Memory, played: Sequence[Trajectory]) -> None:
    """Store each task's tries; where that fails, those of them that can be stored."""
    by_task: dict[Task, list[Trajectory]] = {}
    for trajectory in played:
        by_task.setdefault(trajectory.task, []).append(trajectory)
    for tries in by_task.values():
        if not _stored(memory, tries):
            for trajectory in tries:
                _stored(memory, [trajectory])


def _stored(memory: Memory, tries: Sequence[Trajectory]) -> bool:
    try:
        memory.add(tries)
    except Exception as error:  # noqa: BLE001  # one try's tokens may do it: the others stay
        _log.warning("trajectory_not_stored", error=type(error).__name__)
        return False
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """Units and their rows."""

    units: tuple[UnitId, ...]
    """Every unit that may be sampled, in a fixed order."""
    rows_of: dict[UnitId, tuple[Row, ...]]
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


class UnitMemory:
    """The window's memory, unit by unit; read when it is first looked at."""

    def __init__(
        self, memory: Memory, *, round_index: int, settings: EvolveSettings, unit: Unit
    ) -> None:
        """Read which units were explored.

        Raises:
            EvolverSetupError: The units do not fit the tasks.
            MemoryCorruptError: The memory cannot be read.
        """
        self._memory = memory
        self._round = round_index
        self._window = settings.window
        self._unit: Unit = unit
        explored = memory.explored(round_index=round_index, window=settings.window)
        self._released = {
            (entry.round, entry.adapter_sha256, _key(entry.task)) for entry in explored
        }
        self.units = tuple(dict.fromkeys(unit_of(entry.task, unit) for entry in explored))
        self._successes: dict[bool, Mapping[UnitId, tuple[Trajectory, ...]]] = {}
        self._groups: Mapping[UnitId, tuple[Group, ...]] | None = None

    def view(
        self, unit: UnitId, *, principles: Callable[[], Sequence[Principle]] = tuple
    ) -> MemoryView:
        """What that unit's parts may see: its own, by released adapters alone."""
        return MemoryView(
            successes=lambda shortest: self._successes_of(shortest=shortest).get(unit, ()),
            groups=lambda: self.groups(unit),
            principles=principles,
        )

    def groups(self, unit: UnitId) -> tuple[Group, ...]:
        """The unit's tries of the window, solved or not."""
        if self._groups is None:
            found = self._memory.groups(
                round_index=self._round, window=self._window, tasks_apart=True
            )
            self._groups = group_by_unit(
                (replace(g, trajectories=self._of_released(g.trajectories)) for g in found),
                lambda group: unit_of(group.task, self._unit),
            )
        return self._groups.get(unit, ())

    def _successes_of(self, *, shortest: bool) -> Mapping[UnitId, tuple[Trajectory, ...]]:
        if shortest not in self._successes:
            stored = self._memory.select(
                round_index=self._round,
                window=self._window,
                best_per_task=shortest,
                tasks_apart=True,
            )
            self._successes[shortest] = group_by_unit(
                self._of_released(stored), lambda one: unit_of(one.task, self._unit)
            )
        return self._successes[shortest]

    def _of_released(self, found: Iterable[Trajectory]) -> tuple[Trajectory, ...]:
        return tuple(
            one
            for one in found
            if (one.round, one.adapter_sha256, _key(one.task)) in self._released
        )


def _key(task: Task) -> tuple[str, int]:
    return task.environment, task.task_id
