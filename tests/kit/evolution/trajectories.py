"""Trajectories that were won."""

from __future__ import annotations

from evolution.trajectory import Step, Task, Trajectory


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
