"""Pools of tasks, groups of tries at them, and what a sampler draws from both."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from evolution.part import Part
from evolution.parts.seam import EnvironmentPool, MemoryView, PartWork, TaskPool
from evolution.trajectory import Group, Step, Task, Trajectory


def part_of(
    ids: Sequence[int] = range(100), *, environment="craft", variants=(), labels=("even", "odd")
) -> EnvironmentPool:
    """Labels are dealt out by the ids; variants are a tuple for all tasks, or of each by its id."""
    return EnvironmentPool(
        environment=environment,
        task_ids=ids,
        subject_of=lambda task_id: f"user {task_id}",
        label_of=lambda task_id: labels[task_id % len(labels)],
        variants_of=lambda task_id: (
            variants.get(task_id, ()) if isinstance(variants, dict) else variants
        ),
        replays=True,
    )


def pool_of(*parts: EnvironmentPool, distinct=False) -> TaskPool:
    return TaskPool(environments=parts or (part_of(),), distinct=distinct)


def tried(
    task_id: int,
    solved: Sequence[object],
    *,
    round_index=1,
    environment="craft",
    prefix=(),
    variant="",
    actions: Sequence[str] = ("act",),
    rewards: Sequence[float] | None = None,
) -> Group:
    """A group of tries, solved or not, all by the same actions; a reward is of the last one."""
    task = Task(environment=environment, task_id=task_id, prefix=tuple(prefix), variant=variant)
    return Group(
        task=task,
        round=round_index,
        trajectories=tuple(
            Trajectory(
                task=task,
                steps=tuple(
                    Step(
                        observation="",
                        action=action,
                        context_ids=(1,),
                        action_ids=(2,),
                        action_logprobs=(0.0,),
                        reward=rewards[number] if rewards and place == len(actions) - 1 else 0.0,
                    )
                    for place, action in enumerate(actions)
                ),
                final_observation="",
                success=bool(one),
                adapter_sha256="ab",
                round=round_index,
            )
            for number, one in enumerate(solved)
        ),
    )


def draw(
    name: str,
    groups: Sequence[Group] = (),
    pool: TaskPool | None = None,
    *,
    count=8,
    round_index=9,
    seed=0,
    **options,
) -> list[Task]:
    """What one of Chorale's own samplers draws in a round that these groups came before."""
    past = MemoryView(successes=lambda _shortest: (), groups=lambda: groups)
    work = PartWork(
        round=round_index,
        tries_per_task=4,
        best_per_task=True,
        temperature=1.0,
        rng=np.random.default_rng(seed),
    )
    with past.opened():
        return Part.own(name, **options).make().draw(pool or pool_of(), past, work, count=count)


def unreplayable(part: EnvironmentPool) -> EnvironmentPool:
    return dataclasses.replace(part, replays=False)
