"""The round tasks of suite v2 that this silo verified: who was invited, and what it was.

``round_tasks.json`` holds, for each run, the tasks of its newest round, one for each step.

Ordered invariants:

1. What was heard is durable before anything is done for it, so that a restarted silo compares a
   descriptor with the very task.
2. A round is asked of no more silos than before: a later task of the same run and round, of
   whatever step, invites a part of those whom each kept one invites, and is of suite v2 as they
   are. Else a coordinator could try cohort after cohort under one round.
3. At most ``MAX_RUNS`` runs, those heard of last, and ``MAX_STEPS`` steps of each, the newest.

Covered: restarts, damage, which is an error. Not covered: trust; the caller verified the signature,
and that the task is of the step after the head of its run.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError

import federation.wire as federation_wire
from chorale.v1 import aggregation_pb2
from federation.chain.task import RoundTask
from federation.errors import ChainError
from ops.files import replace_file
from secagg.errors import Check, VerificationError
from silo_agent.errors import LocalStoreError

__all__ = ["ROUND_TASKS_FILE", "RoundTasks"]

ROUND_TASKS_FILE: Final = "round_tasks.json"
MAX_RUNS: Final = 64
MAX_STEPS: Final = 32
_FORMAT: Final = 1


class RoundTasks:
    """The file; read once, replaced at every task."""

    def __init__(self, data_dir: Path) -> None:
        """Read it.

        Raises:
            LocalStoreError: It is damaged.
        """
        self._path = data_dir / ROUND_TASKS_FILE
        self._lock = threading.Lock()
        # By run, the one heard of last at the end; then by step.
        self._runs: dict[str, dict[int, RoundTask]] = self._read()

    def hear(self, task: RoundTask) -> None:
        """Remember a verified task durably; one of suite v1 names nobody, and is not kept.

        Raises:
            VerificationError: task: the round is asked of more silos than it was before.
            LocalStoreError: The disk refused.
        """
        with self._lock:
            known = self._runs.get(task.run_id, {})
            newest_round = max((one.round for one in known.values()), default=0)
            kept_of_round = [one for one in known.values() if one.round == task.round]
            if not all(_is_part_of(task, before) for before in kept_of_round):
                raise VerificationError(Check.TASK, "a task of this round invited fewer before")
            if not task.invited or task.round < newest_round or task in kept_of_round:
                return
            steps = dict(known) if task.round == newest_round else {}
            steps[task.step] = task
            runs = {run: tasks for run, tasks in self._runs.items() if run != task.run_id}
            runs[task.run_id] = {step: steps[step] for step in sorted(steps)[-MAX_STEPS:]}
            kept = {run: runs[run] for run in list(runs)[-MAX_RUNS:]}
            self._write(kept)
            self._runs = kept

    def named(self, run_id: str, round_number: int, task_sha256: bytes) -> RoundTask | None:
        """The task of a round that a descriptor names, or else the newest of that round."""
        with self._lock:
            tasks = [
                task for task in self._runs.get(run_id, {}).values() if task.round == round_number
            ]
        named = (task for task in tasks if task.sha256 == task_sha256)
        return next(named, tasks[-1] if tasks else None)

    def _read(self) -> dict[str, dict[int, RoundTask]]:
        try:
            said = json.loads(self._path.read_bytes())
            return _runs(said)
        except FileNotFoundError:
            return {}
        except (
            OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError,
            DecodeError, ChainError,
        ) as error:  # fmt: skip
            raise LocalStoreError(
                f"{self._path} is damaged: put back a copy, or remove it; without it this silo "
                "waits for the next round of each run"
            ) from error

    def _write(self, runs: dict[str, dict[int, RoundTask]]) -> None:
        said = {
            "format": _FORMAT,
            "runs": {
                run: [
                    federation_wire.round_task_to_proto(task).SerializeToString().hex()
                    for task in tasks.values()
                ]
                for run, tasks in runs.items()
            },
        }
        try:
            replace_file(self._path, (json.dumps(said, indent=1).encode() + b"\n",))
        except OSError as error:
            raise LocalStoreError(f"cannot write {self._path}: {error}") from error


def _is_part_of(task: RoundTask, before: RoundTask) -> bool:
    return bool(task.invited) and set(task.invited) <= set(before.invited)


def _runs(said: Any) -> dict[str, dict[int, RoundTask]]:
    if said["format"] != _FORMAT:
        raise ValueError("written by another version")
    return {
        str(run): {task.step: task for task in map(_task, tasks)}
        for run, tasks in said["runs"].items()
    }


def _task(value: Any) -> RoundTask:
    message = aggregation_pb2.RoundTask.FromString(bytes.fromhex(value))
    return federation_wire.round_task_from_proto(message)
