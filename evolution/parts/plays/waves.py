"""Tries in waves: what a task is tried with next follows from what its tries came to so far.

A play that goes on like this is one function of a ``Line``, a task with its tries; the waves of all
tasks are played together, so that a batch stays as large as the engine likes.

Covered: the loop. Not covered: what is tried (the plays that call it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from evolution.parts.seam import Playing
from evolution.trajectory import Task, Trajectory

__all__ = ["Line", "in_waves", "lines_of"]


@dataclass(kw_only=True, slots=True)
class Line:
    """A task, the tries that it still has, and those that were made."""

    task: Task
    left: int
    tries: list[Trajectory | None] = field(default_factory=list)
    """In the order in which they were asked for; None where one failed."""

    @property
    def played(self) -> list[Trajectory]:
        """Those that were played to their end."""
        return [one for one in self.tries if one is not None]

    @property
    def solved(self) -> bool:
        """Whether one of them succeeded."""
        return any(one.success for one in self.played)


def lines_of(tasks: Sequence[Task]) -> list[Line]:
    """One line for each task, in the order in which they come first."""
    lines: dict[Task, Line] = {}
    for task in tasks:
        lines.setdefault(task, Line(task=task, left=0)).left += 1
    return list(lines.values())


def in_waves(lines: Sequence[Line], following: Callable[[Line], Sequence[Task]]) -> Playing:
    """Play what ``following`` says of each line, wave after wave, until it says nothing more.

    It says no more tries than the line has left.
    """
    played: list[Trajectory] = []
    while wave := [(line, wish) for line in lines for wish in following(line)]:
        became = yield [wish for _, wish in wave]
        for (line, _), one in zip(wave, became, strict=True):
            line.left -= 1
            line.tries.append(one)
            if one is not None:
                played.append(one)
    return played
