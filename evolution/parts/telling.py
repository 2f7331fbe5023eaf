"""What a scaffold may be made of, and how a try is told as text.

Invariants:

1. A scaffold is made of tries of the task's own subject alone: whoever's data is deleted takes all
   text that was made of it along, for it stands in tries of the same subject only. Tasks that are
   nobody's share theirs.
2. The order of sources is the same whatever order they are found in: the likeness of their first
   observations to the try's, then length, then what was said.

Likeness is the share of words that two observations have in common, of all that they have
(Jaccard). Covered: observations that say what the task is. Not covered: meaning, which would take a
model of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evolution.trajectory import Trajectory

__all__ = ["like", "likeness", "steps_of", "told"]

_MOST_CHARS = 1_500
"""Of a try that is told."""


def likeness(one: str, other: str) -> float:
    """The share of words in common, from 0 to 1; 1 of two empty texts."""
    mine, theirs = set(one.lower().split()), set(other.lower().split())
    every = mine | theirs
    return len(mine & theirs) / len(every) if every else 1.0


def like(try_: Trajectory, stored: Iterable[Trajectory]) -> list[tuple[float, Trajectory]]:
    """Stored tries that a scaffold for this one may be made of, the likest first.

    A stored try at the same task is as like as can be.
    """
    task, first = try_.task, try_.steps[0].observation
    found = []
    for one in stored:
        other = one.task
        if (other.environment, other.subject) != (task.environment, task.subject):
            continue
        same = other.task_id == task.task_id
        found.append((1.0 if same else likeness(first, one.steps[0].observation), one))
    return sorted(
        found, key=lambda pair: (-pair[0], len(pair[1].steps), pair[1].conversation_sha256)
    )


def steps_of(actions: Sequence[str]) -> str:
    """Actions as lines."""
    return "\n".join(actions)


def told(one: Trajectory, *, ending: bool = True) -> str:
    """A try as text: what was seen and what was done, in turns; the end is kept if it is long.

    Without its ending it stops before what the environment said last.
    """
    turns = [line for step in one.steps for line in (step.observation, f"> {step.action}")]
    last = [one.final_observation] if ending else []
    return "\n".join([*turns, *last])[-_MOST_CHARS:]
