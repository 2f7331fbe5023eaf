"""A trajectory as JSON text, the way the success buffer keeps it.

Invariants: what is decoded equals what was encoded; contents are data and cannot run code; a text
that names another task than the row it was found in is refused, for it would count as that task's.

Covered: everything a ``Trajectory`` holds but ``success``, which is true of all that is kept. Not
covered: which trajectories are kept (``evolution/memory/buffer.py``).
"""

from __future__ import annotations

import json

from evolution.trajectory import Step, Task, Trajectory

__all__ = ["decode_trajectory", "encode_trajectory"]


def encode_trajectory(trajectory: Trajectory) -> str:
    """The text of a success."""
    payload = {
        "adapter_sha256": trajectory.adapter_sha256,
        "final_observation": trajectory.final_observation,
        "round": trajectory.round,
        "steps": [
            {
                "observation": step.observation,
                "action": step.action,
                "context_ids": step.context_ids,
                "action_ids": step.action_ids,
                "action_logprobs": step.action_logprobs,
            }
            for step in trajectory.steps
        ],
        "task": {
            "environment": trajectory.task.environment,
            "task_id": trajectory.task.task_id,
            "subject": trajectory.task.subject,
        },
    }
    return json.dumps(payload, separators=(",", ":"))


def decode_trajectory(text: bytes, environment: str, task_id: int) -> Trajectory:
    """The success that a text in UTF-8 tells of; it is kept under a task, whose own it must be.

    Raises:
        ValueError: It is not JSON, holds other values, or is of another task.
        KeyError: Something is missing.
        TypeError: Something is of another type.
    """
    payload = json.loads(text)
    task = Task(**payload["task"])
    if (task.environment, task.task_id) != (environment, task_id):
        raise ValueError("a trajectory is kept under another task than its own")
    return Trajectory(
        task=task,
        steps=tuple(
            Step(
                observation=str(step["observation"]),
                action=str(step["action"]),
                context_ids=tuple(map(int, step["context_ids"])),
                action_ids=tuple(map(int, step["action_ids"])),
                action_logprobs=tuple(map(float, step["action_logprobs"])),
            )
            for step in payload["steps"]
        ),
        final_observation=str(payload["final_observation"]),
        success=True,
        adapter_sha256=str(payload["adapter_sha256"]),
        round=int(payload["round"]),
    )
