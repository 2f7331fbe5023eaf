"""Round tasks: of each release the newest that silos were sent, and for which attempt.

Invariant: a task is here before any silo sees it, so that a coordinator that restarts sends the
same one again, and a descriptor of version 2 names one that its silos have seen.

Covered: one row a release. Not covered: whom a task invites (``server/run/cohorts.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, insert, select

import federation.wire as federation_wire
from chorale.v1 import aggregation_pb2
from federation.chain.task import RoundTask
from server.store.database import Database
from server.store.schema import tasks

__all__ = ["TaskRow", "Tasks"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRow:
    """One task that was sent."""

    task: RoundTask
    attempt: int
    """The first attempt whose silos it asked for."""


class Tasks:
    """The table of tasks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, row: TaskRow) -> None:
        """Make a task the newest of its release."""
        task = row.task
        with self._database.transaction() as connection:
            connection.execute(
                delete(tasks).where(
                    tasks.c.run_id == task.run_id,
                    tasks.c.round == task.round,
                    tasks.c.step == task.step,
                )
            )
            connection.execute(
                insert(tasks).values(
                    run_id=task.run_id,
                    round=task.round,
                    step=task.step,
                    attempt=row.attempt,
                    task=federation_wire.round_task_to_proto(task).SerializeToString(),
                )
            )

    def of_round(self, run_id: str, round_number: int) -> tuple[TaskRow, ...]:
        """Return the tasks of a round, by step; steps that needed none have none."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                select(tasks)
                .where(tasks.c.run_id == run_id, tasks.c.round == round_number)
                .order_by(tasks.c.step)
            ).all()
        return tuple(_task(row) for row in rows)


def _task(row: Any) -> TaskRow:
    return TaskRow(
        task=federation_wire.round_task_from_proto(aggregation_pb2.RoundTask.FromString(row.task)),
        attempt=row.attempt,
    )
