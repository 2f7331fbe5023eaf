"""Trajectories that were won, and what a credit makes of a memory that holds some."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evolution.memory.memory import Memory
from evolution.part import Part
from evolution.parts.seam import MemoryView, PartWork
from evolution.train.rows import Row
from evolution.trajectory import EXPERT_ROUND, Group, Step, Task, Trajectory


def won(task_id=1, *, steps=1, round_index=0, subject="", word=5, success=True) -> Trajectory:
    return Trajectory(
        task=Task(environment="craft", task_id=task_id, subject=subject),
        steps=tuple(
            Step(
                observation=f"seen {i}",
                action="craft plank",
                context_ids=(1, 2, i),
                action_ids=(word, 4),
                action_logprobs=(-0.1, -1 / 3),
            )
            for i in range(steps)
        ),
        final_observation="done",
        success=success,
        adapter_sha256="ab",
        round=round_index,
    )


def lost(task_id=1, **rest: Any) -> Trajectory:
    return won(task_id, success=False, **rest)


def shown(task_id=1, **rest: Any) -> Trajectory:
    """A demonstration."""
    return replace(won(task_id, round_index=EXPERT_ROUND, **rest), adapter_sha256="")


def doing(one: Trajectory, *actions: str) -> Trajectory:
    """The same with these actions, one a step."""
    steps = zip(one.steps, actions, strict=True)
    return replace(one, steps=tuple(replace(step, action=action) for step, action in steps))


def group_of(*tries: Trajectory) -> Group:
    return Group(task=tries[0].task, round=tries[0].round, trajectories=tries)


def credited(
    name: str,
    tries: Sequence[Trajectory],
    *,
    now: int,
    demonstrations: Sequence[Trajectory] = (),
    window: int = 0,
    best_per_task: bool = True,
    seed: int = 0,
    **options: Any,
) -> list[Row]:
    """The rows of a credit of Chorale's own in round ``now``, out of a real memory."""
    with tempfile.TemporaryDirectory() as directory, Memory(Path(directory) / "memory") as memory:
        # Nothing here outlives the call, so nothing need reach the disk.
        memory._db.execute("PRAGMA synchronous = OFF")
        for number in sorted({one.round for one in tries}):
            own = [one for one in tries if one.round == number]
            memory.explore([one.task for one in own], round_index=number, adapter_sha256="ab")
            memory.add(own)
        memory.add_expert(demonstrations)
        view = MemoryView(
            successes=lambda shortest: memory.select(
                round_index=now, window=window, best_per_task=shortest, use_expert=True
            ),
            groups=lambda: memory.groups(round_index=now, window=window),
            demonstrations=memory.experts,
        )
        work = PartWork(
            round=now,
            tries_per_task=4,
            best_per_task=best_per_task,
            temperature=1.0,
            rng=np.random.default_rng(seed),
        )
        with view.opened():
            groups = memory.groups(round_index=now, window=1)
            return Part.own(name, **options).make().credit(groups, view, work)


def names(*tries: Trajectory) -> list[str]:
    """What rows of these tries are called, in order."""
    return sorted(one.conversation_sha256 for one in tries)


def named(rows: Sequence[Row]) -> list[str]:
    """What these rows are called, in order."""
    return sorted(row.name for row in rows)
