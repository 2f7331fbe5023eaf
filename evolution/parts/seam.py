"""The five kinds of part, and what the driver hands them (``docs/parts.md``).

A part sees what is in its arguments and nothing else: no engine, no store, no privacy mode. The
driver (``evolution/methods/recipe.py``) decides whether one instance gets everything or each unit
gets a fresh one with its own groups, its own view of the memory and its own random stream.

Invariants of what is handed out:

1. A ``MemoryView`` is shut but for the time in which its own unit is worked on: whoever kept one
   finds it empty.
2. ``PartWork.rng`` is the part's own stream: of the round, or of the unit where units are apart.
3. A play gets back what it asked for, in order: a trajectory, or None where the try failed; words
   for a question. It may ask for its own tasks alone, for no more tries than it was given, and for
   words as often as it has tries. Where in a task a try begins (``Task.prefix``, ``Task.variant``)
   is the play's own choice.
4. Principles are read and noted by plays whose class says ``keeps_principles``, and by nothing
   else. A note is about the play's own: tries that it was sent, principles that it was shown. It is
   kept when all plays of the exploring are at their end and its own did not fail; what a play reads
   never changes while it runs.
5. A group holds tries that began alike: those of a task from another prefix, or of another variant,
   are another group.

Covered: the seam. Not covered: objectives (``evolution/train/objective.py``), which the trainer
calls.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from evolution.errors import PartError
from evolution.principle import Note, Principle
from evolution.train.rows import Row
from evolution.trajectory import Ask, Group, Task, Trajectory

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "MOST_START",
    "Adapter",
    "Credit",
    "EnvironmentPool",
    "Gate",
    "MemoryView",
    "PartWork",
    "Play",
    "Playing",
    "Probes",
    "Rendered",
    "Sampler",
    "TaskPool",
    "Wish",
]

Adapter = Mapping[str, np.ndarray]
MOST_START: Final = 4096
"""Characters of a prefix, or of a variant: what a memory can keep, however they are written."""
Wish = Task | Ask
"""A try at a task, perhaps with a scaffold, or a question to the model."""
Playing = Generator[Sequence[Wish], "Sequence[Any]", Sequence[Trajectory]]
"""Yields wishes, is sent what became of each (``Trajectory | None`` of a try, ``str`` of a
question), returns the episodes that the round counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentPool:
    """The tasks of one environment that a silo may explore."""

    environment: str
    """A name of the silo's catalogue."""
    task_ids: Sequence[int]
    """The silo's own part of the training split."""
    subject_of: Callable[[int], str]
    """Whose data a task is made of; empty if nobody's."""
    label_of: Callable[[int], str]
    """The value of the attribute that the environment's tasks are told apart by."""
    variants_of: Callable[[int], Sequence[str]]
    """The variants of a task that the environment would take; empty where it takes none."""
    replays: bool
    """Whether a task may begin after actions of an earlier try (``Task.prefix``)."""

    def task(self, task_id: int, *, prefix: tuple[str, ...] = (), variant: str = "") -> Task:
        """One of them, from its beginning or from where it is to begin."""
        return Task(
            environment=self.environment,
            task_id=task_id,
            subject=self.subject_of(task_id),
            prefix=prefix,
            variant=variant,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskPool:
    """All tasks that a sampler may draw from."""

    environments: tuple[EnvironmentPool, ...]
    """In the order of the silo's configuration; at least one."""
    distinct: bool
    """Whether no task may be drawn twice."""


class MemoryView:
    """What a part may see of the memory; see the module."""

    def __init__(
        self,
        *,
        successes: Callable[[bool], Sequence[Trajectory]],
        groups: Callable[[], Sequence[Group]],
        demonstrations: Callable[[], Sequence[Trajectory]] = tuple,
        principles: Callable[[], Sequence[Principle]] = tuple,
    ) -> None:
        """Read through these; the first is told whether only the shortest of a task is wanted."""
        self._successes = successes
        self._groups = groups
        self._demonstrations = demonstrations
        self._principles = principles
        self._open = False
        self.noted: list[Note] = []
        """In order; for the driver."""

    def successes(self, *, shortest: bool) -> Sequence[Trajectory]:
        """What the window's training set would be: successes, and demonstrations where they count.

        With ``shortest`` of the agent's own only the shortest of each task.
        """
        return self._successes(shortest) if self._open else ()

    def demonstrations(self) -> Sequence[Trajectory]:
        """What the operator gave, where it counts; of ``successes`` those that nobody played."""
        return self._demonstrations() if self._open else ()

    def groups(self) -> Sequence[Group]:
        """All tries of the window, task by task and round by round, solved or not."""
        return self._groups() if self._open else ()

    def principles(self) -> Sequence[Principle]:
        """By environment, subject and score, the best first; of equal scores the older before."""
        return self._principles() if self._open else ()

    def note(self, one: Note) -> None:
        """Have something about principles written down; see the module."""
        if self._open:
            self.noted.append(one)

    @contextmanager
    def opened(self) -> Iterator[MemoryView]:
        """Open while this lasts; for the driver."""
        self._open = True
        try:
            yield self
        finally:
            self._open = False


class Rendered(Protocol):
    """A conversation as tokens."""

    @property
    def token_ids(self) -> Sequence[int]:
        """All of them."""

    @property
    def agent_mask(self) -> Sequence[bool]:
        """True at those of the answers."""


def _unwritten(instruction: str, observations: Sequence[str], actions: Sequence[str]) -> Rendered:
    words = sum(map(len, (instruction, *observations, *actions)))
    raise PartError(f"{words} letters have no tokenizer here")


@dataclass(frozen=True, kw_only=True, slots=True)
class PartWork:
    """What a part is told of the round."""

    round: int
    """Rises by one; a federation counts from 1."""
    tries_per_task: int
    """Tries that a task is given."""
    best_per_task: bool
    """The plan's word on which successes count."""
    temperature: float
    """At which tries are played."""
    rng: np.random.Generator
    """The part's own stream."""
    rendered: Callable[[str, Sequence[str], Sequence[str]], Rendered] = _unwritten
    """The tokens of a conversation that is given as text: instruction, what is said to the agent,
    and what it is to answer (``ChatFormat.render``)."""


class Sampler(Protocol):
    """Which tasks a round tries."""

    def draw(self, pool: TaskPool, past: MemoryView, work: PartWork, *, count: int) -> list[Task]:
        """At most ``count`` tasks, and at least one of each environment."""


class Play(Protocol):
    """How tries are played."""

    def play(self, tasks: Sequence[Task], past: MemoryView, work: PartWork) -> Playing:
        """Play these tries, a task as often as it stands there; see the module."""


class Credit(Protocol):
    """What becomes a training row, with which weights."""

    def credit(self, groups: Sequence[Group], past: MemoryView, work: PartWork) -> list[Row]:
        """Rows of the round's groups, of the memory, or of both."""


class Probes(Protocol):
    """Tasks of the silo's own part that nobody learned from; for gates that read the silo."""

    def success(self, adapter: Adapter) -> float:
        """The part of them that an adapter solves; NaN where there are none.

        Raises:
            PartError: The gate's card says that it reads what is public.
        """


class Gate(Protocol):
    """Whether what was learned is taken."""

    def admit(self, before: Adapter, after: Adapter, probes: Probes, work: PartWork) -> bool:
        """Whether to take what the round ended with in the place of what it started from.

        False leaves the delta at zero. What a gate saw is the silo's own, and said nowhere.
        """
