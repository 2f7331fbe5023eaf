"""Opening the success buffer of a run, seeded with what the operator imported for all runs.

Covered: the buffer of a method's private directory. Not covered: importing demonstrations
(``silo_agent/cli/buffer.py``).
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from evolution.errors import BufferStoreError
from evolution.memory.buffer import SuccessBuffer

__all__ = ["BUFFER_FILE", "EXPERT_FILE", "open_run_buffer"]

BUFFER_FILE: Final = "successes.sqlite"
"""A run's buffer, in the method's private directory."""
EXPERT_FILE: Final = "experts.sqlite"
"""What the operator imported for all runs, in the silo's data directory."""


def open_run_buffer(
    state_dir: Path,
    *,
    expert_file: Path | None,
    capacity: int | None,
    capacity_per_task: int | None,
    environments: Collection[str],
) -> SuccessBuffer:
    """Open a run's buffer and copy the demonstrations into it; again changes nothing.

    Args:
        state_dir: The method's private directory, made if absent.
        expert_file: Demonstrations for all runs; a file that does not exist holds none.
        capacity: Most successes kept; None for no limit.
        capacity_per_task: Most successes kept of one task; None for no limit.
        environments: What the run explores; demonstrations of others are left out.

    Returns:
        The buffer.

    Raises:
        BufferStoreError: One of the files is damaged or not ours.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    buffer = SuccessBuffer(
        state_dir / BUFFER_FILE, capacity=capacity, capacity_per_task=capacity_per_task
    )
    if expert_file is not None and expert_file.exists():
        try:
            with SuccessBuffer(expert_file) as given:
                buffer.add_expert(t for t in given.experts() if t.task.environment in environments)
        except BufferStoreError:
            buffer.close()
            raise
    return buffer
