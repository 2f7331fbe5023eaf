"""A trajectory as JSON text, the way a memory keeps it.

Invariants: what is decoded equals what was encoded; contents are data and cannot run code; a text
that names another task than the row it was found in is refused, for it would count as that task's;
a reward is as bounded as when it came from the environment.

A text of an earlier release is a success, and has neither rewards nor flags: they are what their
defaults say. Nothing is made up for them.

Covered: everything a ``Trajectory`` holds. Not covered: which trajectories are kept
(``evolution/memory/memory.py``).
"""

from __future__ import annotations

import json
from typing import Any

from evolution.envs.outcome import reward_of
from evolution.errors import OutcomeError
from evolution.trajectory import Step, Task, Trajectory

__all__ = ["decode_trajectory", "encode_trajectory"]


def encode_trajectory(trajectory: Trajectory) -> str:
    """The text of a trajectory."""
    payload = {
        "adapter_sha256": trajectory.adapter_sha256,
        "final_observation": trajectory.final_observation,
        "round": trajectory.round,
        "success": trajectory.success,
        "truncated": trajectory.truncated,
        "steps": [
            {
                "observation": step.observation,
                "action": step.action,
                "context_ids": step.context_ids,
                "action_ids": step.action_ids,
                "action_logprobs": step.action_logprobs,
                "reward": step.reward,
                "invalid": step.invalid,
                "cut_off": step.cut_off,
                **({} if step.bare_ids is None else {"bare_ids": step.bare_ids}),
            }
            for step in trajectory.steps
        ],
        "task": {
            "environment": trajectory.task.environment,
            "task_id": trajectory.task.task_id,
            "subject": trajectory.task.subject,
            "prefix": trajectory.task.prefix,
            "variant": trajectory.task.variant,
        },
        **({"helped_by": trajectory.helped_by} if trajectory.helped_by else {}),
        **({"violated": True} if trajectory.violated else {}),
    }
    return json.dumps(payload, separators=(",", ":"))


def decode_trajectory(text: bytes, environment: str, task_id: int) -> Trajectory:
    """The trajectory that a text in UTF-8 tells of.

    It is kept under a task, whose own it must be.

    Raises:
        ValueError: It is not JSON, holds other values, or is of another task.
        KeyError: Something is missing.
        TypeError: Something is of another type.
    """
    payload = json.loads(text)
    task = _task(payload["task"])
    if (task.environment, task.task_id) != (environment, task_id):
        raise ValueError("a trajectory is kept under another task than its own")
    return Trajectory(
        task=task,
        steps=tuple(map(_step, payload["steps"])),
        final_observation=str(payload["final_observation"]),
        success=_flag(payload, "success", default=True),
        adapter_sha256=str(payload["adapter_sha256"]),
        round=int(payload["round"]),
        truncated=_flag(payload, "truncated"),
        helped_by=tuple(map(str, payload.get("helped_by", ()))),
        violated=_flag(payload, "violated"),
    )


def _task(kept: dict[str, Any]) -> Task:
    prefix, variant = kept.pop("prefix", []), kept.pop("variant", "")
    if not isinstance(prefix, list) or not all(
        isinstance(text, str) for text in (*prefix, variant)
    ):
        raise TypeError("a prefix is a list of texts, and a variant is a text")
    return Task(**kept, prefix=tuple(prefix), variant=variant)


def _step(kept: dict[str, Any]) -> Step:
    try:
        reward = reward_of(kept.get("reward", 0.0))
    except OutcomeError as error:
        raise ValueError(str(error)) from error
    return Step(
        observation=str(kept["observation"]),
        action=str(kept["action"]),
        context_ids=tuple(map(int, kept["context_ids"])),
        action_ids=tuple(map(int, kept["action_ids"])),
        action_logprobs=tuple(map(float, kept["action_logprobs"])),
        reward=reward,
        invalid=_flag(kept, "invalid"),
        cut_off=_flag(kept, "cut_off"),
        bare_ids=tuple(map(int, kept["bare_ids"])) if "bare_ids" in kept else None,
    )


def _flag(kept: dict[str, Any], name: str, *, default: bool = False) -> bool:
    value = kept.get(name, default)
    if not isinstance(value, bool):
        raise TypeError(f"{name} is no flag")
    return value
